"""`tensortap check` and `explain`, and what `run` says of what is silently wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensortap.analyze.checks import GROUPS, RULES
from tensortap.commands import main
from tensortap.report.check import rules_table
from tests.patience import patient

PROGRAM = """
import time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    x = torch.randn(8, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
"""


def run(folder, *options):
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tensortap", "run", "-o", "dumps", *options, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patient(120))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the dumps of a program that never clears its gradients, and what was said about it."""
    folder = tmp_path_factory.mktemp("check")
    return folder, run(folder)


@pytest.fixture
def dumps(recorded, monkeypatch):
    monkeypatch.chdir(recorded[0])
    return "dumps"


def test_run_says_once_what_is_sure_and_lists_it_at_the_end(recorded):
    _, done = recorded
    assert done.returncode == 0
    listed = done.stderr[done.stderr.index("✗ gradients-not-cleared  optimizer since step 1") :]
    assert "train.py:11" in listed
    assert "try      Call zero_grad()" in listed
    assert "wrong    1 sure: gradients-not-cleared, optimizer" in listed
    assert done.stderr.count("tensortap: gradients-not-cleared at step 1: train.py:11:") <= 1


def test_what_is_sure_is_said_while_the_program_trains(tmp_path):
    """The program goes on until somebody has read the finding, and prints something after it."""
    program = (
        PROGRAM.replace("range(14)", "range(100_000)")
        + "    if os.path.exists('said'): break\nprint('the end', file=sys.stderr)\n"
    )
    (tmp_path / "train.py").write_text("import os, sys\n" + program)
    command = [sys.executable, "-m", "tensortap", "run", "-o", "dumps", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(patient(60), process.kill)
        watchdog.start()
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("tensortap: gradients-not-cleared at step 1: train.py:12:"):
                (tmp_path / "said").touch()
        watchdog.cancel()
    assert "the end\n" in said, said


def test_check_tells_what_it_cannot_know(dumps, tmp_path, capsys):
    """As a server has it: runs that were streamed to it, and no updates."""
    shutil.copytree(dumps, tmp_path / "streamed")
    shutil.rmtree(tmp_path / "streamed" / "updates")
    assert main(["check", str(tmp_path / "streamed")]) == 0
    told = capsys.readouterr()
    assert told.out == "Nothing is known to be wrong.\n"
    assert "kinds nothing is known, because no updates were recorded here: cleared-before-step, " in told.err
    assert main(["check", str(tmp_path / "streamed"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["unknown"]["gradients-not-cleared"] == ["updates"]
    assert "softmax-twice" not in answer["unknown"]
    assert (answer["updates"], answer["runs"] > 10, answer["trains"], answer["failed"]) == (0, True, True, [])
    assert main(["check", dumps, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unknown"] == {}


def test_check_prints_findings_for_scripts(dumps, capsys):
    assert main(["check", dumps, "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert list(finding) == [
        *("kind", "subject", "step", "file", "line", "certainty", "sentence", "evidence", "try")
    ]
    assert (finding["kind"], finding["subject"], finding["line"]) == (
        "gradients-not-cleared",
        "optimizer",
        11,
    )
    assert finding["evidence"]["parameters whose gradient was not cleared"] == 4


def test_what_is_accepted_is_not_told(dumps, capsys, monkeypatch, recorded):
    assert main(["check", dumps, "-x", "gradients-not-cleared:opt*"]) == 0
    assert capsys.readouterr().out == "Nothing is known to be wrong.\n"
    project = recorded[0] / "pyproject.toml"
    project.write_text('[tool.tensortap]\naccept = ["gradients-not-cleared:optimizer"]\n')
    try:
        assert main(["check", dumps]) == 0
        project.write_text("[tool.tensortap]\naccept = 3\n")
        assert main(["check", dumps]) == 2
        assert "is a list of texts" in capsys.readouterr().err
    finally:
        project.unlink()


def test_run_accepts_too_and_need_not_look_at_all(tmp_path):
    done = run(tmp_path, "-x", "gradients-not-cleared:optimizer")
    assert "gradients-not-cleared" not in done.stderr
    assert (tmp_path / "dumps" / "updates").is_dir()
    (tmp_path / "other").mkdir()
    done = run(tmp_path / "other", "--no-check")
    assert "gradients-not-cleared" not in done.stderr
    assert not (tmp_path / "other" / "dumps" / "updates").exists()


def test_an_unknown_kind_gets_the_nearest_suggestion(dumps, capsys):
    assert main(["check", dumps, "-x", "gradient-not-cleared:x"]) == 2
    assert "Did you mean 'gradients-not-cleared'?" in capsys.readouterr().err
    assert main(["explain", "steped-twice"]) == 2
    assert "Did you mean 'stepped-twice'?" in capsys.readouterr().err


def test_explain_tells_rule_example_and_remedy(capsys):
    assert main(["explain", "cleared-before-step"]) == 0
    text = capsys.readouterr().out
    assert "optimizer.zero_grad()\n           optimizer.step()" in text
    assert "try      Clear gradients before the backward pass" in text
    assert main(["explain", "--json"]) == 0
    assert {each["kind"] for each in json.loads(capsys.readouterr().out)["rules"]} == set(RULES)


def test_health_tells_of_it_below_the_runs(dumps, capsys):
    assert main(["health", dumps]) == 0
    assert "\nwrong: gradients-not-cleared at step 1: " in capsys.readouterr().out
    assert main(["health", dumps, "--json"]) == 0
    assert [each["kind"] for each in json.loads(capsys.readouterr().out)["findings"]] == [
        "gradients-not-cleared"
    ]


def test_a_growing_directory_is_checked_as_far_as_it_is_written(recorded, tmp_path, monkeypatch, capsys):
    grown = tmp_path / "grown"
    shutil.copytree(recorded[0] / "dumps", grown)
    path = grown / "updates" / "task_0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    monkeypatch.chdir(tmp_path)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert main(["check", str(grown)]) == 0
    path.write_bytes(b"".join(lines[:4]) + lines[4][:40])
    assert main(["check", str(grown)]) == 1


def test_the_documentation_has_every_kind_as_its_rule_says():
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    table = page[page.index("## Kinds\n") + len("## Kinds\n") :].strip()
    wanted = rules_table().strip()
    assert table == wanted, (
        "docs/check.md: everything after `## Kinds` is `tensortap.report.check.rules_table()`"
    )


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_rule_explains_itself(rule):
    assert sum(rule in rules for rules in GROUPS.values()) == 1
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.kind)
    assert rule.certainty in ("sure", "likely")
    assert all([rule.says.endswith("."), rule.example, rule.shows, rule.remedy.endswith(".")])
    assert set(rule.hides) <= set(RULES)
