"""Plays all scenarios with TensorFlow's own monitored sessions, with its hooks and with ours in them, and prints the
logs as JSON.

Run as a script in a process of its own, so that TensorFlow is never loaded beside another engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import scenarios  # noqa: E402
import tensorflow as tf  # noqa: E402

import tensortap as tt  # noqa: E402

v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.FATAL)
GRACE_SECS = 5


class LoggingHook(scenarios.Hook, v1.train.SessionRunHook):
    """The scenario's hook as a TensorFlow hook."""


class TensorFlowWorld:
    def __init__(self, directory: str) -> None:
        self.log: list[str] = []
        self.directory = directory
        self.raw: Any = None
        self.graph = tf.Graph()
        with self.graph.as_default():
            global_step = v1.train.get_or_create_global_step()
            # Feeds reach the step, so that a run which ignored them would show.
            self.x = v1.placeholder_with_default(1, [], name="x")
            self.z = tf.identity(v1.placeholder_with_default(0, [], name="z_in"), name="z")
            self.y = tf.identity(2 * self.x, name="y")
            self.loss = v1.log(tf.cast(self.x, tf.float32), name="loss")
            self.step = v1.assign_add(global_step, 1)
        self.x_spelled_otherwise = "x:0"

    def hook(self, name: str, plan: Any = None, request: Any = None) -> LoggingHook:
        return LoggingHook(self, name, plan, request)

    def args(self, fetches: Any, feed_dict: Any = None) -> Any:
        return v1.train.SessionRunArgs(fetches, feed_dict)

    def aborted(self) -> Exception:
        return tf.errors.AbortedError(None, None, "planted")

    def unavailable(self) -> Exception:
        return tf.errors.UnavailableError(None, None, "planted")

    def out_of_range(self) -> Exception:
        return tf.errors.OutOfRangeError(None, None, "planted")

    def subclassed(self, error: Exception, name: str) -> Exception:
        return type(name, (type(error),), {})(None, None, "planted")

    def monitored(
        self, hooks: Any, engine: Iterable[Any] = (), create: Iterable[Any] = (), close_error: Any = None
    ) -> Any:
        world, failures, create_failures = self, iter(engine), iter(create)
        scaffold = v1.train.Scaffold()

        class PlantedSession(v1.Session):
            def run(self, fetches: Any, *args: Any, **kwargs: Any) -> Any:
                if world.raw is self:
                    failure = next(failures, None)
                    if isinstance(failure, Exception):
                        raise failure
                    if failure is not None:
                        failure()
                return super().run(fetches, *args, **kwargs)

            def close(self) -> None:
                super().close()
                if close_error is not None:
                    raise close_error

        class Creator(v1.train.SessionCreator):
            def create_session(self) -> Any:
                world.log.append("create")
                world.raw = None
                failure = next(create_failures, None)
                if failure is not None:
                    raise failure
                scaffold.finalize()
                session = PlantedSession(graph=world.graph)
                session.run(scaffold.init_op)
                world.raw = session
                return session

        return v1.train.MonitoredSession(Creator(), hooks, stop_grace_period_secs=GRACE_SECS)

    def wrapped(self, hooks: Any) -> Any:
        world = self

        class Creator(v1.train.SessionCreator):
            def __init__(self) -> None:
                self.chief = v1.train.ChiefSessionCreator()

            def create_session(self) -> Any:
                world.log.append("create")
                return self.chief.create_session()

        return v1.train.MonitoredSession(Creator(), hooks, stop_grace_period_secs=GRACE_SECS)

    def stop_at(self, last_step: int) -> Any:
        return v1.train.StopAtStepHook(last_step=last_step)

    def step_counter(self) -> Any:
        return v1.train.StepCounterHook(every_n_steps=1)

    def derive(self, name: str) -> Any:
        return tf.add(self.y, 1, name=name)

    def nan_hook(self) -> Any:
        return v1.train.NanTensorHook(self.loss)

    def saver(self) -> Any:
        return v1.train.CheckpointSaverHook(self.directory, save_steps=1, saver=v1.train.Saver())

    def checkpointed(self, hooks: Any) -> Any:
        creator = v1.train.ChiefSessionCreator(checkpoint_dir=self.directory)
        return v1.train.MonitoredSession(creator, hooks, stop_grace_period_secs=GRACE_SECS)

    def saved(self) -> list[int]:
        names = (name for name in os.listdir(self.directory) if name.endswith(".index"))
        return sorted(int(name.removesuffix(".index").rpartition("-")[2]) for name in names)

    def singular(self, hooks: Any) -> Any:
        return v1.train.SingularMonitoredSession(hooks, stop_grace_period_secs=GRACE_SECS)


class GuestHook(scenarios.Hook, tt.SessionRunHook):
    """The scenario's hook as one of ours."""


class GuestWorld(TensorFlowWorld):
    """The same sessions of TensorFlow's, with hooks of ours in them."""

    def hook(self, name: str, plan: Any = None, request: Any = None) -> Any:
        return GuestHook(self, name, plan, request)

    def args(self, fetches: Any, feed_dict: Any = None) -> Any:
        return tt.SessionRunArgs(fetches, feed_dict)

    def stop_at(self, last_step: int) -> Any:
        return tt.StopAtStepHook(last_step=last_step)

    def step_counter(self) -> Any:
        return tt.StepCounterHook(every_n_steps=1)

    def nan_hook(self) -> Any:
        return tt.NanTensorHook(self.loss)

    def saver(self) -> Any:
        return tt.CheckpointSaverHook(self.directory, save_steps=1, saver=v1.train.Saver())


def play(name: str, world_class: type[TensorFlowWorld]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        world = world_class(directory)
        with world.graph.as_default():
            return scenarios.play(name, world)


def main() -> None:
    v1.disable_eager_execution()
    logs = {name: play(name, TensorFlowWorld) for name in scenarios.SCENARIOS}
    guests = {name: play(name, GuestWorld) for name in scenarios.SCENARIOS}
    json.dump({"logs": logs, "guests": guests}, sys.stdout)


if __name__ == "__main__":
    main()
