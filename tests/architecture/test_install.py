"""What is installed is enough: a wheel in environments that have what it declares, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tensortap.extras import EXTRAS

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
ON_REQUEST = ("grpc", "starlette", "uvicorn", "tensorboard", "PIL", "pyarrow", "tensorflow", "jax")

TRAINING = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for scale in (1.0, 0.0):
    loss = (model(torch.ones(8, 4)) * scale).abs().mean().log()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

HOOKS = """
import torch
before = torch
from tensortap import *
assert torch is before
import tensortap as tt

def step(x):
    return {"y": (x * 2).sum()}

hooks = [
    tt.DumpingDebugHook("dumps", tt.WatchOptions("DebugNumericSummary")),
    tt.SummarySaverHook(save_steps=1, output_dir="events", summary_op="y"),
    tt.ProfilerHook(save_steps=1, output_dir="traces"),
]
with tt.MonitoredSession(tt.torch.Session(step), hooks=hooks) as session:
    for _ in range(2):
        session.run("y", {"x": torch.ones(3)})

def refusal(make):
    try:
        make()
    except tt.errors.MissingExtraError as error:
        assert isinstance(error, ImportError)
        return str(error)

def watch_by_url():
    options = tt.RunOptions()
    session = tt.torch.Session(step)
    tt.watch_graph(options, session.graph, debug_urls="grpc://localhost:1")
    session.run("y", {"x": torch.ones(3)}, options=options)

from tensortap.server import DebugServer
refused = [refusal(make) for make in (
    lambda: tt.GrpcDebugHook("localhost:1"),
    lambda: tt.TensorBoardDebugHook("localhost:1"),
    lambda: tt.GrpcDebugWrapperSession(tt.torch.Session(step), "localhost:1"),
    watch_by_url,
    lambda: DebugServer("runs"),
)]
import json, sys
print(json.dumps({"refused": refused, "imported": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of what is here, built where there is no C compiler: all parts in C are optional."""
    source = tmp_path_factory.mktemp("source")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "native", source / "native")
    shutil.copytree(
        REPOSITORY / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    )
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", source],
        cwd=target,
        check=True,
        capture_output=True,
        env={**os.environ, "CC": "false"},
    )
    (found,) = target.glob("tensortap-*.whl")
    return found


def declared(requirements, extra=""):
    """All packages that these requirements bring, as far as they are installed here."""
    found, waiting = {}, [(Requirement(each), extra) for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.name in found or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        found[requirement.name] = distribution(requirement.name)
        waiting += [(Requirement(each), "") for each in found[requirement.name].requires or ()]
    return found.values()


def environment(folder, wheel, *extras):
    """An environment of its own with the wheel and the packages it declares, which are borrowed from ours."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, packages, "zip")
    requirements = PROJECT["dependencies"] + [
        each for extra in extras for each in PROJECT["optional-dependencies"][extra]
    ]
    for package in declared(requirements):
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(package.locate_file(name))
    return folder / "bin" / "python"


def run(python, *words, cwd):
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TENSORTAP_"))
    }
    return subprocess.run(
        [python, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**settings, "TENSORTAP_INTERCEPTOR": "dispatch", "COLUMNS": "100"},
    )


def test_extras_are_those_of_the_project():
    declared_extras = PROJECT["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert {Requirement(each).name for each in declared_extras[extra]} == set(modules.values())


def test_watching_pytorch_needs_the_torch_extra_alone(wheel, tmp_path):
    """And reading what was recorded needs no extra at all."""
    with_torch = environment(tmp_path / "with-torch", wheel, "torch")
    (tmp_path / "torch").mkdir()  # a folder of the user's, which is not PyTorch
    (tmp_path / "train.py").write_text(TRAINING)
    tensortap = ("-m", "tensortap.commands")
    done = run(with_torch, *tensortap, "run", "-o", "kept", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "log of zero" in done.stderr

    done = run(with_torch, "-c", HOOKS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said["imported"]).isdisjoint(ON_REQUEST)
    *streaming, serving = said["refused"]
    assert all(
        each.endswith("grpcio, which is not installed: pip install 'tensortap[stream]'") for each in streaming
    )
    assert serving.endswith("pip install 'tensortap[serve]'")
    assert list((tmp_path / "dumps").glob("run_*"))
    assert list((tmp_path / "events").glob("events.out.tfevents.*"))
    assert list((tmp_path / "traces").glob("timeline-*"))

    done = run(
        with_torch, *tensortap, "run", "-o", "none", "--stream", "localhost:1", "train.py", cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install 'tensortap[stream]'" in done.stderr
    assert not (tmp_path / "none").exists()

    bare = environment(tmp_path / "without-extras", wheel)
    done = run(bare, *tensortap, "why", "kept", cwd=tmp_path)
    assert "log of zero" in done.stdout, done.stderr
    done = run(bare, *tensortap, "export", "kept", "--to", "tfdbg", "-o", "tfdbg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words, extra in (
        (("serve",), "serve"),
        (("serve", "--no-http"), "stream"),
        (("build",), "torch"),
        (("export", "kept", "--to", "parquet", "-o", "health.parquet"), "parquet"),
    ):
        done = run(bare, *tensortap, *words, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"pip install 'tensortap[{extra}]'" in done.stderr
    done = run(bare, *tensortap, "doctor", "--json", cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["streaming"]["fix"] == "pip install 'tensortap[stream]'"
    assert checks["debug server"]["text"] == "cannot be used without grpcio, starlette, uvicorn"
    assert checks["framework"]["fix"] == "pip install 'tensortap[torch]'"
    assert done.returncode == 0
