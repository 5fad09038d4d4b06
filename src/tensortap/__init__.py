"""A debugger and profiler for the tensors of a training run.

Importing this package imports nothing else, no framework above all: every part wakes when it is first used, so that
commands which only read answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensortap import errors as errors
    from tensortap import torch as torch
    from tensortap.debug.dumping import DumpingDebugWrapperSession
    from tensortap.debug.grpc import GrpcDebugWrapperSession, TensorBoardDebugWrapperSession
    from tensortap.debug.hooks import DumpingDebugHook, GrpcDebugHook, TensorBoardDebugHook
    from tensortap.engines.base import get_default_session
    from tensortap.engines.graph import Graph, GraphKeys, get_default_graph
    from tensortap.engines.options import (
        DebugOptions,
        DebugTensorWatch,
        RunMetadata,
        RunOptions,
        TraceLevel,
    )
    from tensortap.profile.hook import ProfilerHook
    from tensortap.profile.timeline import Timeline
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
    "get_default_graph",
    "get_default_session",
    "latest_checkpoint",
    "watch_graph",
    "watch_graph_with_denylists",
]


# Where each name lives.
_HOMES = {
    "tensortap.debug.dumping": "DumpingDebugWrapperSession",
    "tensortap.debug.grpc": "GrpcDebugWrapperSession TensorBoardDebugWrapperSession",
    "tensortap.debug.hooks": "DumpingDebugHook GrpcDebugHook TensorBoardDebugHook",
    "tensortap.engines.base": "get_default_session",
    "tensortap.engines.graph": "Graph GraphKeys get_default_graph",
    "tensortap.engines.options": "DebugOptions DebugTensorWatch RunMetadata RunOptions TraceLevel",
    "tensortap.profile.hook": "ProfilerHook",
    "tensortap.profile.timeline": "Timeline",
    "tensortap.records": "Device Frame Node TensorSpec",
    "tensortap.run.args": "SessionRunArgs SessionRunContext SessionRunValues",
    "tensortap.run.builtin.checkpoint": "CheckpointSaverHook CheckpointSaverListener",
    "tensortap.run.builtin.counter": "StepCounterHook",
    "tensortap.run.builtin.feed_fn": "FeedFnHook",
    "tensortap.run.builtin.final_ops": "FinalOpsHook",
    "tensortap.run.builtin.logging": "LoggingTensorHook",
    "tensortap.run.builtin.nan": "NanTensorHook",
    "tensortap.run.builtin.stopping": "MultiStepStopAtStepHook StopAtStepHook",
    "tensortap.run.builtin.summary_saver": "SummarySaverHook",
    "tensortap.run.builtin.waiter": "GlobalStepWaiterHook",
    "tensortap.run.coordinator": "Coordinator LooperThread",
    "tensortap.run.creators": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
    "tensortap.run.hooks": "SessionRunHook",
    "tensortap.run.monitored": "MonitoredSession SingularMonitoredSession",
    "tensortap.run.saver": "Saver latest_checkpoint",
    "tensortap.run.scaffold": "Scaffold",
    "tensortap.run.timer": "NeverTriggerTimer SecondOrStepTimer",
    "tensortap.run.training": "MonitoredTrainingSession",
    "tensortap.sink.budget": "Budget",
    "tensortap.sink.retention": "Retention",
    "tensortap.sink.stream_options": "StreamOptions",
    "tensortap.watch.match": "add_debug_tensor_watch watch_graph watch_graph_with_denylists",
    "tensortap.watch.options": "WatchOptions",
}
_MODULES = (
    "errors",
    "torch",
)  # not in `__all__`: `from tensortap import *` must not replace the user's `torch`
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    if name in _MODULES:
        return import_module(f"tensortap.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
