"""A call whose results have not been looked at yet, and what is kept until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jax._src.array import ArrayImpl
from jax.sharding import SingleDeviceSharding

from tensortap.engines.jax.calls import Call, execute
from tensortap.engines.jax.follow.functions import Function
from tensortap.engines.jax.taps.library import Memory, library
from tensortap.engines.jax.tensors import host_array
from tensortap.pill import kinds_of_elements

if TYPE_CHECKING:
    from tensortap.engines.jax.follow.chain import Chain

__all__ = ["Pending", "kinds_in"]


@dataclass(slots=True, eq=False)
class Pending:
    """A call whose verdict is not known yet.

    Attributes:
        function: that was called.
        call: with the arguments that were kept.
        results: those that can be bad, as long as somebody has to look at them.
        step: of the program, when it was called.
        number: of the call among those of its function.
        nbytes: of its arguments.
        verdict: kinds of bad values of each result that can be bad; an array that may not be there yet.
        found: the same, known; by place of the result.
        chain: of calls that it is looked at together with.
        is_shared: several processes execute it together. What one of them executes besides, all of them must, in the
            same order, or they wait for each other for ever.
    """

    function: Function
    call: Call
    results: Sequence[Any]
    step: int
    number: int
    nbytes: int
    verdict: Any = None
    found: Mapping[int, int] | None = None
    chain: Chain | None = None
    is_shared: bool = False
    holds: frozenset[int] = field(init=False)
    """Identities of the arguments that are kept."""

    def __post_init__(self) -> None:
        self.holds = frozenset(map(id, self.call.arguments))

    def put_in_place(self, copies: Mapping[int, Any]) -> None:
        """Keep copies of arguments, by their identities, which another call is about to destroy."""
        arguments = [copies.get(id(each), each) for each in self.call.arguments]
        parameters = dict(self.call.parameters, donated_invars=(False,) * len(arguments))
        self.call = replace(self.call, arguments=arguments, go_on=partial(execute, arguments, parameters))
        self.holds = frozenset(map(id, arguments))

    @property
    def is_told(self) -> bool:
        """Whether it is known, or will be known to JAX, what is bad in the results."""
        return self.found is not None or self.verdict is not None

    def tell(self, kinds: Mapping[int, int]) -> None:
        """Say what is bad in the results. If nothing is, what was kept is let go."""
        found = {place: each for place, each in kinds.items() if each}
        if not found:
            self.call = replace(self.call, arguments=(), go_on=tuple)  # both keep the arguments
        self.results = ()
        self.found = found

    def is_ready(self) -> bool:
        """Whether the verdict can be read without waiting for anybody."""
        if self.found is not None:
            return True
        if self.chain is not None:
            return self.chain.is_ready()
        if self.verdict is not None:
            return bool(self.verdict.is_ready())
        return self.function.is_small and all(
            each.is_deleted() or each.is_ready() for each in reversed(self.results)
        )

    @property
    def can_be_read(self) -> bool:
        """Whether the results are whole arrays of one device, which can be read in memory."""
        return self.function.memory is not None and all(
            type(each) is ArrayImpl and type(each.sharding) is SingleDeviceSharding for each in self.results
        )

    def kinds(self) -> Mapping[int, int]:
        """Kinds of bad values by place of the result; waits until they are known."""
        if self.found is None:
            self.tell(dict(zip(self.function.floats, self._read(), strict=True)))
        assert self.found is not None
        return self.found

    def _read(self) -> Sequence[int]:
        if self.verdict is not None:
            kinds: Sequence[int] = np.asarray(self.verdict).tolist()
            return kinds
        if self.function.memory is not None and self.can_be_read and library() is not None:
            if any(each.is_deleted() for each in self.results):
                return [0] * len(self.results)
            return kinds_in(self.function.memory, self.results, alone=True)
        arrays = (None if each.is_deleted() else host_array(each) for each in self.results)
        return [0 if array is None else kinds_of_elements(array) for array in arrays]


def kinds_in(memory: Memory, arrays: Sequence[Any], alone: bool = False) -> Sequence[int]:
    """Kinds of bad values in arrays of one device, read where they lie; waits until they are there.

    Args:
        memory: what lies there.
        arrays: whole ones.
        alone: no other thread of Python runs meanwhile, so that none can give them away. Otherwise there are views of
            them meanwhile: then nobody can, and who gives an array away gets a copy of it.
    """
    found = library()
    assert found is not None
    for each in arrays:
        each.block_until_ready()
    if alone:
        return found.look(memory, [each.unsafe_buffer_pointer() for each in arrays], alone=True)
    views = [each._single_device_array_to_np_array_did_copy() for each in arrays]
    addresses = [
        view.ctypes.data if is_copy else each.unsafe_buffer_pointer()
        for each, (view, is_copy) in zip(arrays, views, strict=True)
    ]
    return found.look(memory, addresses)
