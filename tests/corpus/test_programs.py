"""Programs as strangers write them, through `tensortap run`: the answer must be right in everything, or there is none.

Each program is a file. Those with a fault say the answer in their first lines, and mark the line at fault with `# here`
and the line that called it, where it matters, with `# from`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensortap.analyze.checks import check_session
from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir

PROGRAMS = Path(__file__).parent / "programs"
FAULTY = sorted((PROGRAMS / "faulty").glob("*.py"))
HEALTHY = sorted((PROGRAMS / "healthy").glob("*.py"))

pytestmark = pytest.mark.parametrize("interceptor", ["native", "dispatch"])


@pytest.fixture(scope="module")
def starter():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.corpus.starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        yield process


@pytest.fixture
def report_of(starter, interceptor, tmp_path):
    """What is found in a program: the report, and what was said while it ran."""

    def run(program, *options):
        request = {
            "program": str(program),
            "root": str(tmp_path / "run"),
            "log": str(tmp_path / "log"),
            "interceptor": interceptor,
            "options": options,
        }
        starter.stdin.write(json.dumps(request) + "\n")
        starter.stdin.flush()
        status = json.loads(starter.stdout.readline())["status"]
        return search_session(SessionDir(tmp_path / "run")), status, (tmp_path / "log").read_text()

    return run


def sure_findings(root):
    """What is held to be silently wrong: nothing is, in programs whose fault is a bad value."""
    return [(each.key, each.sentence) for each in check_session(SessionDir(root)) if each.is_sure]


def marked(program, mark):
    """Number of the line that ends in a mark, None if there is none."""
    lines = program.read_text().splitlines()
    return next((number for number, text in enumerate(lines, 1) if text.endswith(mark)), None)


@pytest.mark.parametrize("program", FAULTY, ids=lambda path: path.stem)
def test_the_answer_is_right_in_everything(program, report_of, tmp_path):
    text = program.read_text()
    node, op_type, phase, when, module, kind = re.search(r"^answer: (.*)$", text, re.M)[1].split(" | ")
    report, _, said = report_of(program)
    found = report.first_bad
    assert found is not None, said
    assert (found.node.name, found.node.op_type, found.phase) == (node, op_type, phase)
    assert f"{found.module}" == module.removeprefix("module ")
    assert when in (f"step {found.step}", f"run {found.run}")
    assert found.cause.kind == kind, found.cause.sentence
    assert (found.source.file, found.source.line) == (str(program), marked(program, "# here"))
    if marked(program, "# from") is not None:
        assert found.node.stack[-2].line == marked(program, "# from")
    assert all(frame.file == str(program) for frame in found.node.stack)
    told = " ".join((found.cause.sentence, *found.cause.proof, found.origin.sentence if found.origin else ""))
    for words in re.findall(r"^says: (.*)$", text, re.M):
        assert words in told
    for words in re.findall(r"^reached: (.*)$", text, re.M):
        assert words in found.reached
    assert node in said
    assert not sure_findings(tmp_path / "run")


@pytest.mark.parametrize("program", HEALTHY, ids=lambda path: path.stem)
def test_nothing_is_said_of_a_healthy_program(program, report_of, tmp_path):
    report, status, said = report_of(program)
    assert status == 0, said
    assert report.first_bad is None, report.first_bad.cause.sentence
    assert "first bad value" not in said
    assert not sure_findings(tmp_path / "run")
    assert report.runs > 0


@pytest.mark.parametrize("program", HEALTHY[::4], ids=lambda path: path.stem)
def test_a_healthy_program_under_a_budget(program, report_of):
    report, status, said = report_of(program, "--budget", "1.1")
    assert status == 0, said
    assert report.first_bad is None, report.first_bad.cause.sentence
    assert "is NaN or infinite" not in said


@pytest.mark.parametrize("program", FAULTY[::4], ids=lambda path: path.stem)
def test_a_fault_under_a_budget_is_noticed_and_named_if_its_run_was_watched(program, report_of):
    node = re.search(r"^answer: (.*?) \| ", program.read_text(), re.M)[1]
    report, _, said = report_of(program, "--budget", "1.1")
    if report.first_bad is not None and report.first_bad.node.name == node:
        assert node in said
    else:
        assert "was not watched" in said


BAD_BATCH = PROGRAMS / "updates" / "bad_batch.py"


def test_a_bad_update_is_applied_unless_something_is_done_about_it(report_of):
    _, status, said = report_of(BAD_BATCH)
    assert status == 0
    assert "0 of 5 finite, 5 updates" in said


def test_stop_ends_the_program_before_the_update(report_of):
    report, status, said = report_of(BAD_BATCH, "--stop")
    assert status == 1
    assert "5 of 5 finite, 2 updates" in said
    assert said.count("first bad value") == 1
    assert "because of --stop" in said
    assert report.first_bad.step == 2


def test_skip_bad_leaves_the_update_out_and_goes_on(report_of):
    report, status, said = report_of(BAD_BATCH, "--skip-bad")
    assert status == 0
    assert "5 of 5 finite, 4 updates" in said
    assert "1 update left out" in " ".join(said.split())
    assert (report.first_bad.step, len(report.later_runs)) == (2, 0)


def test_there_are_enough_of_them(interceptor):
    assert len(FAULTY) + len(HEALTHY) >= 40
    assert abs(len(FAULTY) - len(HEALTHY)) <= 10
