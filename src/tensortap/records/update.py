"""An update, as the engine saw it: one step of an optimizer, what led to it, and what it did to each parameter.

Everything may be missing, because an engine does not know it or an older one did not tell: None, or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from tensortap.records.node import Frame
from tensortap.records.parameter_update import ParameterUpdate, read_parameters, told_parameters

__all__ = ["Event", "Group", "KeptGraphs", "LoaderUse", "Mode", "StrayTensor", "Update"]


class Event(NamedTuple):
    """Something that a program does on its way to an update.

    Attributes:
        what: `backward`, `gradient` (gradients that are only worked out), `clear`, `clip`, `unscale`, `schedule` (the
            learning rate is set), `step`, `skip` (a scaler leaves a step out).
        who: the optimizer or module that does it, if any.
        source: the user's line.
    """

    what: str
    who: str = ""
    source: Frame | None = None


class Group(NamedTuple):
    """Parameters of an optimizer that have a learning rate of their own.

    Attributes:
        rate: the learning rate.
        parameters: their names.
    """

    rate: float | None
    parameters: tuple[str, ...]


class Mode(NamedTuple):
    """In which mode a model is when gradients are worked out.

    Attributes:
        model: its name.
        trains: whether it is in training mode.
        still: modules inside it that are in evaluation mode, if it is not.
    """

    model: str
    trains: bool
    still: tuple[str, ...] = ()


class StrayTensor(NamedTuple):
    """A tensor that gets gradients, and that no model and no optimizer has.

    Attributes:
        name: where a module holds it without its being a parameter of it, as `model/scale`; else empty.
        shape: of it.
        dtype: of it.
        steps: in how many of the updates that were looked at it has been this same tensor.
        mark: of its values after the update.
        declared: the user's line that makes it an attribute.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    steps: int
    mark: str | None = None
    declared: str | None = None


class LoaderUse(NamedTuple):
    """What a data loader has given so far.

    Attributes:
        name: what the program calls it, or else the class of its data set.
        drawn_at: the user's line that draws its batches.
        batches: of one pass over its data.
        workers: processes that load for it.
        begun: passes that were begun.
        drawn: batches that were drawn.
        compared: those that were compared with the one before.
        same: of those, how many were equal to it.
        looked_at: those whose samples were compared with each other.
        alike: of those, in how many at least half of the samples repeat another one.
        item_at: the user's line that begins what gives one sample.
    """

    name: str
    drawn_at: str | None = None
    batches: int | None = None
    workers: int = 0
    begun: int = 0
    drawn: int = 0
    compared: int = 0
    same: int = 0
    looked_at: int = 0
    alike: int = 0
    item_at: str | None = None

    @property
    def source(self) -> Frame | None:
        """The line that draws its batches."""
        return _frame_of(self.drawn_at)

    @property
    def item_source(self) -> Frame | None:
        """Where the program gives one sample, or else the line that draws batches."""
        return _frame_of(self.item_at) or self.source


class KeptGraphs(NamedTuple):
    """Graphs of earlier updates that something keeps from being freed.

    Attributes:
        marked: graphs that were followed, the last one not counted.
        alive: of those, how many there still are.
        holder: what the program calls the variable that holds them, if that was found.
        held_at: the user's line that adds to it.
    """

    marked: int = 0
    alive: int = 0
    holder: str = ""
    held_at: str | None = None

    @property
    def source(self) -> Frame | None:
        """The line that holds on to them."""
        return _frame_of(self.held_at)


@dataclass(frozen=True, slots=True)
class Update:
    """One step of an optimizer.

    Attributes:
        step: the global step.
        optimizer: its name, such as `Adam` or `Adam_1`.
        count: how many steps it has taken before.
        source: the user's line that has it step.
        made: the user's line that made it.
        variable: what the program calls it.
        schedule: the user's line that made the schedule of its learning rate.
        is_skipped: a scaler has left the step out.
        has_closure: the step works its gradients out itself.
        events: since the step before, whichever optimizer's that was; the last one is this step.
        groups: of its parameters.
        parameters: its own and those of all known models.
        strays: other tensors that get gradients.
        modes: of the known models.
        loaders: of the program's data.
        graphs: of earlier updates that are kept alive.

    >>> update = Update(3, "SGD", 3, events=(Event("backward"), Event("step", "SGD", Frame("a.py", 2, "f"))))
    >>> Update.from_dict(update.as_dict()) == update
    True
    """

    step: int
    optimizer: str
    count: int
    source: Frame | None = None
    made: Frame | None = None
    variable: str = ""
    schedule: Frame | None = None
    is_skipped: bool = False
    has_closure: bool = False
    events: tuple[Event, ...] = ()
    groups: tuple[Group, ...] = ()
    parameters: Sequence[ParameterUpdate] = ()
    strays: tuple[StrayTensor, ...] = ()
    modes: tuple[Mode, ...] = ()
    loaders: tuple[LoaderUse, ...] = ()
    graphs: KeptGraphs | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is as it would be by default is left out."""
        told = {name: getattr(self, name) for name in _NAMES}
        for name in ("source", "made", "schedule"):
            told[name] = _text_of(told[name])
        told["events"] = [[what, who, _text_of(source)] for what, who, source in self.events]
        told["parameters"] = told_parameters(self.parameters)
        left_out: tuple[Any, ...] = (None, (), [], "")
        return {key: value for key, value in told.items() if value not in left_out and value is not False}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Update:
        """From JSON; what is not known here is ignored."""
        return cls(
            step=int(told["step"]),
            optimizer=str(told["optimizer"]),
            count=int(told["count"]),
            source=_frame_of(told.get("source")),
            made=_frame_of(told.get("made")),
            variable=str(told.get("variable", "")),
            schedule=_frame_of(told.get("schedule")),
            is_skipped=bool(told.get("is_skipped")),
            has_closure=bool(told.get("has_closure")),
            events=tuple(Event(what, who, _frame_of(source)) for what, who, source in told.get("events", ())),
            groups=tuple(Group(rate, tuple(names)) for rate, names in told.get("groups", ())),
            parameters=read_parameters(told.get("parameters", ())),
            strays=tuple(StrayTensor(*map(_tuples, each)) for each in told.get("strays", ())),
            modes=tuple(Mode(*map(_tuples, each)) for each in told.get("modes", ())),
            loaders=tuple(LoaderUse(*each) for each in told.get("loaders", ())),
            graphs=KeptGraphs(*told["graphs"]) if "graphs" in told else None,
        )


_NAMES = tuple(each.name for each in fields(Update))


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _text_of(source: Frame | None) -> str | None:
    return None if source is None else str(source)


def _frame_of(text: Any) -> Frame | None:
    return Frame.of_text(text) if isinstance(text, str) else None
