"""A run, as it is described next to its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensortap.records.loading import BadSample

__all__ = ["Circumstances", "RunInfo"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the engine knows of a run that its records do not show.

    Attributes:
        number: of the run among those that the engine was asked to watch; -1 if it is not known.
        came_from: of tensors that came bad from outside: number of the run, and name of the tensor, that they are from.
        gone: bad tensors whose memory the program had let go of when the run ended.
        is_preparation: nothing had been called or trained yet when the run ended; if no steps are counted, nothing ever
            was.
        trains: whether models were called to be trained; None if it is not known.
        learning_rates: of the optimizers there are, by name.
        counts_steps: whether there is an optimizer, and so a step to count, or something that stands for one.
        by_passes: whether a backward pass has ended the run, because there is no optimizer.
        engine: whose names the operations of the graph have, such as `torch`; empty if it is not known.
        calls: of several calls without gradients that share the run, when each began, in microseconds.
        modes: of models that were called without gradients, some of the time: `training`, `evaluation`, or `mixed` if
            a model in evaluation mode has modules in training mode.
        bad_samples: what workers of data loaders have made lately, if it was bad.

    >>> Circumstances(gone=("log:0",)).as_dict()
    {'gone': ['log:0']}
    >>> Circumstances.from_dict({"came_from": {"x:0": [0, "div:0"]}}).came_from
    {'x:0': (0, 'div:0')}
    """

    number: int = -1
    came_from: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    is_preparation: bool = False
    trains: bool | None = None
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    counts_steps: bool = True
    engine: str = ""
    calls: tuple[int, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    bad_samples: tuple[BadSample, ...] = ()
    by_passes: bool = False

    def of_run(
        self, engine: str, number: int, came_from: Mapping[str, tuple[int, str]], gone: tuple[str, ...]
    ) -> Circumstances:
        """The same with what is known at the end of the run. (`replace` takes several times as long, in every run.)"""
        return Circumstances(
            number,
            came_from,
            gone,
            self.is_preparation,
            self.trains,
            self.learning_rates,
            self.counts_steps,
            engine,
            self.calls,
            self.modes,
            self.bad_samples,
            self.by_passes,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without what is not known."""
        facts = {
            "came_from": {tensor: list(origin) for tensor, origin in self.came_from.items()},
            "gone": list(self.gone),
            "is_preparation": self.is_preparation,
            "learning_rates": dict(self.learning_rates),
            "engine": self.engine,
            "calls": list(self.calls),
            "modes": dict(self.modes),
            "bad_samples": [each.as_dict() for each in self.bad_samples],
            "by_passes": self.by_passes,
        }
        known: dict[str, Any] = {name: value for name, value in facts.items() if value}
        if self.number >= 0:
            known["number"] = self.number
        if not self.counts_steps:
            known["counts_steps"] = False
        return known if self.trains is None else {**known, "trains": self.trains}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Circumstances:
        """From JSON; what has the wrong form raises TypeError or ValueError."""
        trains = facts.get("trains")
        return cls(
            int(facts.get("number", -1)),
            {
                str(tensor): (int(run), str(name))
                for tensor, (run, name) in facts.get("came_from", {}).items()
            },
            tuple(map(str, facts.get("gone", ()))),
            bool(facts.get("is_preparation", False)),
            None if trains is None else bool(trains),
            {str(name): float(rate) for name, rate in facts.get("learning_rates", {}).items()},
            bool(facts.get("counts_steps", True)),
            str(facts.get("engine", "")),
            tuple(map(int, facts.get("calls", ()))),
            {str(model): str(mode) for model, mode in facts.get("modes", {}).items()},
            tuple(map(BadSample.from_dict, facts.get("bad_samples", ()))),
            bool(facts.get("by_passes", False)),
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as it is described next to its records.

    Attributes:
        index: number of the run in its session, from 0.
        global_step: step at which the run was executed, -1 if unknown.
        timestamp: microseconds since the epoch at its start.
        task: rank of the process.
        fetches: printed form of what was fetched.
        feed_keys: printed form of what was fed, or `None`.
        input_names: names of the fed tensors.
        output_names: names of the fetched tensors.
        target_nodes: names of nodes that were run for their effect.

    >>> RunInfo(index=0, global_step=12, timestamp=1).task
    0
    """

    index: int
    global_step: int
    timestamp: int
    task: int = 0
    fetches: str = "None"
    feed_keys: str = "None"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    target_nodes: tuple[str, ...] = ()
