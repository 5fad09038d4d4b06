"""No kind of tensor harms the program, on any path, and what could not be read is not called good.

One process walks through all kinds; if it dies of one, another goes on with the next.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch_engine.subclasses.kinds import KINDS, READ

ROOT = Path(__file__).parents[3]
PATHS = ("plain", "pills", "values", "profile", "kept")
REFUSED = ("FeedError", "UnknownTensorError")


@functools.cache
def walked(interceptor):
    """What was found of every kind, a text for one that the process did not survive; and what it said meanwhile."""
    found, names, said = {}, list(KINDS), []
    while len(found) < len(names):
        process = subprocess.run(
            [sys.executable, "-m", "tests.torch_engine.subclasses.walk", names[len(found)]],
            cwd=ROOT,
            env={**os.environ, "TENSORTAP_INTERCEPTOR": interceptor},
            capture_output=True,
            text=True,
            timeout=280,
        )
        lines = [json.loads(line) for line in process.stdout.splitlines()]
        said.append(process.stderr)
        found |= {line["kind"]: line["found"] for line in lines if "kind" in line}
        if process.returncode:
            found[names[len(found)]] = f"exit code {process.returncode}: {process.stderr[-2000:]}"
    return found, "".join(said)


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_of_every_kind_on_every_path(interceptor, name):
    kind, found = KINDS[name], walked(interceptor)[0][name]
    assert isinstance(found, dict), found
    for path in PATHS:
        assert found[path] == found["expected"], (
            f"{path}: other results, or the class was asked something else"
        )
    assert found["state"] == kind.state
    assert found["faults"] == 0
    assert found["runs"] == 1
    if kind.state == READ and "nan" in found["expected"][0]:
        assert "x:0" in found["bad"]
        assert len(found["bad"]) >= 2, "what is made of it is bad, too"
    for path in ("fetch", "fetch_op", "feed"):
        assert found[path] in REFUSED or found[path] in ("float32", "complex64", "bfloat16")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.trains])
def test_as_a_parameter(interceptor, name):
    found = walked(interceptor)[0][name]
    assert isinstance(found, dict), found
    results, states = found["train"]["results"], found["train"]["states"]
    assert "Error" not in results[0][0]
    assert results == results[:1] * len(results)
    assert states == {"module/weight:0": READ, "gradients/module/weight:0": READ}


def test_nothing_of_ours_is_said(interceptor):
    said = walked(interceptor)[1]
    assert "tensortap" not in said
    assert "Error" not in said
