"""One function, one input it cannot take: the cause that is named, and the numbers in it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tensortap as tt
from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir

FUNCTIONS = {
    "log1p": ("log-of-zero", "−1", lambda: torch.log1p(row(-1.0))),
    "log2": ("log-of-zero", "1 of 3 elements is zero", lambda: torch.log2(row(0.0))),
    "log10": ("log-of-negative", "down to -2", lambda: torch.log10(row(-2.0))),
    "xlogy": ("log-of-zero", "1 of 3 elements is zero", lambda: torch.xlogy(row(1.0), row(0.0))),
    "logit": ("logit-at-the-edge", "0 and 1", lambda: torch.logit(row(0.0))),
    "logit outside": ("logit-out-of-range", "from 0 to 1", lambda: torch.logit(row(1.5))),
    "erfinv": ("erfinv-at-one", "±1", lambda: torch.erfinv(row(1.0))),
    "acosh": ("acosh-out-of-range", "reaches 0.25", lambda: torch.acosh(row(0.5))),
    "just above one": ("asin-out-of-range", "1.0000001", lambda: torch.asin(row(1.0000001))),
    "sqrt": ("sqrt-of-negative", "down to -4", lambda: torch.sqrt(row(-4.0))),
    "rsqrt": ("division-by-zero", "rsqrt of zero", lambda: torch.rsqrt(row(0.0))),
    "reciprocal": ("division-by-zero", "1 of 3 elements is zero", lambda: 1 / row(0.0)),
    "remainder": ("division-by-zero", "zero", lambda: row(1.0) % row(0.0)),
    "floor_divide": ("division-by-zero", "zero", lambda: row(1.0) // row(0.0)),
    "negative power": ("division-by-zero", "Zero to a negative power (-1.5)", lambda: row(0.0) ** -1.5),
    "fractional power": ("power-of-negative", "(0.5)", lambda: torch.pow(row(-2.0), 0.5)),
    "power of a number": ("overflow", "10 to the power of 50", lambda: 10.0 ** row(50.0)),
    "square": ("overflow", "a power of 2", lambda: row(1e30).square()),
    "exp": ("exp-overflow", "88.72", lambda: row(100.0).exp()),
    "exp2": ("exp2-overflow", "128", lambda: torch.exp2(row(200.0))),
    "cosh": ("cosh-overflow", "89.42", lambda: torch.cosh(row(100.0))),
    "exp in half precision": ("exp-overflow", "11.09", lambda: row(20.0).half().exp()),
    "prod": ("overflow", "a product of 50", lambda: torch.full((50,), 10.0).prod()),
    "sum": ("overflow", "65504", lambda: torch.full((4,), 60000.0).half().sum()),
    "norm": ("overflow", "a sum of squares", lambda: row(1e30).norm()),
    "convolution": ("overflow", "65504", lambda: F.conv1d(wide(), wide())),
    "batched product": ("overflow", "a matrix product", lambda: wide() @ wide().transpose(1, 2)),
    "scatter": (
        "overflow",
        "3e+38",
        lambda: torch.zeros(1).index_add(0, torch.tensor([0, 0]), torch.full((2,), 3e38)),
    ),
    "group norm": ("zero-variance", "eps", lambda: F.group_norm(torch.ones(2, 4, 3), 2, eps=0.0)),
    "rms norm": ("division-by-zero", "rsqrt of zero", lambda: F.rms_norm(torch.zeros(2, 4), (4,), eps=0.0)),
    "normalize": ("division-by-zero", "0/0", lambda: F.normalize(torch.zeros(2, 3), eps=0.0)),
    "ctc": ("impossible-alignment", "longer", lambda: F.ctc_loss(*too_long())),
    "weights of zero": (
        "mean-of-nothing",
        "weight of 0",
        lambda: F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 0]), weight=torch.tensor([0.0, 1, 1])),
    ),
}
"""Kind of the cause, words of it, and the call."""


def row(value):
    return torch.tensor([0.25, value, 1.0])


def wide():
    return torch.full((1, 2, 64), 200.0).half()


def too_long():
    scores = torch.randn(3, 1, 5).log_softmax(-1)
    return scores, torch.tensor([[1, 1, 1, 1]]), torch.tensor([3]), torch.tensor([4])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_cause_is_named(name, tmp_path):
    kind, says, function = FUNCTIONS[name]
    watch = tt.WatchOptions(["DebugNumericSummary"], keep_bad=8)
    session = tt.torch.Session(lambda: {"out": function()})
    with tt.DumpingDebugWrapperSession(session, tmp_path, watch_fn=lambda fetches, feeds: watch) as watched:
        assert not torch.isfinite(watched.run()["out"]).all()
    cause = search_session(SessionDir(tmp_path)).first_bad.cause
    assert (cause.kind, says in cause.sentence) == (kind, True), cause.sentence
