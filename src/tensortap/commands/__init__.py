"""The `tensortap` command: one module per command, assembled here.

A command module has `HELP` (one line), `DESCRIPTION` (what --help teaches), `add_arguments(parser)` and
`run(options) -> int`; or it returns a function, to be called with nothing of ours around it. Tables go to standard
output, talk to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from tensortap.errors import TensortapError

__all__ = ["COMMANDS", "main", "parser_of"]

COMMANDS = (
    "run",
    "why",
    "check",
    "explain",
    "health",
    "ls",
    "show",
    "node",
    "inputs",
    "outputs",
    "source",
    "history",
    "find",
    "eval",
    "diff",
    "ranks",
    "trace",
    "profile",
    "serve",
    "view",
    "report",
    "export",
    "doctor",
    "build",
    "completion",
)
"""Names of the commands and of their modules; one per line, in the order of help."""


TRACEBACK = "TENSORTAP_TRACEBACK"
"""Environment variable: show the traceback of whatever ends a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. User mistakes are one line and exit code 2.

    A fault of our own is told as one, in a line that names the place; `--traceback` or TENSORTAP_TRACEBACK=1 shows all.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given:
        parser_of().print_help(sys.stderr)
        return 2
    if given[0][:1] != "-" and given[0] not in COMMANDS:
        print(f"tensortap: There is no command {given[0]!r}.{_meant(given[0])}", file=sys.stderr)
        return 2
    # The module of the one command that is named is enough: starting takes no longer for all the others.
    named = given[:1] if given[0] in COMMANDS else COMMANDS
    options = parser_of(named).parse_args(given)
    options.notes = []  # what a command says at the end, if it succeeds
    from tensortap.report.page import uncut

    try:
        with uncut(getattr(options, "wide", False)):
            outcome = options.module.run(options)
            for note in options.notes:
                print(f"note: {note}", file=sys.stderr)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print(
            f"tensortap {options.command}: This does not fit into the memory of this machine.",
            file=sys.stderr,
        )
        return 2
    except (TensortapError, OSError) as error:
        _trace(options)
        print(f"tensortap {options.command}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        _trace(options)
        print(f"tensortap {options.command}: {_fault(error)}", file=sys.stderr)
        return 2
    # A command that starts a program gives it back: what that raises is not ours to catch.
    return int(outcome() if callable(outcome) else outcome)


def _trace(options: argparse.Namespace) -> None:
    if options.traces_errors or os.environ.get(TRACEBACK, "") not in ("", "0"):
        import traceback

        traceback.print_exc()


def _fault(error: Exception) -> str:
    """A sentence about an error that nobody expected."""
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno} in {place.name}"
    return (
        f"{type(error).__name__}: {error} ({where}). This is a fault of tensortap; {TRACEBACK}=1 "
        "shows all of it."
    )


def _meant(name: str) -> str:
    from tensortap.suggest import nearest

    return nearest(name, COMMANDS, 1) or " `tensortap --help` lists them."


class _Version(argparse.Action):
    """Looks the version up when it is asked for, which takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tensortap {version('tensortap')}")
        parser.exit()


def parser_of(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands."""
    parser = argparse.ArgumentParser(
        prog="tensortap",
        description="Watch a training run and look into what was recorded.",
        epilog="`tensortap COMMAND --help` shows examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "--traceback",
        dest="traces_errors",
        action="store_true",
        help=f"show the traceback of an error; also {TRACEBACK}=1",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        module: ModuleType = import_module(f"tensortap.commands.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(module=module)
    return parser
