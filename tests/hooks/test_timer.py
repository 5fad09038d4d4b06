"""When periodic hooks act."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.hooks.timer import NeverTriggerTimer, SecondOrStepTimer

from .conftest import FakeClock


@pytest.mark.parametrize("periods", [{}, {"every_secs": 1.0, "every_steps": 2}])
def test_exactly_one_period(periods: dict[str, float]) -> None:  # B1
    with pytest.raises(ValueError, match="exactly one of every_secs and every_steps"):
        SecondOrStepTimer(**periods)  # type: ignore[arg-type]


def test_every_steps() -> None:  # B2 B3
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert [step for step in range(1, 8) if timer.should_trigger_for_step(step)] == [4, 5, 6, 7]
    assert timer.update_last_triggered_step(5)[1] == 4
    assert timer.last_triggered_step() == 5
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(5)


def test_every_secs(clock: FakeClock) -> None:  # B2 B3
    timer = SecondOrStepTimer(every_secs=1.0)
    assert timer.should_trigger_for_step(1)
    timer.update_last_triggered_step(1)
    clock.now += 0.9
    assert not timer.should_trigger_for_step(2)
    clock.now += 0.1
    assert not timer.should_trigger_for_step(1)  # never twice for one step
    assert timer.should_trigger_for_step(2)
    elapsed_secs, elapsed_steps = timer.update_last_triggered_step(2)
    assert elapsed_secs == pytest.approx(1.0)
    assert elapsed_steps == 1


def test_a_clock_can_be_given() -> None:
    times = iter([10.0, 13.5])
    timer = SecondOrStepTimer(every_secs=1.0, clock=lambda: next(times))
    timer.update_last_triggered_step(0)
    assert timer.update_last_triggered_step(2) == (3.5, 2)


def test_never() -> None:  # B4
    timer = NeverTriggerTimer()
    timer.reset()
    assert not timer.should_trigger_for_step(0)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert timer.last_triggered_step() is None


@given(st.integers(1, 20), st.lists(st.integers(0, 7), max_size=60))
def test_triggers_are_never_closer_than_the_period(every: int, advances: list[int]) -> None:  # B2
    timer, step, triggered = SecondOrStepTimer(every_steps=every), 0, []
    for advance in advances:
        step += advance
        if timer.should_trigger_for_step(step):
            timer.update_last_triggered_step(step)
            triggered.append(step)
    assert all(b - a >= every for a, b in itertools.pairwise(triggered))
    assert bool(triggered) == bool(advances)
