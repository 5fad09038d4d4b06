"""Programs as people have them on disk, unchanged, through `tensortap run` and `tensortap why`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

SCRIPTS = Path(__file__).parent / "scripts"


TENSORTAP = [sys.executable, "-m", "tensortap"]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--standalone",
    "-m",
    "tensortap",
]


def answer(script, root, tensortap=TENSORTAP):
    """What is said about a program: the exit code of `why` and its first bad value."""
    run = [*tensortap, "run", "-o", root, SCRIPTS / script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=patient(200), check=True)
    said = subprocess.run(
        [*TENSORTAP, "why", root, "--json"], capture_output=True, text=True, timeout=patient(60)
    )
    found = json.loads(said.stdout)["first_bad"]
    if found is not None:
        assert found["node"] in done.stderr
    return said.returncode, found


@pytest.mark.parametrize(
    ("script", "step", "phase", "node", "module", "kind"),
    [
        ("classify.py", 1, "forward", "loss_function/log", "loss_function", "log-of-zero"),
        ("embed.py", 2, "backward", "gradients/sqrt_1/div", None, "sqrt-gradient-at-zero"),
        ("resume.py", 0, "forward", "copy__6", None, "bad-input"),
    ],
)
def test_a_script_with_a_fault(script, step, phase, node, module, kind, tmp_path):
    code, found = answer(script, tmp_path / "run")
    assert code == 1
    assert (found["step"], found["rank"], found["phase"]) == (step, 0, phase)
    assert (found["node"], found["module"], found["cause_kind"]) == (node, module, kind)
    if "# here" in (SCRIPTS / script).read_text():
        assert found["source"]["file"] == str(SCRIPTS / script)
        assert found["source"]["text"].endswith("# here")


def test_a_healthy_script(tmp_path):
    assert answer("translate.py", tmp_path / "run") == (0, None)


@pytest.mark.skipif(
    not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="set TENSORTAP_SLOW_TESTS=1 to run slow tests"
)
def test_the_rank_with_the_fault_is_named_though_all_go_bad(tmp_path):
    code, found = answer("parallel.py", tmp_path / "run", TORCHRUN)
    assert code == 1
    assert (found["step"], found["rank"], found["phase"]) == (2, 1, "forward")
    assert (found["node"], found["cause_kind"]) == ("nll_loss_forward", "mean-of-nothing")
    assert found["source"]["text"].endswith("# here")
