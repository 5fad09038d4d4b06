"""`tensortap explain`: the rule behind a finding."""

from __future__ import annotations

import argparse

from tensortap.errors import UsageError

HELP = "explain a kind of finding: its rule, an example, and the remedy"
DESCRIPTION = """Explain a kind of finding of `tensortap check` and `tensortap run`: the rule,
what it leaves alone, a program that it finds, and the remedy.

  tensortap explain gradients-not-cleared
  tensortap explain                            all kinds
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help="as a finding names it; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.checks import GROUPS, RULES
    from tensortap.commands.common import print_json, print_table
    from tensortap.report.check import explanation
    from tensortap.suggest import nearest

    group_of = {rule.kind: group for group, rules in GROUPS.items() for rule in rules}
    if options.kind is not None and options.kind not in RULES:
        more = nearest(options.kind, RULES, 1) or " `tensortap explain` lists them."
        raise UsageError(f"There is no kind of finding {options.kind!r}.{more}")
    chosen = [RULES[options.kind]] if options.kind is not None else list(RULES.values())
    if options.json:
        keys = ("kind", "certainty", "says", "example", "shows", "remedy")
        rules = [
            {"group": group_of[each.kind], **{key: getattr(each, key) for key in keys}} for each in chosen
        ]
        print_json({"rules": rules})
    elif options.kind is not None:
        explanation(chosen[0], group_of[options.kind]).show()
    else:
        rows = [(each.kind, group_of[each.kind], each.certainty, each.remedy) for each in chosen]
        print_table(("kind", "about", "certainty", "remedy"), rows)
    return 0
