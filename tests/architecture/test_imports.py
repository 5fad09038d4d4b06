"""The folder tree is the data flow: which part may import which, and that frameworks stay behind the seam."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensortap

PACKAGE = Path(tensortap.__file__).parent
NOUNS = {"errors", "extras", "suggest", "records", "phases", "pill", "dtypes", "frameworks"}
LAYERS = [NOUNS, *({part} for part in ["wire", "store", "ops", "seam", "watch", "sink", "hooks"])]
LAYERS += [{"debug", "profile"}, {"engines"}, {"launch"}]
CAPTURING = set().union(*LAYERS) - NOUNS - {"wire", "store"}
READING = {"reader", "analyze", "report", "commands", "server", "web"}
# Commands that do not read, but prepare or start a program that captures. They import the engine when they run.
STARTING = {
    Path("commands", f"{name}.py")
    for name in ("build", "doctor", "run", "following", "run_child", "run_options", "ray_workers")
}
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow"}
ALLOWED = {
    "__init__.py": ["jax", "tensorflow", "torch"],  # public names
    "wire/debug_service.py": ["tensorflow.EventListener"],  # the name of the protocol
    "wire/values.py": ["tensorflow.python.debug.lib.debug_data"],  # whose tools our values pass for theirs
    "analyze/operands.py": ["torch"],  # in the source of a program
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(path):
    """Every module a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the full name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def belongs_to_a_framework(path):
    """Whether a file is in the folder of an engine, or is the public module of one."""
    inside = path.relative_to(PACKAGE).parts
    words = inside[:2] == ("analyze", "vocabulary")
    return (
        words
        or (inside[0] == "engines" and inside[1] in FRAMEWORKS)
        or inside[0].removesuffix(".py") in FRAMEWORKS
    )


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_rules(path):
    imported = set(imports_of(path))
    own_parts = {name.split(".")[1] for name in imported if name.startswith("tensortap.")}
    if part_of(path) in CAPTURING:
        assert not own_parts & READING, "the capturing half never imports the reading half"
    if part_of(path) in READING and path.relative_to(PACKAGE) not in STARTING:
        assert not own_parts & CAPTURING, (
            "the reading half meets the capturing half at records, wire and store"
        )
    if not belongs_to_a_framework(path):
        assert not {name.split(".")[0] for name in imported} & FRAMEWORKS, "a framework stays in its folder"
        engines = {f"tensortap.engines.{framework}" for framework in FRAMEWORKS}
        assert not {".".join(name.split(".")[:3]) for name in imported} & engines, (
            "engines are loaded by tensortap.engines.registry"
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_layers_import_only_what_is_below_them(path):
    rank = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    if part_of(path) in rank:
        parts = {name.split(".")[1] for name in imports_of(path) if name.startswith("tensortap.")}
        above = {part for part in parts if rank.get(part, 0) > rank[part_of(path)]}
        assert not above, f"{part_of(path)} is below {above}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_framework_is_spelled_out_elsewhere(path):
    if belongs_to_a_framework(path) or path.relative_to(PACKAGE) == Path("frameworks.py"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            spelled = re.match(r"(tensortap\.engines\.)?(torch|jax|tensorflow)(\.\w+)*$", node.value)
            assert spelled is None or node.value in ALLOWED.get(str(path.relative_to(PACKAGE)), ()), (
                node.value
            )


def test_importing_the_package_imports_no_framework():
    heavy = [*sorted(FRAMEWORKS), "tensorboard", "google.protobuf", "grpc"]
    program = f"import sys, tensortap; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_framework_names_the_command_that_installs_it():
    program = "import sys; sys.modules['torch'] = None\nimport tensortap\ntensortap.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'tensortap[torch]'" in done.stderr
