"""The soak, for a few programs: they agree with themselves, and what is wrong is found."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.patience import finished

TOOLS = Path(__file__).parents[2] / "tools"
SMALL = ["28", "41"]
"""Files of one program each: one with a planted bad value, one that recomputes and ends by `sys.exit`."""


def test_the_same_seed_makes_the_same_programs_and_all_of_them_compile():
    sys.path.insert(0, str(TOOLS))
    try:
        from soak_programs import draw_file
    finally:
        sys.path.remove(str(TOOLS))
    files = [draw_file(number) for number in range(150)]
    assert [draw_file(number).source for number in range(150)] == [drawn.source for drawn in files]
    for drawn in files:
        compile(drawn.source, "program.py", "exec")
        if drawn.planted_line is not None:
            assert "# planted" in drawn.source.splitlines()[drawn.planted_line - 1]
    assert {"good", "bad"} == {drawn.expects for drawn in files}
    assert len({part for drawn in files for parts in drawn.parts for part in parts.split("+")}) > 70


def test_watched_programs_do_what_they_do_alone(tmp_path):
    soak = [sys.executable, TOOLS / "soak.py", "--keep", tmp_path / "failures", "--only"]
    done = finished([*soak, *SMALL], seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no differences" in done.stdout


def test_a_difference_is_kept_with_the_command_that_repeats_it(tmp_path):
    """A tensortap that changes what the program prints: here, one that is not there."""
    fake = tmp_path / "fake" / "tensortap"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "__main__.py").write_text("print('not your program')")
    soak = [sys.executable, TOOLS / "soak.py", "--keep", tmp_path / "failures", "--only", SMALL[0]]
    done = finished(soak, seconds=60, env={"PYTHONPATH": str(tmp_path / "fake"), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 1
    (kept,) = (tmp_path / "failures").iterdir()
    assert {"program.py", "command", "plain.out", "watched.err"} <= {path.name for path in kept.iterdir()}
    assert f"--only {SMALL[0]}" in (kept / "command").read_text()
