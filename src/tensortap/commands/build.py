"""`tensortap build`: the native interceptor, ahead of time."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_output_arguments, print_json, say
from tensortap.errors import InvalidArgumentError, NativeBuildError
from tensortap.extras import missing_packages, require
from tensortap.frameworks import FRAMEWORKS
from tensortap.suggest import nearest

HELP = "build the native interceptor for the framework installed here"
DESCRIPTION = """Build the native interceptor for the framework and Python installed here.

Without this command it is built when it is first needed, which stops a training program for half a minute. A C++
compiler and Python's headers are needed to build it, not to use it. It is kept in $TENSORTAP_CACHE_DIR,
$XDG_CACHE_HOME/tensortap or ~/.cache/tensortap.

  tensortap build                                        build it, unless it is there, for all frameworks installed
  tensortap build torch                                  for one of them
  tensortap build --check                                only say whether it is there; exit code 1 if not
  tensortap build --force                                build it anew
  tensortap build --clean                                remove what was built for any version
  TENSORTAP_CACHE_DIR=/opt/tensortap tensortap build     in an image; set the variable where it runs, too
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    names = ", ".join(framework.name for framework in FRAMEWORKS)
    parser.add_argument(
        "frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {names}; all that are installed by default"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--force", action="store_true", help="build it even if it is there")
    action.add_argument("--check", action="store_true", help="do not build; exit code 1 if it is not there")
    action.add_argument("--clean", action="store_true", help="remove what was built for any version")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    builders = _builders(options.frameworks)
    if options.clean:
        return _clean(builders.values(), options)
    failed: NativeBuildError | None = None
    libraries = []
    for name, builder in builders.items():
        try:
            libraries.append({"framework": name, **_find_or_build(builder, options)})
        except NativeBuildError as error:
            failed = failed or error
    if options.json:
        print_json(libraries)
    else:
        _tell(libraries, options)
    if failed is not None:
        raise failed
    return 0 if all(library["is_built"] for library in libraries) else 1


def _builders(names: list[str]) -> dict[str, Any]:
    """The modules that build, by framework; imported when needed: other commands must do without the engines."""
    from tensortap.engines.registry import load_engine

    known = {framework.name: framework for framework in FRAMEWORKS}
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                None, f"There is no engine for {name!r}: expected {', '.join(known)}.{nearest(name, known)}"
            )
        require(name, "Building the native interceptor")
    installed = [name for name in names or known if not missing_packages(name)]
    if not installed:
        require(FRAMEWORKS[0].name, "Building the native interceptor")
    found = {name: load_engine(known[name]).builder() for name in installed}
    return {name: builder for name, builder in found.items() if builder is not None}


def _find_or_build(builder: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What there is of one framework, or was built."""
    try:
        library = None if options.force else builder.find_built(builder.SOURCE)
    except NativeBuildError as error:
        if options.check:
            facts = {"reason": error.reason, "fix": error.fix}
            return {"library": builder.library_path(builder.SOURCE), "is_built": False, **facts}
        library = None
    started = time.monotonic()
    is_new = library is None
    if library is None:
        library = builder.ensure_built(builder.SOURCE, force=options.force)
    seconds = round(time.monotonic() - started, 1)
    return {"library": library, "is_built": True, "is_new": is_new, "seconds": seconds}


def _tell(libraries: list[dict[str, Any]], options: argparse.Namespace) -> None:
    for library in libraries:
        if not library["is_built"]:
            say([f"{library['reason']} {library['fix']}"])
            continue
        print(library["library"])
        say([f"Built in {library['seconds']} s." if library["is_new"] else "It was there already."])
    if libraries and not options.check:
        cache = shlex.quote(str(libraries[0]["library"].parents[2]))
        say([f"In an image, keep this and run with TENSORTAP_CACHE_DIR={cache}; no compiler is needed."])


def _clean(builders: Iterable[Any], options: argparse.Namespace) -> int:
    removed: list[Path] = [directory for builder in builders for directory in builder.remove_all()]
    if options.json:
        print_json({"removed": removed})
        return 0
    for directory in removed:
        print(directory)
    say([f"Removed {len(removed)} director{'y' if len(removed) == 1 else 'ies'}."])
    return 0
