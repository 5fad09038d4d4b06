"""State to a file and back: weights, optimizer, scheduler, step, and every random generator."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.errors import CheckpointError


def program(width=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step():
        x = torch.randn(6, 3) + random.random() + float(np.random.rand())
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return tt.torch.Session(step)


def test_a_restored_program_goes_on_exactly_as_the_original(tmp_path):
    first = program()
    for _ in range(3):
        first.run()
    first.save_state(tmp_path / "state")
    expected = [first.run("loss") for _ in range(4)]

    second = program()
    second.run()
    second.load_state(tmp_path / "state")
    assert second.global_step == 3
    assert [second.run("loss") for _ in range(4)] == expected


def test_the_scheduler_of_the_step_is_found_and_saved(tmp_path):
    session = program()
    assert list(session.program.extras) == ["scheduler"]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing", "other"])
def test_a_damaged_file_is_a_clear_error_and_changes_nothing(tmp_path, damage):
    session = program()
    path = tmp_path / "state"
    session.save_state(path)
    session.run()
    before = session.run("model/0/weight:0")
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-300])
    elif damage == "garbage":
        path.write_bytes(b"not a checkpoint")
    elif damage == "missing":
        path.unlink()
    else:
        torch.save({"weights": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="state"):
        session.load_state(path)
    np.testing.assert_array_equal(session.run("model/0/weight:0"), before)
    assert session.global_step == 1


def test_a_checkpoint_of_another_model_names_the_entry_and_both_shapes(tmp_path):
    program(width=5).save_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"'0\.weight' has shape \[4, 3\] here, \[5, 3\] in"):
        program(width=4).load_state(tmp_path / "state")
    other = tt.torch.Session(lambda: None, modules={"net": nn.Linear(1, 1)})
    with pytest.raises(CheckpointError, match=r"lacks: \['net'\]"):
        other.load_state(tmp_path / "state")


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"format": "tensortap-torch-1", "modules": Evil()}, tmp_path / "state")
    with pytest.raises(CheckpointError, match="Cannot read"):
        program().load_state(tmp_path / "state")


def test_a_full_disk_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="/dev/full"):
        program().save_state("/dev/full")
