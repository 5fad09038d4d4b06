"""Parameters that hold NaN or infinities do not take the place of a good checkpoint without a word."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensortap as tt
from tensortap.errors import AbortedError, CheckpointError, NanLossDuringTrainingError

torch = pytest.importorskip("torch")


class Odd(torch.Tensor):
    """Refuses to be looked at."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "aminmax" in str(function):
            raise RuntimeError("not here")
        return super().__torch_function__(function, types, args, kwargs or {})


class Model(torch.nn.Module):
    """One weight; `spoil` is done to the model by the run of that number."""

    def __init__(self, spoil: dict[int, Callable[[Any], None]] | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("best_loss", torch.tensor(float("inf")))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("mean", torch.zeros(3))
        self.spoil, self.runs = spoil or {}, 0

    def session(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        self.optimizer = optimizer

        def step(x: Any) -> dict[str, Any]:
            self.runs += 1
            optimizer.zero_grad()
            loss = (self.weight * x).square().sum()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                self.spoil.get(self.runs, lambda model: None)(self)
            return {"loss": loss}

        return tt.torch.Session(step, modules={"model": self}, optimizers={"adam": optimizer})


def train(
    model: Model, directory: Path, hooks: list[Any] | None = None, runs: int = 3, **options: Any
) -> Any:
    saver = tt.CheckpointSaverHook(directory, save_steps=1, saver=tt.Saver(), **options)
    with tt.MonitoredSession(model.session(), hooks=[*(hooks or ()), saver]) as session:
        for _ in range(runs):
            session.run(feed_dict={"x": torch.ones(3)})
    return saved(directory)


def saved(directory: Path) -> list[int]:
    return sorted(int(file.name.rpartition("-")[2]) for file in directory.glob("model.ckpt-*"))


def nan(name: str) -> Callable[[Any], None]:
    return lambda model: getattr(model, name)[:1].fill_(float("nan"))


def infinite(name: str) -> Callable[[Any], None]:
    return lambda model: getattr(model, name)[:1].fill_(float("inf"))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if "checkpoint" in record.getMessage()]


@pytest.mark.parametrize(("spoil", "what"), [(nan, "NaN"), (infinite, "infinities")])
def test_the_last_good_checkpoint_stays(
    tmp_path: Path, warnings: Any, spoil: Callable[[str], Any], what: str
) -> None:
    assert train(Model({2: spoil("weight")}), tmp_path) == [0, 1]  # and neither 3, nor one at the end
    first, *_ = warnings()
    assert (
        f"model.ckpt-2 is not saved, so that the last good one stays: the parameter model/weight holds {what}"
        in first
    )
    assert 'non_finite="save"' in first
    last = tt.latest_checkpoint(tmp_path)
    assert last is not None
    assert last.name == "model.ckpt-1"


def test_it_is_saved_with_a_warning_if_wanted(tmp_path: Path, warnings: Any) -> None:
    assert train(Model({2: nan("weight")}), tmp_path, non_finite="save") == [0, 1, 2, 3]
    assert [text.partition(" is saved, but ")[2] for text in warnings()] == [
        "the parameter model/weight holds NaN.",
        "the parameter model/weight holds NaN, and 2 more are not finite.",  # the moments of Adam
    ]


def test_it_raises_if_wanted(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"model\.ckpt-2 is not saved: the parameter model/weight holds NaN"
    ):
        train(Model({2: nan("weight")}), tmp_path, non_finite="raise")
    assert saved(tmp_path) == [0, 1]
    with pytest.raises(ValueError, match="'skip', 'save' or 'raise', got 'ignore'"):
        tt.CheckpointSaverHook(tmp_path, save_steps=1, non_finite="ignore")  # type: ignore[arg-type]


def test_good_values_are_saved_again(tmp_path: Path) -> None:
    def mend(model: Model) -> None:
        model.weight.fill_(1.0)
        for state in model.optimizer.state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()

    assert train(Model({2: nan("weight"), 4: mend}), tmp_path, runs=5) == [0, 1, 4, 5]


def test_infinities_in_buffers_that_were_there_from_the_beginning_are_meant(
    tmp_path: Path, warnings: Any
) -> None:
    assert train(Model(), tmp_path) == [0, 1, 2, 3]
    assert warnings() == []


def test_a_buffer_that_went_bad_is_mentioned_but_saved(tmp_path: Path, warnings: Any) -> None:
    assert train(Model({2: nan("mean")}), tmp_path, runs=2) == [0, 1, 2]
    assert warnings()[0].endswith("is saved, but the buffer model/mean holds NaN.")


def test_nan_in_the_optimizer_state_would_be_in_the_parameters_next(tmp_path: Path, warnings: Any) -> None:
    def spoil(model: Model) -> None:
        model.optimizer.state[model.weight]["exp_avg"].fill_(float("nan"))

    assert train(Model({2: spoil}), tmp_path, runs=2) == [0, 1]
    assert "the optimizer state optimizer/Adam/model/weight/exp_avg holds NaN" in warnings()[0]


def test_frozen_parameters_may_hold_anything_from_the_beginning(tmp_path: Path, warnings: Any) -> None:
    model = Model()
    model.bias = torch.nn.Parameter(torch.tensor([float("-inf"), float("nan")]), requires_grad=False)
    assert train(model, tmp_path) == [0, 1, 2, 3]
    assert warnings() == []


def test_a_session_made_anew_is_no_beginning(tmp_path: Path) -> None:
    class Preempted(tt.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if model.runs == 2:
                raise AbortedError(None, "planted")

    model = Model({2: infinite("weight")})
    # A ready session keeps its state through a recovery: what is infinite now was not in the beginning.
    assert train(model, tmp_path, [Preempted()]) == [0, 1]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("stops", [True, False])
def test_with_a_nan_hook_on_either_side(tmp_path: Path, ahead: bool, stops: bool) -> None:
    model = Model()
    saver = tt.CheckpointSaverHook(tmp_path, save_steps=1, saver=tt.Saver())
    guard = tt.NanTensorHook("loss", fail_on_nan_loss=stops)
    session = tt.MonitoredSession(model.session(), hooks=[guard, saver] if ahead else [saver, guard])

    def loop() -> None:
        with session:
            while not session.should_stop():
                session.run(feed_dict={"x": torch.full((3,), float("nan") if model.runs else 1.0)})

    if stops:
        with pytest.raises(NanLossDuringTrainingError):
            loop()
    else:
        loop()
    assert saved(tmp_path) == [0, 1]
    tt.Saver().restore(
        tt.torch.Session(lambda: None, modules={"model": model}, optimizers={"adam": model.optimizer}),
        tmp_path / "model.ckpt-1",
    )
    assert torch.isfinite(model.weight).all()


def test_in_a_training_session(tmp_path: Path, warnings: Any) -> None:
    def run(directory: Path, **options: Any) -> list[int]:
        model = Model({2: nan("weight")})
        with tt.MonitoredTrainingSession(
            session=model.session(), checkpoint_dir=directory, save_checkpoint_steps=1, **options
        ) as session:
            for _ in range(2):
                session.run(feed_dict={"x": torch.ones(3)})
        return saved(directory)

    assert run(tmp_path / "skip") == [0, 1]
    assert run(tmp_path / "save", non_finite_checkpoints="save") == [0, 1, 2]


def test_a_save_by_hand_is_done_with_a_warning(tmp_path: Path, warnings: Any) -> None:
    model = Model()
    session = model.session()
    tt.Saver().save(session, tmp_path / "model.ckpt", 1)
    assert warnings() == []
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    tt.Saver().save(session, tmp_path / "model.ckpt", 2)
    assert saved(tmp_path) == [1, 2]
    assert warnings()[0].endswith("model.ckpt-2 is saved, but the parameter model/weight holds NaN.")


def test_a_session_that_cannot_look_is_saved(tmp_path: Path, warnings: Any) -> None:
    model = Model()
    model.odd = torch.nn.Parameter(torch.ones(2).as_subclass(Odd), requires_grad=False)
    model.small = torch.nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn), requires_grad=False)
    model.wave = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    model.none = torch.nn.Parameter(torch.ones(0, 3))
    assert train(model, tmp_path, runs=1) == [0, 1]
    assert warnings() == []
    with torch.no_grad():
        model.wave[0] = complex(0.0, float("nan"))
    assert train(model, tmp_path, runs=1) == [0, 1]
    assert "model/wave holds NaN" in warnings()[0]
