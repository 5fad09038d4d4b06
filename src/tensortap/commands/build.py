"""`tensortap build`: the native interceptor, ahead of time."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_output_arguments, print_json, say
from tensortap.errors import NativeBuildError
from tensortap.extras import missing_packages, require

HELP = "build the native interceptor for the framework installed here"
DESCRIPTION = """Build the native interceptor for the framework and Python installed here.

Without this command it is built when it is first needed, which stops a training program for half a minute. A C++
compiler and Python's headers are needed to build it, not to use it. It is kept in $TENSORTAP_CACHE_DIR,
$XDG_CACHE_HOME/tensortap or ~/.cache/tensortap.

  tensortap build                                        build it, unless it is there
  tensortap build --check                                only say whether it is there; exit code 1 if not
  tensortap build --force                                build it anew
  tensortap build --clean                                remove what was built for any version
  TENSORTAP_CACHE_DIR=/opt/tensortap tensortap build     in an image; set the variable where it runs, too
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--force", action="store_true", help="build it even if it is there")
    action.add_argument("--check", action="store_true", help="do not build; exit code 1 if it is not there")
    action.add_argument("--clean", action="store_true", help="remove what was built for any version")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    builder = _builder()
    if options.clean:
        return _clean(builder, options)
    try:
        library = None if options.force else builder.find_built(builder.SOURCE)
    except NativeBuildError as error:
        if options.check:
            return _tell_missing(builder, error, options)
        library = None
    started = time.monotonic()
    is_new = library is None
    if library is None:
        library = builder.ensure_built(builder.SOURCE, force=options.force)
    seconds = round(time.monotonic() - started, 1)
    if options.json:
        print_json({"library": library, "is_built": True, "is_new": is_new, "seconds": seconds})
        return 0
    print(library)
    say([f"Built in {seconds} s." if is_new else "It was there already."])
    if not options.check:
        cache = shlex.quote(str(library.parents[2]))
        say([f"In an image, keep this file and run with TENSORTAP_CACHE_DIR={cache}; no compiler is needed."])
    return 0


def _builder() -> Any:
    """The module that builds, imported when it is needed: other commands must do without the engines."""
    from tensortap.engines.registry import FRAMEWORKS, load_engine

    for framework in FRAMEWORKS:
        builder = None if missing_packages(framework.name) else load_engine(framework).builder()
        if builder is not None:
            return builder
    require(FRAMEWORKS[0].name, "Building the native interceptor")
    raise AssertionError("no engine has a native part")


def _clean(builder: Any, options: argparse.Namespace) -> int:
    removed: list[Path] = builder.remove_all()
    if options.json:
        print_json({"removed": removed})
        return 0
    for directory in removed:
        print(directory)
    say([f"Removed {len(removed)} director{'y' if len(removed) == 1 else 'ies'}."])
    return 0


def _tell_missing(builder: Any, error: NativeBuildError, options: argparse.Namespace) -> int:
    if options.json:
        facts = {"reason": error.reason, "fix": error.fix}
        print_json({"library": builder.library_path(builder.SOURCE), "is_built": False, **facts})
    else:
        say([str(error)])
    return 1
