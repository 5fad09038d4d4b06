"""One run as the analysis sees it: its nodes, and the health of its tensors in the order they were made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensortap.analyze.execution import Execution
from tensortap.analyze.graph_facts import GraphFacts
from tensortap.analyze.health import Health
from tensortap.analyze.nearest import Nearest, nearest_recorded
from tensortap.analyze.training import (
    gradients_of,
    losses_of,
    updates_of,
)
from tensortap.phases import is_variable, parameter_of_gradient
from tensortap.pill import NEVER_BAD
from tensortap.records import Frame, Node, RunInfo, split_tensor_name

__all__ = ["RunFacts"]


class RunFacts(GraphFacts):
    """What is known of one run.

    Made from a run directory by `facts_of_dump`, or directly from nodes and healths while the run is still alive.

    Args:
        info: number, step, time and rank.
        nodes: the executed nodes by name.
        healths: health of the recorded tensors, in the order they were made; or a function that works one out.
        times: microseconds since the epoch at which tensors were complete, as far as known.
        values: gives the value of a tensor if it was recorded, else None.
        value_times: microseconds since the epoch at which the value that `values` gives was recorded.
        places: gives the coordinates of the stored values of a sparse tensor if they were recorded, else None.
        hashes: gives the recorded hash of a tensor, None if there is none.
        source_lines: gives the text of a source line if the file is known, else None.
        executions: of tensors that were made several times in the run, each time; in their order.
        is_muted: healthy tensors were left out on purpose, so that what is missing was good.
        name: of the run directory.
        notices: what is unusual about the run, in sentences.

    Attributes:
        goes_on: whether the program is known to have gone on after this run.
        circumstances: what the engine knew of the run besides its records.

    >>> import numpy as np
    >>> log = Node("log", "aten::log", inputs=("x:0",))
    >>> import numpy as np
    >>> facts = RunFacts(RunInfo(0, 7, 1), {"log": log}, {"log:0": Health.of_value(np.log(np.ones(2)))})
    >>> facts.info.global_step, facts.is_bad("log:0"), facts.health("x:0")
    (7, False, None)
    """

    def __init__(
        self,
        info: RunInfo,
        nodes: Mapping[str, Node],
        healths: Mapping[str, Health | Callable[[], Health | None]],
        *,
        times: Mapping[str, int] | None = None,
        values: Callable[[str], Any] = lambda tensor: None,
        value_times: Mapping[str, int] | None = None,
        places: Callable[[str], Any] = lambda tensor: None,
        hashes: Callable[[str], Any] = lambda tensor: None,
        source_lines: Callable[[Frame], str | None] = lambda frame: None,
        executions: Mapping[str, Sequence[Execution]] | None = None,
        is_muted: bool = False,
        name: str = "",
        notices: Iterable[str] = (),
    ) -> None:
        super().__init__(nodes)
        self.info = info
        self.value = values
        self.places = places
        self.hash = hashes
        self.source_line = source_lines
        self.executions = {} if executions is None else executions
        self.is_muted = is_muted
        self.name = name
        self.goes_on = False
        self.notices = list(notices)
        self.times = {} if times is None else times
        self._value_times = {} if value_times is None else value_times
        self._healths = dict(healths)
        known = self._healths if times is None else times
        self.order = {tensor: place for place, tensor in enumerate(known)}
        self._behind: dict[str, tuple[Health | None, str | None, bool]] = {}
        self._unread: list[str] | None = None
        self._moments: dict[str, int | None] = {}
        self._nearest: dict[str, Nearest] = {}

    @property
    def tensors(self) -> list[str]:
        """Names of the recorded tensors in the order they were made."""
        return list(self._healths)

    def health(self, tensor: str) -> Health | None:
        """Health of a tensor, None if it was not recorded."""
        found = self._healths.get(tensor)
        if callable(found):
            found = found()
            if found is None:
                del self._healths[tensor]
            else:
                self._healths[tensor] = found
        return found

    def health_behind(self, tensor: str) -> Health | None:
        """Health of a tensor, or of what a view that was not recorded shows."""
        return self.behind(tensor)[0]

    def behind(self, tensor: str) -> tuple[Health | None, str | None]:
        """The same, and the name of the whole if a view shows only part of it."""
        # What was walked through is remembered: many views may show the same memory, and views views.
        walked: list[tuple[str, bool]] = []
        passed: set[str] = set()
        while tensor not in self._behind:
            found = self.health(tensor)
            node = self.node_of(tensor)
            if found is not None or node is None or not node.inputs or tensor in passed:
                self._behind[tensor] = (found, tensor if found is not None else None, False)
                break
            if not self.is_view(node):
                self._behind[tensor] = (None, None, False)
                break
            walked.append((tensor, self.is_partial_view(node)))
            passed.add(tensor)
            tensor = node.inputs[0]
        health, whole, part = self._behind[tensor]
        for view, is_partial in reversed(walked):
            part = part or is_partial
            self._behind[view] = (health, whole, part)
        return health, whole if part else None

    def health_given(self, tensor: str, node: Node) -> Health | None:
        """Health of a tensor as a node found it, after what had been written to its memory through other names."""
        found = self.health_behind(tensor)
        moment = self.bad_moment(node)
        execution = self.execution_before(tensor, moment)
        if execution is not None:
            return execution.health
        if found is None:
            return self.health_carried(tensor, moment, self.outputs_of(node))
        writers = self.writers_of(node)
        if not writers:
            return found
        kept = self.value_given(tensor, node)
        if kept is not None:
            return kept
        for writer in writers:
            health = self.health(f"{writer}:0")
            if found is not None and health is not None:
                found = found.with_part(health)
        return found

    def nearest(self, tensor: str) -> Nearest:
        """The nearest recorded tensors that one which was not recorded was made of."""
        if tensor not in self._nearest:
            self._nearest[tensor] = nearest_recorded(self, tensor)
        return self._nearest[tensor]

    def health_carried(
        self, tensor: str, moment: int | None = None, own: Sequence[str] = ()
    ) -> Health | None:
        """Health of a tensor that was not recorded, if something that was has only been carried there.

        Args:
            tensor: its name.
            moment: when; at the end, if there is none.
            own: what was made at that moment: when it has come around it is that of the time before.
        """
        nearest = self.nearest(tensor)
        if not nearest.is_carried:
            return None
        latest: tuple[int, Health | None] | None = None
        for each in nearest.tensors:
            until = None if moment is None else moment - (each in own)
            execution = self.execution_before(each, until)
            time = self.times.get(each, 0) if execution is None else execution.time
            if (until is None or time <= until) and (latest is None or time >= latest[0]):
                latest = time, self.health(each) if execution is None else execution.health
        return None if latest is None else latest[1]

    def value_given(self, tensor: str, node: Node) -> Health | None:
        """The same, exactly: None unless the value was kept when the node had been executed."""
        written = max((self.times.get(f"{writer}:0", 0) for writer in self.writers_of(node)), default=0)
        if self._value_times.get(tensor, 0) <= written:
            return None
        value = self.value(tensor)
        return None if value is None else Health.of_value(value)

    # --- what was executed several times ------------------------------------------------------------

    def bad_moment(self, node: Node) -> int | None:
        """When a node that was executed several times, as in a loop, first made something bad; None for other nodes."""
        if node.name not in self._moments:
            times = [
                each.time
                for tensor in self.outputs_of(node)
                for each in self.executions.get(tensor, ())
                if each.health is not None and each.health.is_bad
            ]
            self._moments[node.name] = min(times, default=None)
        return self._moments[node.name]

    def execution_before(self, tensor: str, moment: int | None) -> Execution | None:
        """The last execution up to a moment of a tensor that was made several times."""
        if moment is None:
            return None
        before = [each for each in self.executions.get(tensor, ()) if each.time <= moment]
        return before[-1] if before else None

    def was_good_before(self, tensor: str, node: Node) -> bool:
        """Whether a tensor that was made several times had not become bad yet when a node did."""
        moment = self.bad_moment(node)
        if moment is None or tensor not in self.executions:
            return False
        if tensor in self.outputs_of(node):
            return True
        times = [
            each.time for each in self.executions[tensor] if each.health is not None and each.health.is_bad
        ]
        return bool(times) and min(times) > moment

    def value_at(self, tensor: str, moment: int | None) -> Any:
        """The value of a tensor at a moment if it was recorded, the last one if there is no such moment."""
        execution = self.execution_before(tensor, moment)
        return self.value(tensor) if execution is None else execution.value()

    def is_bad(self, tensor: str) -> bool:
        """Whether a tensor is known to hold a NaN or an infinity."""
        found = self.health(tensor)
        return found is not None and found.is_bad

    @property
    def unread(self) -> list[str]:
        """Names of the tensors that were recorded without being looked at, as far as they could be bad at all."""
        if self._unread is None:
            known = ((tensor, self.health(tensor)) for tensor in self.tensors)
            self._unread = [
                tensor
                for tensor, health in known
                if health is not None and not health.was_read and health.dtype_number not in NEVER_BAD
            ]
        return self._unread

    def outputs_of(self, node: Node) -> list[str]:
        """The outputs of a node; if the graph does not tell, those that were recorded or are taken by others."""
        if node.outputs:
            return [node.tensor(slot) for slot in range(len(node.outputs))]
        return self._known_outputs.get(node.name, [])

    @functools.cached_property
    def _known_outputs(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for tensor in sorted({*self.order, *self._takers}):
            found.setdefault(split_tensor_name(tensor)[0], []).append(tensor)
        return found

    # --- training ----------------------------------------------------------------------------------

    @functools.cached_property
    def gradients(self) -> dict[str, str]:
        """The tensors of complete gradients, by the parameter they belong to; of several, the first."""
        return gradients_of(self)

    @functools.cached_property
    def gradient_tensors(self) -> dict[str, str]:
        """Their parameters by all tensors of complete gradients."""
        own = {
            f"{name}:0": parameter_of_gradient(self.nodes[name])
            for name, op_type in self.op_types.items()
            if op_type == "AccumulateGrad"
        }
        return own | {tensor: parameter for parameter, tensor in self.gradients.items()}

    @functools.cached_property
    def updates(self) -> dict[str, list[Node]]:
        """The operations that change each variable without showing what they make of it."""
        return updates_of(self)

    @functools.cached_property
    def losses(self) -> list[str]:
        """The tensors from which the backward pass began, as far as that can be told."""
        return losses_of(self)

    @functools.cached_property
    def reads(self) -> dict[str, str]:
        """The first recorded tensor that has the value of each variable."""
        found: dict[str, str] = {}
        for tensor in self.tensors:
            if is_variable(self.op_types.get(split_tensor_name(tensor)[0], "")):
                found.setdefault(self.variable_of(tensor) or "", tensor)
        return found

    def __iter__(self) -> Iterator[tuple[str, Health]]:
        for tensor in self.tensors:
            health = self.health(tensor)
            if health is not None:
                yield tensor, health
