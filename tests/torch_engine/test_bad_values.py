"""The values around a bad one are recorded the moment it is made, with either interceptor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensortap as tt
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.reader.session_dir import SessionDir

pytestmark = pytest.mark.usefixtures("interceptor")


def kept(session, root, *runs, keep_bad=8):
    """The whole values that were recorded of each run, by tensor name."""
    watch = tt.WatchOptions(["DebugNumericSummary"], keep_bad=keep_bad)
    with tt.DumpingDebugWrapperSession(session, root, watch_fn=lambda fetches, feeds: watch) as watched:
        for feeds in runs:
            watched.run(None, feeds)
    assert getattr(session, "faults", 0) == 0
    found = []
    for run in SessionDir(root).runs:
        dump = DebugDumpDir(str(run.path))
        found.append(
            {
                f"{datum.node_name}:{datum.output_slot}": datum.get_tensor()
                for datum in dump.dumped_tensor_data
                if datum.debug_op == "DebugIdentity"
            }
        )
    return found


def test_inputs_and_output_of_the_op_that_makes_the_first_nan(tmp_path):
    def step(x):
        scaled = x - 1
        return {"loss": (scaled.log() * 2).sum()}

    (values,) = kept(tt.torch.Session(step), tmp_path / "d", {"x": torch.tensor([0.5, 3.0])})
    assert sorted(values) == ["log:0", "sub:0"], "neither what was good before nor what only passes it on"
    np.testing.assert_array_equal(values["sub:0"], np.float32([-0.5, 2.0]))
    assert np.isnan(values["log:0"][0])


def test_a_backward_op(tmp_path):
    layer = nn.Linear(2, 2)

    def step(x):
        (layer(x) * 0).sqrt().sum().backward()

    (values,) = kept(
        tt.torch.Session(step, modules={"layer": layer}), tmp_path / "d", {"x": torch.ones(1, 2)}
    )
    assert "gradients/sqrt/div:0" in values
    assert np.isinf(values["gradients/sqrt/div:0"]).all()
    assert not any(name.startswith("gradients/layer/") for name in values)


def test_an_op_that_writes_in_place_shows_what_is_left(tmp_path):
    def step(x, y):
        x = x + 0
        x.div_(y)
        return {"x": x}

    feeds = {"x": torch.ones(2), "y": torch.tensor([1.0, 0.0])}
    (values,) = kept(tt.torch.Session(step), tmp_path / "d", feeds)
    assert sorted(values) == ["div_:0", "y:0"], "the old value of x is gone"
    np.testing.assert_array_equal(values["div_:0"], np.float32([1, np.inf]))


def test_bad_data_and_bad_weights_are_shown_themselves(tmp_path):
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.bias[0] = float("nan")

    def step(x):
        return {"y": layer(x)}

    feeds = {"x": torch.tensor([[1.0, float("inf")]])}
    (values,) = kept(tt.torch.Session(step, modules={"layer": layer}), tmp_path / "d", feeds)
    assert {"x:0", "layer/bias:0"} <= set(values)


def test_what_happens_in_every_run_is_shown_once_and_does_not_hide_what_is_new(tmp_path):
    def step(x, mask):
        scores = x.masked_fill(mask, float("-inf"))
        return {"y": F.softmax(scores, -1)}

    healthy = {"x": torch.ones(2, 2), "mask": torch.tensor([[False, True], [False, False]])}
    bad = {"x": torch.ones(2, 2), "mask": torch.tensor([[True, True], [False, False]])}
    runs = kept(tt.torch.Session(step), tmp_path / "d", healthy, healthy, bad, bad, keep_bad=1)
    assert (
        sorted(runs[0]) == ["masked_fill:0", "masked_fill/const:0", "mask:0", "x:0"]
        or "masked_fill:0" in runs[0]
    )
    assert runs[1] == {}
    assert {"masked_fill:0", "softmax:0"} <= set(runs[2]), "a NaN that comes of infinities was made here"
    assert runs[3] == {}


def test_what_happens_in_every_run_in_other_shapes_does_not_use_up_the_limit(tmp_path):
    """Masks of sentences of many lengths: every length is another call of the same node."""

    def step(x, shift):
        for _ in range(4):
            mask = torch.ones(len(x), len(x)).triu(1).bool()
            scores = torch.outer(x, x).masked_fill(mask, float("-inf"))
            x = F.softmax(scores, -1) @ x
        return {"y": (x - shift).log()}

    lengths = [{"x": torch.ones(length), "shift": torch.zeros(1)} for length in range(2, 9)]
    bad = {"x": torch.ones(12), "shift": torch.full((1,), 3.0)}
    runs = kept(tt.torch.Session(step), tmp_path / "d", *lengths, bad, keep_bad=2)
    assert sum("masked_fill" in name and "const" not in name for name in runs[0]) == 2, (
        "two of four, as asked"
    )
    assert runs[1:-1] == [{}] * 6
    assert "log:0" in runs[-1]
    assert "sub:0" in runs[-1]


def test_no_more_than_asked_for(tmp_path):
    def step(x):
        return {str(number): (x - number).log() for number in range(5)}

    (values,) = kept(tt.torch.Session(step), tmp_path / "d", {"x": torch.zeros(3)}, keep_bad=2)
    assert sum("log" in name for name in values) == 2
    (values,) = kept(tt.torch.Session(step), tmp_path / "e", {"x": torch.zeros(3)}, keep_bad=0)
    assert values == {}


def test_views_between_do_not_make_a_new_origin(tmp_path):
    def step(x):
        bad = x.log().reshape(4, 1).t()
        return {"y": (bad + 1).exp()}

    (values,) = kept(tt.torch.Session(step), tmp_path / "d", {"x": torch.tensor([-1.0, 1, 2, 3])})
    assert sorted(values) == ["log:0", "x:0"]


def test_training_is_the_same_and_nothing_is_kept_from_being_reused(tmp_path):
    def train(root=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss}

        session = tt.torch.Session(step, modules={"model": model}, optimizers={"adam": optimizer})
        batches = [{"x": torch.randn(5, 4)} for _ in range(5)]
        if root is None:
            for batch in batches:
                session.run(None, batch)
        else:
            kept(session, root, *batches)
        return [parameter.detach().clone() for parameter in model.parameters()]

    for plain, watched in zip(train(), train(tmp_path / "d"), strict=True):
        assert torch.equal(plain, watched)


def test_a_number_of_nodes_is_a_number():
    with pytest.raises(ValueError, match="keep_bad"):
        tt.WatchOptions("DebugNumericSummary", keep_bad=-1)
    assert "keep_bad=3" in repr(tt.WatchOptions("DebugNumericSummary", keep_bad=3))
