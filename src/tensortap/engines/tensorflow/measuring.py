"""What TensorFlow measured of a run, joined to the nodes of the graph."""

from __future__ import annotations

from typing import Any

from tensortap.engines.tensorflow.executed import Origins
from tensortap.engines.tensorflow.graph import TensorFlowGraph
from tensortap.seam.measured import Measured, StepProfile
from tensortap.seam.step_facts import OpFacts, StepFacts

__all__ = ["profile_of"]


def profile_of(metadata: Any, graph: TensorFlowGraph) -> StepProfile:
    """The profile of a run from its metadata, worked out when somebody asks for it."""
    serialized = metadata.step_stats.SerializeToString()  # the message may be used for the next run
    return StepProfile(lambda: _measured(serialized, graph))


def _measured(serialized: bytes, graph: TensorFlowGraph) -> Measured:
    from tensortap.wire.messages import StepStats

    stats = StepStats.FromString(serialized)
    origins = Origins(graph)
    ops: dict[str, OpFacts] = {}
    unnamed = 0
    for device in stats.dev_stats:
        for executed in device.node_stats:
            name = executed.node_name.partition(":")[0]
            if name in ops:
                continue
            found = origins.find(name)
            if found is None:
                unnamed += 1
                continue
            ops[executed.node_name] = OpFacts.of(found[1])
    return Measured(stats, StepFacts(ops=ops), unnamed)
