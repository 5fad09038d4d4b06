"""Damaged directories: an answer or one line, never a traceback."""

from __future__ import annotations

import random
import shutil

import pytest

from tensortap.commands import main
from tests.analyze.planted import PLANTS, train

COMMANDS = (
    ["why"],
    ["why", "-r", "1"],
    ["health"],
    ["find", "max > 1"],
    ["source"],
    ["source", "planted.py", "-a"],
    ["node", "model/sqrt"],
    ["inputs", "mean", "-R"],
    ["history", "pow:0"],
    ["show", "pow:0"],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    case = next(case for case in PLANTS if case.name == "sqrt_of_negative")
    return train(case, tmp_path_factory.mktemp("damage") / "dumps")


@pytest.mark.parametrize("seed", range(12))
def test_no_command_breaks(whole, tmp_path, capsys, seed):
    chance = random.Random(seed)
    broken = tmp_path / "dumps"
    shutil.copytree(whole, broken)
    files = sorted(path for path in broken.rglob("*") if path.is_file())
    for path in chance.sample(files, 3):
        content = bytearray(path.read_bytes())
        what = chance.choice(["gone", "cut", "changed"])
        if what == "gone":
            path.unlink()
            continue
        if what == "cut":
            del content[chance.randrange(len(content)) :]
        else:
            for _ in range(10):
                content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
    for name, *rest in COMMANDS:
        code = main([name, str(broken), *rest])
        assert code in (0, 1, 2)
        if code == 2:
            assert "Traceback" not in capsys.readouterr().err
