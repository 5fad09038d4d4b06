"""Findings of checks, and rules, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensortap.analyze.health import number_text
from tensortap.report.answer import short_path
from tensortap.report.page import Page

if TYPE_CHECKING:
    from tensortap.analyze.checks import Account, CheckFinding, Rule

__all__ = ["account_text", "add_finding", "explanation", "findings_page", "rules_table", "spoken"]


def spoken(finding: CheckFinding) -> str:
    """A finding in one line, for somebody who watches the program."""
    place = "" if finding.source is None else f" {short_path(finding.source.file)}:{finding.source.line}:"
    what = finding.sentence.partition(": ")[0].rstrip(".")
    return f"{finding.kind} at step {finding.step}:{place} {what}."


def findings_page(findings: Sequence[CheckFinding], left_out: int = 0, name_rank: bool = False) -> Page:
    """All findings, with their evidence.

    Args:
        findings: in their order.
        left_out: how many more there are that are only likely.
        name_rank: tell on which rank each was found.
    """
    page = Page()
    for number, finding in enumerate(findings):
        if number:
            page.line()
        add_finding(page, finding, name_rank)
    if left_out:
        page.line()
        page.text(f"and {left_out} more that {'is' if left_out == 1 else 'are'} only likely", "dim")
    return page


def account_text(account: Account) -> list[str]:
    """Sentences about what could not be looked at, none if all could.

    >>> from tensortap.analyze.checks import Account
    >>> account = Account()
    >>> account.runs, account.lacking = 3, {"stepped-twice": {"updates"}}
    >>> account_text(account)[0].partition(".")[0]
    'Of 1 kind nothing is known, because no updates were recorded here: stepped-twice'
    """
    said = []
    reasons = {
        "runs": ("no run was kept", "Runs are kept by `tensortap run` and by debug hooks."),
        "updates": (
            "no updates were recorded here",
            "They are told of PyTorch programs with an optimizer by `tensortap run` and `tt.CheckHook`; a stream to a "
            "server and other frameworks have none.",
        ),
    }
    for name, (why, who) in reasons.items():
        kinds = sorted(kind for kind, lacking in account.lacking.items() if name in lacking)
        if kinds:
            number = f"{len(kinds)} kind{'s' if len(kinds) > 1 else ''}"
            said.append(f"Of {number} nothing is known, because {why}: {', '.join(kinds)}. {who}")
    if account.runs and not account.trains:
        said.append(
            "In no run is a parameter known to get a gradient: rules about losses and signals can say nothing either."
        )
    if account.failed:
        said.append(f"Rules that failed, a fault of tensortap: {', '.join(sorted(account.failed))}.")
    return said


def add_finding(page: Page, finding: CheckFinding, name_rank: bool = False) -> None:
    """One finding: what, where, the numbers, and what to try."""
    style = "red" if finding.is_sure else "yellow"
    rank = f" on rank {finding.rank}" if name_rank else ""
    page.line(
        (f"{'✗' if finding.is_sure else '?'} {finding.kind}", f"bold {style}"),
        f"  {finding.subject} since step {finding.step}{rank}",
        ("" if finding.is_sure else "  likely", "dim"),
    )
    page.field("wrong", finding.sentence, "bold")
    if finding.source is not None:
        place = f"{short_path(finding.source.file)}:{finding.source.line}"
        page.field("line", f"{place} in {finding.source.function}")
    if finding.evidence:
        told = [f"{name} {_value(value)}" for name, value in finding.evidence.items()]
        page.field("shown by", "; ".join(told))
    if finding.advice:
        page.field("try", finding.advice, "green")


def explanation(rule: Rule, group: str) -> Page:
    """A rule, an example and the remedy."""
    page = Page()
    page.line((rule.kind, "bold"), f"  {group}, ", (rule.certainty, "bold"))
    page.line()
    page.field("rule", rule.says)
    page.line()
    for number, line in enumerate(rule.example.splitlines()):
        page.line("  ", (f"{'' if number else 'example':<9}", "dim"), line)
    page.line()
    page.field("shown by", rule.shows)
    page.field("try", rule.remedy, "green")
    page.field("accept", f'accept = ["{rule.kind}:SUBJECT"] in [tool.tensortap] of pyproject.toml', "dim")
    return page


def rules_table() -> str:
    """All kinds as Markdown, for the documentation."""
    from tensortap.analyze.checks import GROUPS

    lines = []
    for group, rules in GROUPS.items():
        lines += [f"### About {group}", ""]
        for rule in rules:
            example = "\n".join(f"    {line}" for line in rule.example.splitlines())
            lines += [
                f"**`{rule.kind}`** ({rule.certainty}). {rule.says}",
                "",
                example,
                "",
                f"*Shown by* {rule.shows}. *Remedy:* {rule.remedy}",
                "",
            ]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number_text(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
