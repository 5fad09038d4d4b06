from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensortap.hooks import creators, recovery, timer
from tensortap.hooks.builtin import waiter
from tensortap.hooks.summary import FileWriterCache
from tests.engines import numpy_engine
from tests.tensorflow import import_tensorflow

from .counter_session import CounterSession


class FakeClock:
    """A clock that only moves when told, or when somebody sleeps by it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Time for all hooks, timers and retries: nothing in these tests really waits."""
    fake = FakeClock()
    monkeypatch.setattr(timer, "default_clock", fake)
    monkeypatch.setattr(creators, "clock", fake)
    for module in (creators, recovery, waiter):
        monkeypatch.setattr(module, "sleep", fake.sleep)
    return fake


@pytest.fixture(autouse=True)
def _event_writers() -> Iterator[None]:
    yield
    FileWriterCache.clear()


def _torch_session(step: Callable[..., Any]) -> Any:
    torch = pytest.importorskip("torch")
    from tensortap.engines.torch import Session

    def torch_step(x: Any = 1.0) -> dict[str, Any]:
        return {key: torch.as_tensor(value) for key, value in step(x).items()}

    return Session(torch_step)


def _numpy_session(step: Callable[..., Any]) -> Any:
    def numpy_step(x: Any = 1.0) -> dict[str, Any]:
        return {key: np.asarray(value) for key, value in step(x).items()}

    return numpy_engine.Session(numpy_step)


def _tensorflow_session(step: Callable[..., Any]) -> Any:
    tf = import_tensorflow()
    from tensortap.engines.tensorflow import Session

    keys = list(step(1.0))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder_with_default(np.float64(1), None, name="x")
        computed = tf.numpy_function(
            lambda x: [np.float64(each) for each in step(x.item()).values()], [x], [tf.float64] * len(keys)
        )
        results = {
            key: tf.identity(each, name=f"{key}_value") for key, each in zip(keys, computed, strict=True)
        }
        counted = tf.compat.v1.train.get_or_create_global_step()
        with tf.control_dependencies(computed):
            counting = counted.assign_add(1).op
    return Session(graph=graph, step={**results, "count": counting})


def _jax_session(step: Callable[..., Any]) -> Any:
    jax = pytest.importorskip("jax")
    from tensortap.engines.jax import Session

    def jax_step(x: Any = 1.0) -> dict[str, Any]:
        return {key: jax.numpy.asarray(value) for key, value in step(x).items()}

    return Session(jax_step)


_SESSIONS = {
    "torch": _torch_session,
    "numpy": _numpy_session,
    "tensorflow": _tensorflow_session,
    "jax": _jax_session,
}


@pytest.fixture(params=["counter", "counter_old_step", *_SESSIONS])
def make_session(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Any]:
    """Makes a session of a step over plain numbers, on each kind of engine."""
    if request.param in _SESSIONS:
        return _SESSIONS[request.param]
    return lambda step: CounterSession(step, fetches_old_step=request.param == "counter_old_step")
