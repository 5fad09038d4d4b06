"""A debugger and profiler for the tensors of a training run.

Importing this package imports nothing else, no framework above all: every part wakes when it is first used, so that
commands which only read answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensortap import errors as errors
    from tensortap import tensorflow as tensorflow
    from tensortap import torch as torch
    from tensortap.check_hook import CheckHook
    from tensortap.commands.ray_workers import ray_runtime_env
    from tensortap.debug.dumping import DumpingDebugWrapperSession
    from tensortap.debug.grpc import GrpcDebugWrapperSession, TensorBoardDebugWrapperSession
    from tensortap.debug.hooks import DumpingDebugHook, GrpcDebugHook, TensorBoardDebugHook
    from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
    from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook, CheckpointSaverListener
    from tensortap.hooks.builtin.counter import StepCounterHook
    from tensortap.hooks.builtin.feed_fn import FeedFnHook
    from tensortap.hooks.builtin.final_ops import FinalOpsHook
    from tensortap.hooks.builtin.logging import LoggingTensorHook
    from tensortap.hooks.builtin.nan import NanTensorHook
    from tensortap.hooks.builtin.stopping import MultiStepStopAtStepHook, StopAtStepHook
    from tensortap.hooks.builtin.summary_saver import SummarySaverHook
    from tensortap.hooks.builtin.waiter import GlobalStepWaiterHook
    from tensortap.hooks.coordinator import Coordinator, LooperThread
    from tensortap.hooks.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
    from tensortap.hooks.hook import SessionRunHook
    from tensortap.hooks.monitored import MonitoredSession, SingularMonitoredSession
    from tensortap.hooks.saver import Saver, latest_checkpoint
    from tensortap.hooks.scaffold import Scaffold
    from tensortap.hooks.timer import NeverTriggerTimer, SecondOrStepTimer
    from tensortap.hooks.training import MonitoredTrainingSession
    from tensortap.profile.hook import ProfilerHook
    from tensortap.profile.timeline import Timeline
    from tensortap.records import Device, Frame, Node, TensorSpec
    from tensortap.seam.base import get_default_session
    from tensortap.seam.graph import Graph, GraphKeys, get_default_graph
    from tensortap.seam.options import (
        DebugOptions,
        DebugTensorWatch,
        RunMetadata,
        RunOptions,
        TraceLevel,
    )
    from tensortap.sink.budget import Budget
    from tensortap.sink.retention import Retention
    from tensortap.sink.stream_options import StreamOptions
    from tensortap.watch.match import add_debug_tensor_watch, watch_graph, watch_graph_with_denylists
    from tensortap.watch.options import WatchOptions

__all__ = [
    "Budget",
    "CheckHook",
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
    "ray_runtime_env",
    "watch_graph",
    "watch_graph_with_denylists",
]


# Where each name lives.
_HOMES = {
    "tensortap.check_hook": "CheckHook",
    "tensortap.commands.ray_workers": "ray_runtime_env",
    "tensortap.debug.dumping": "DumpingDebugWrapperSession",
    "tensortap.debug.grpc": "GrpcDebugWrapperSession TensorBoardDebugWrapperSession",
    "tensortap.debug.hooks": "DumpingDebugHook GrpcDebugHook TensorBoardDebugHook",
    "tensortap.seam.base": "get_default_session",
    "tensortap.seam.graph": "Graph GraphKeys get_default_graph",
    "tensortap.seam.options": "DebugOptions DebugTensorWatch RunMetadata RunOptions TraceLevel",
    "tensortap.profile.hook": "ProfilerHook",
    "tensortap.profile.timeline": "Timeline",
    "tensortap.records": "Device Frame Node TensorSpec",
    "tensortap.hooks.args": "SessionRunArgs SessionRunContext SessionRunValues",
    "tensortap.hooks.builtin.checkpoint": "CheckpointSaverHook CheckpointSaverListener",
    "tensortap.hooks.builtin.counter": "StepCounterHook",
    "tensortap.hooks.builtin.feed_fn": "FeedFnHook",
    "tensortap.hooks.builtin.final_ops": "FinalOpsHook",
    "tensortap.hooks.builtin.logging": "LoggingTensorHook",
    "tensortap.hooks.builtin.nan": "NanTensorHook",
    "tensortap.hooks.builtin.stopping": "MultiStepStopAtStepHook StopAtStepHook",
    "tensortap.hooks.builtin.summary_saver": "SummarySaverHook",
    "tensortap.hooks.builtin.waiter": "GlobalStepWaiterHook",
    "tensortap.hooks.coordinator": "Coordinator LooperThread",
    "tensortap.hooks.creators": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
    "tensortap.hooks.hook": "SessionRunHook",
    "tensortap.hooks.monitored": "MonitoredSession SingularMonitoredSession",
    "tensortap.hooks.saver": "Saver latest_checkpoint",
    "tensortap.hooks.scaffold": "Scaffold",
    "tensortap.hooks.timer": "NeverTriggerTimer SecondOrStepTimer",
    "tensortap.hooks.training": "MonitoredTrainingSession",
    "tensortap.sink.budget": "Budget",
    "tensortap.sink.retention": "Retention",
    "tensortap.sink.stream_options": "StreamOptions",
    "tensortap.watch.match": "add_debug_tensor_watch watch_graph watch_graph_with_denylists",
    "tensortap.watch.options": "WatchOptions",
}
_MODULES = (
    "errors",
    "jax",
    "tensorflow",
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
