"""`tensortap doctor`: what works here."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_output_arguments, print_json
from tensortap.extras import EXTRAS, missing_packages
from tensortap.frameworks import FRAMEWORKS, Framework

HELP = "check this installation, or whether a session directory is intact"
DESCRIPTION = """Check what tensortap finds and can do here, by trying it on a small training
step. The exit code is 1 if something that is needed does not work.

  tensortap doctor           everything
  tensortap doctor --quick   without importing a framework
  tensortap doctor DIR       instead, read every value of a session directory and compare it
                             with its checksum
"""


OPTIONAL = {"stream": "streaming", "serve": "debug server", "parquet": "Parquet files"}
"""Extras that are no framework, and what each is for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        status: `good`, `note` (works, but not as well as it could), `bad`, or `untried` (there, and that is all).
        fix: what to do about it.
    """

    name: str
    status: str
    text: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="check this directory instead")
    parser.add_argument("--quick", action="store_true", help="do not import a framework")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    if options.directory is not None:
        return _show_directory(options)
    checks = [*_versions(), _kernel(), _checksums(), *_settings(), *_frameworks(options.quick)]
    is_good = all(check.status != "bad" for check in checks)
    if options.json:
        print_json({"is_good": is_good, "checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    return 0 if is_good else 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _needed() -> list[str]:
    """The packages that tensortap itself says it needs."""
    try:
        requirements = importlib.metadata.requires("tensortap") or []
    except importlib.metadata.PackageNotFoundError:  # used from its source, without being installed
        requirements = []
    return [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requirements if "extra ==" not in each]


def _versions() -> list[Check]:
    checks = [
        Check("tensortap", "good", f"{_version('tensortap')}"),
        Check(
            "Python",
            "good",
            f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}",
        ),
    ]
    for package in _needed():
        version = _version(package)
        if version is None:
            checks.append(Check(package, "note", "not installed", f"pip install {package}"))
        else:
            checks.append(Check(package, "good", version))
    checks += [_extra(extra, use) for extra, use in OPTIONAL.items()]
    return checks


def _extra(extra: str, use: str) -> Check:
    if missing := missing_packages(extra):
        text = f"cannot be used without {', '.join(missing)}"
        return Check(use, "note", text, f"pip install 'tensortap[{extra}]'")
    found = (f"{package} {_version(package) or ''}".rstrip() for package in EXTRAS[extra].values())
    return Check(use, "good", ", ".join(found))


def _kernel() -> Check:
    from tensortap.ops import kernel

    try:
        native = kernel.native()
    except Exception as error:
        return Check("kernel", "bad", str(error), "unset TENSORTAP_KERNEL")
    if native is None:
        return Check(
            "kernel", "note", "NumPy: summaries are several times slower", "reinstall where a C compiler is"
        )
    return Check("kernel", "good", f"native, {kernel.isa()}")


def _checksums() -> Check:
    from tensortap.store import checksum

    if checksum.preferred() != "crc32c":
        return Check("checksums", "note", "zlib: of values, half as fast", "reinstall where a C compiler is")
    return Check("checksums", "good", f"CRC-32C, {checksum.isa()}")


def _show_directory(options: argparse.Namespace) -> int:
    from tensortap.reader.verification import verify_directory
    from tensortap.report.page import progress

    runs = verify_directory(options.directory.expanduser())
    found = list(progress(runs, len(runs), "runs"))
    damaged = sum(run.is_damaged for run in found)
    if options.json:
        print_json({"is_good": not damaged, "runs": [asdict(run) for run in found]})
        return 1 if damaged else 0
    for run in found:
        for sentence in (*run.damage, *run.notices):
            print(f"{run.name}: {sentence}")
    values, checked = sum(run.values for run in found), sum(run.checked for run in found)
    verdict = f"{damaged} damaged" if damaged else "intact"
    print(f"{len(found)} run(s), {values} values, {checked} of them with a checksum: {verdict}.")
    return 1 if damaged else 0


def _settings() -> list[Check]:
    return [
        Check(name, "good", os.environ[name])
        for name in sorted(os.environ)
        if name.startswith(("TENSORTAP_", "TFDBG_"))
    ]


def _frameworks(is_quick: bool) -> list[Check]:
    """The frameworks that are here, each with a tick only if its engine was seen at work."""
    checks: list[Check] = []
    found = [framework for framework in FRAMEWORKS if framework.version is not None]
    for framework in found:
        if is_quick:
            checks.append(Check(framework.name, "untried", f"{framework.version}, not tried"))
        else:
            tried = _engine(framework)
            status = "bad" if any(check.status == "bad" for check in tried) else "good"
            checks.append(Check(framework.name, status, f"{framework.version}"))
            checks += [replace(check, name=f"{framework.name}: {check.name}") for check in tried]
    if not found:
        text = "none: directories can be read, programs not watched"
        checks.append(Check("framework", "note", text, FRAMEWORKS[0].install))
    return checks


def _engine(framework: Framework) -> list[Check]:
    """What the engine of a framework can do, tried."""
    from tensortap.engines.registry import load_engine

    try:
        engine = load_engine(framework)
        return [*_interceptor(engine.builder()), _trial(engine, framework)]
    except Exception as error:
        return [Check("engine", "bad", f"{type(error).__name__}: {error}")]


def _interceptor(build: Any) -> list[Check]:
    from tensortap.engines.building import find_compiler
    from tensortap.errors import NativeBuildError

    checks: list[Check] = []
    if build is None:
        return checks
    try:
        compiler = find_compiler(build.RECIPE.language)
        checks.append(Check("compiler", "good", " ".join(compiler)))
    except NativeBuildError as error:
        checks.append(Check("compiler", "note", error.reason, error.fix))
    try:
        checks.append(Check("interceptor", "good", f"native, {build.find_built(build.SOURCE)}"))
    except NativeBuildError as error:
        text = f"the native one is not built yet: {error.reason}"
        checks.append(Check("interceptor", "note", text, "tensortap build"))
    return checks


def _trial(engine: Any, framework: Framework) -> Check:
    """A training step of a small model, watched as `tensortap run` would."""
    import tempfile

    from tensortap.analyze.facts import facts_of_dump, phase_of
    from tensortap.reader import SessionDir

    with tempfile.TemporaryDirectory() as folder:
        engine.train_once(folder)
        facts = facts_of_dump(SessionDir(folder).run(0))
        counts: dict[str, int] = {}
        for tensor in facts.tensors:
            node = facts.node_of(tensor)
            phase = "unknown" if node is None else phase_of(node)
            counts[phase] = counts.get(phase, 0) + 1
        if facts.updates:  # which show no tensor
            counts["optimizer"] = counts.get("optimizer", 0) + len(facts.updates)
    said = ", ".join(f"{count} {phase}" for phase, count in counts.items())
    phases = ["forward", "backward", *(["optimizer"] if framework.has_optimizers else [])]
    missing = [phase for phase in phases if phase not in counts]
    if missing:
        return Check(
            "trial step",
            "bad",
            f"nothing was seen of: {', '.join(missing)}",
            "TENSORTAP_INTERCEPTOR=dispatch tensortap doctor  (watches through Python instead)",
        )
    return Check("trial step", "good", f"{len(facts.tensors)} tensors watched: {said}")


def _show(checks: list[Check]) -> None:
    from tensortap.report.page import Page

    page = Page()
    marks: dict[str, Any] = {
        "good": ("✓", "green"),
        "note": ("!", "yellow"),
        "bad": ("✗", "bold red"),
        "untried": ("·", "dim"),
    }
    width = max(len(check.name) for check in checks)
    for check in checks:
        page.line(marks[check.status], f" {check.name:<{width}}  ", check.text)
        if check.fix:
            page.line(f"  {'':<{width}}  ", (check.fix, "cyan"))
    page.show()
