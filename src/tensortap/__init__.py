"""A debugger and profiler for the tensors of a training run.

Importing this package imports no framework and nothing that writes to disk: `tensortap.torch` and the debug
classes wake when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensortap import errors
from tensortap.engines.base import get_default_session
from tensortap.engines.graph import Graph, GraphKeys, get_default_graph
from tensortap.engines.options import (
    DebugOptions,
    DebugTensorWatch,
    RunMetadata,
    RunOptions,
    TraceLevel,
)
from tensortap.records import Device, Frame, Node, TensorSpec
from tensortap.run.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.run.builtin.checkpoint import CheckpointSaverHook, CheckpointSaverListener
from tensortap.run.builtin.counter import StepCounterHook
from tensortap.run.builtin.feed_fn import FeedFnHook
from tensortap.run.builtin.final_ops import FinalOpsHook
from tensortap.run.builtin.logging import LoggingTensorHook
from tensortap.run.builtin.nan import NanTensorHook
from tensortap.run.builtin.stopping import MultiStepStopAtStepHook, StopAtStepHook
from tensortap.run.builtin.summary_saver import SummarySaverHook
from tensortap.run.builtin.waiter import GlobalStepWaiterHook
from tensortap.run.coordinator import Coordinator, LooperThread
from tensortap.run.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from tensortap.run.hooks import SessionRunHook
from tensortap.run.monitored import MonitoredSession, SingularMonitoredSession
from tensortap.run.saver import Saver, latest_checkpoint
from tensortap.run.scaffold import Scaffold
from tensortap.run.timer import NeverTriggerTimer, SecondOrStepTimer
from tensortap.run.training import MonitoredTrainingSession

if TYPE_CHECKING:
    from tensortap import torch
    from tensortap.debug.dumping import DumpingDebugWrapperSession
    from tensortap.debug.grpc import GrpcDebugWrapperSession, TensorBoardDebugWrapperSession
    from tensortap.debug.hooks import DumpingDebugHook, GrpcDebugHook, TensorBoardDebugHook
    from tensortap.profile.hook import ProfilerHook
    from tensortap.profile.timeline import Timeline
    from tensortap.sink.budget import Budget
    from tensortap.sink.retention import Retention
    from tensortap.sink.stream_options import StreamOptions
    from tensortap.watch.match import add_debug_tensor_watch, watch_graph, watch_graph_with_denylists
    from tensortap.watch.options import WatchOptions

__all__ = [
    "Budget",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "ChiefSessionCreator",
    "Coordinator",
    "DebugOptions",
    "DebugTensorWatch",
    "Device",
    "DumpingDebugHook",
    "DumpingDebugWrapperSession",
    "FeedFnHook",
    "FinalOpsHook",
    "Frame",
    "GlobalStepWaiterHook",
    "Graph",
    "GraphKeys",
    "GrpcDebugHook",
    "GrpcDebugWrapperSession",
    "LoggingTensorHook",
    "LooperThread",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "MultiStepStopAtStepHook",
    "NanTensorHook",
    "NeverTriggerTimer",
    "Node",
    "ProfilerHook",
    "Retention",
    "RunMetadata",
    "RunOptions",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "SessionCreator",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StepCounterHook",
    "StopAtStepHook",
    "StreamOptions",
    "SummarySaverHook",
    "TensorBoardDebugHook",
    "TensorBoardDebugWrapperSession",
    "TensorSpec",
    "Timeline",
    "TraceLevel",
    "WatchOptions",
    "WorkerSessionCreator",
    "add_debug_tensor_watch",
    "errors",
    "get_default_graph",
    "get_default_session",
    "latest_checkpoint",
    "torch",
    "watch_graph",
    "watch_graph_with_denylists",
]


_LAZY = {
    "Budget": "tensortap.sink.budget",
    "DumpingDebugHook": "tensortap.debug.hooks",
    "DumpingDebugWrapperSession": "tensortap.debug.dumping",
    "GrpcDebugHook": "tensortap.debug.hooks",
    "GrpcDebugWrapperSession": "tensortap.debug.grpc",
    "ProfilerHook": "tensortap.profile.hook",
    "Retention": "tensortap.sink.retention",
    "StreamOptions": "tensortap.sink.stream_options",
    "TensorBoardDebugHook": "tensortap.debug.hooks",
    "TensorBoardDebugWrapperSession": "tensortap.debug.grpc",
    "Timeline": "tensortap.profile.timeline",
    "WatchOptions": "tensortap.watch.options",
    "add_debug_tensor_watch": "tensortap.watch.match",
    "watch_graph": "tensortap.watch.match",
    "watch_graph_with_denylists": "tensortap.watch.match",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "torch":
        try:
            return import_module("tensortap.torch")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                "tensortap.torch needs PyTorch: pip install 'tensortap[torch]'", name="torch"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
