"""Programs that are silently wrong, and healthy ones, through `tensortap run`: the first are named, the others are not.

Each program is a file. A bad one says in its first lines what is to be found, as `finding: kind | subject | certainty |
step`: the step by which it can be known, ten more being allowed. The line ends in `# here`. `also:` names kinds that
follow from it and may be told besides. A healthy one may be the `twin:` of a kind.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensortap.analyze.checks import RULES, check, check_session, told
from tensortap.analyze.checks.evidence import Evidence, evidence_of
from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.corpus.healthy import SLOW

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*/*.py"))
HEALTHY = sorted((HERE / "healthy").glob("*.py"))
ALLOWED = 10
"""Steps in which a finding has to be there once it can be known."""

MOST_LIKELY = len(HEALTHY) // 20
"""Findings that are only likely, in all healthy programs together."""


def said_of(program, word):
    return re.findall(rf"^{word}: (.*)$", program.read_text(), re.M)


def kind_of(program):
    return said_of(program, "finding")[0].split(" | ")[0]


def is_chosen(program):
    return SLOW or not said_of(program, "slow")


@pytest.fixture(scope="module")
def starter():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.corpus.starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[2],
    ) as process:
        yield process


@pytest.fixture
def session_of(starter, tmp_path):
    """What is recorded of a program, and what was said while it ran."""

    def run(program, interceptor="native"):
        request = {
            "program": str(program),
            "root": str(tmp_path / "run"),
            "log": str(tmp_path / "log"),
            "interceptor": interceptor,
        }
        starter.stdin.write(json.dumps(request) + "\n")
        starter.stdin.flush()
        status = json.loads(starter.stdout.readline())["status"]
        return SessionDir(tmp_path / "run"), status, (tmp_path / "log").read_text()

    return run


def found_by(session, step):
    """What is found with nothing but what was recorded until a step."""
    return {
        (finding.kind, finding.subject, finding.source and finding.source.line)
        for evidence in evidence_of(session)
        for finding in check(
            Evidence(
                evidence.task,
                [update for update in evidence.updates if update.step <= step],
                [run for run in evidence.runs if run.info.global_step <= step],
            )
        )
    }


@pytest.mark.parametrize("program", [*filter(is_chosen, BAD)], ids=lambda path: path.stem)
def test_what_is_silently_wrong_is_named(program, session_of):
    session, status, said = session_of(program)
    assert status == 0, said
    ((kind, subject, certainty, step),) = (each.split(" | ") for each in said_of(program, "finding"))
    lines = program.read_text().splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.endswith("# here")), None)
    findings = check_session(session)
    found = [each for each in findings if each.kind == kind]
    assert found, [each.key for each in findings]
    assert found[0].subject == subject
    assert found[0].source is not None
    assert (found[0].source.file, found[0].source.line) == (str(program), line)
    assert found[0].certainty == certainty
    known_by = int(step.removeprefix("step ")) + ALLOWED
    assert found[0].step <= known_by
    assert (kind, subject, line) in found_by(session, known_by)
    assert found[0].evidence
    assert {each.kind for each in findings} <= {kind, *said_of(program, "also")}
    assert kind in said


@pytest.fixture(scope="module")
def likely():
    """Findings in healthy programs that are only likely, by program."""
    return {}


@pytest.mark.parametrize("program", [*filter(is_chosen, HEALTHY)], ids=lambda path: path.stem)
def test_nothing_is_sure_in_a_healthy_program(program, session_of, likely):
    session, status, said = session_of(program)
    assert status == 0, said
    findings = check_session(session)
    assert not [(each.key, each.sentence) for each in findings if each.is_sure]
    likely[program.stem] = [each.key for each in told(findings)]
    assert search_session(session).first_bad is None


def test_hardly_anything_is_likely_in_healthy_programs(likely):
    found = [f"{program}: {key}" for program, keys in likely.items() for key in keys]
    assert len(found) <= MOST_LIKELY, found


@pytest.mark.parametrize("program", BAD[::9], ids=lambda path: path.stem)
def test_the_other_interceptor_tells_the_same(program, session_of):
    session, status, said = session_of(program, "dispatch")
    assert status == 0, said
    assert kind_of(program) in {each.kind for each in check_session(session)}


def test_every_kind_has_two_bad_programs_and_a_healthy_twin():
    kinds = [kind_of(program) for program in BAD]
    twins = {twin for program in HEALTHY for twin in said_of(program, "twin")}
    assert {kind: kinds.count(kind) for kind in RULES if kinds.count(kind) < 2} == {}
    assert set(RULES) - twins == set()
    assert set(kinds) == set(RULES)
    assert len(HEALTHY) >= 40
