"""Samples that workers of a data loader make: which one was bad, and what made it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, default_collate

from tensortap.engines.torch.follow.bad_samples import BadSamples, look_in_workers
from tests.patience import finished


class Rows(Dataset):
    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 16

    def __getitem__(self, index):
        row = np.full(4, index, np.float32)
        if index == self.bad:
            row[2] = np.nan
        return {"x": row, "missing": torch.tensor([torch.inf])}  # what is bad in all of them


class AtOnce(Rows):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(8):
            yield torch.tensor([number / (number - 5 or torch.nan)])


def spread(samples):
    return default_collate(samples)["x"] - torch.inf


def line_with(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


PLANTED = {
    "rows": (lambda: DataLoader(Rows(9), 4, num_workers=1), "9", "Rows.__getitem__", "return {"),
    "one by one": (lambda: DataLoader(Rows(3), None, num_workers=1), "3", "Rows.__getitem__", "return {"),
    "at once": (lambda: DataLoader(AtOnce(9), 4, num_workers=1), "9", "AtOnce.__getitems__", "return [self"),
    "a part": (
        lambda: DataLoader(ConcatDataset([Rows(), Subset(Rows(9), [1, 9])]), 6, num_workers=1),
        "17",
        "Rows.__getitem__",
        "return {",
    ),
    "stream": (
        lambda: DataLoader(Stream(), 8, num_workers=1),
        "5 from this worker",
        "Stream.__iter__",
        "yield torch",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_worker_tells_which_sample_was_bad_and_what_returned_it(tmp_path, name):
    make, sample, maker, line = PLANTED[name]
    plain = list(make())
    look_in_workers(tmp_path)
    told = BadSamples(tmp_path)
    torch.testing.assert_close(list(make()), plain, rtol=0, atol=0, equal_nan=True)
    (bad,) = [each for each in told.recent() if each.nan]
    assert (bad.sample, bad.more, bad.nan, bad.pos_inf) == (sample, 0, 1, 0)
    assert bad.maker == maker
    assert bad.line == f"{__file__}:{line_with(line)}"


def test_samples_that_are_good_and_a_batch_that_is_not(tmp_path):
    look_in_workers(tmp_path)
    told = BadSamples(tmp_path)
    clean = [{"x": torch.ones(2)}] * 4
    list(DataLoader(clean, 4, num_workers=1, collate_fn=spread))
    (bad,) = told.recent()
    assert (bad.sample, bad.maker, bad.neg_inf) == ("", "spread", 8)
    assert bad.line == f"{__file__}:{line_with('- torch.inf')}"


def test_what_is_always_missing_is_told_a_few_times_and_forgotten(tmp_path):
    look_in_workers(tmp_path)
    told = BadSamples(tmp_path)
    data = torch.utils.data.TensorDataset(torch.full((200, 1), torch.nan))
    assert len(list(DataLoader(data, 1, num_workers=1))) == 200
    assert len(told.recent()) == 16
    assert len((tmp_path / "samples").glob("*").__next__().read_text().splitlines()) == 32
    for _ in range(300):
        told.recent()
    assert told.recent() == ()


PROGRAM = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Ratios(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        size = float(index != 13)
        return torch.full((4,), size) / size, torch.full((2,), torch.nan)

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, missing in DataLoader(Ratios(), 4, num_workers=1, multiprocessing_context=sys.argv[1]):
        optimizer.zero_grad()
        (model(x).mean() + missing.nan_to_num().sum()).backward()
        optimizer.step()
    print(torch.rand(1).item(), model.bias.item())
"""


def test_the_answer_names_the_sample_and_the_line_of_the_data_set(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = finished([sys.executable, "train.py", "fork"], 120, cwd=tmp_path)
    line = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if "return torch" in text)
    tensortap = [sys.executable, "-m", "tensortap"]
    for start in ("fork", "spawn"):
        watched = finished([*tensortap, "run", "-q", "-o", start, "train.py", start], 120, cwd=tmp_path)
        assert watched.stdout == plain.stdout
        answer = json.loads(finished([*tensortap, "why", start, "--json"], 60, cwd=tmp_path).stdout)
        bad = answer["first_bad"]
        assert (bad["cause_kind"], bad["step"]) == ("bad-input", 3)
        assert f"sample 13 was bad when Ratios.__getitem__ ({tmp_path}/train.py:{line})" in bad["cause"]
