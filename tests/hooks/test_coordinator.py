"""Coordinator and LooperThread."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest

from tensortap.errors import OutOfRangeError
from tensortap.hooks.coordinator import Coordinator, LooperThread


def failing(coord: Coordinator, error: Exception) -> threading.Thread:
    def work() -> None:
        with coord.stop_on_exception():
            raise error

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_stop_is_seen_by_everyone() -> None:  # A57
    coord = Coordinator()
    assert not coord.should_stop()
    assert not coord.wait_for_stop(0.001)
    coord.request_stop()
    assert coord.should_stop()
    assert coord.wait_for_stop()
    coord.clear_stop()
    assert not coord.should_stop()


def test_join_raises_the_first_error() -> None:  # A55 A56
    coord = Coordinator()
    failing(coord, ValueError("first")).join()
    failing(coord, KeyError("second")).join()
    with pytest.raises(ValueError, match="first"):
        coord.join()
    assert coord.joined


def test_errors_may_come_as_exception_or_triple_and_outside_an_except_block() -> None:  # A55
    for make in (lambda: ValueError("plain"), lambda: (ValueError, ValueError("triple"), None)):
        coord = Coordinator()
        coord.request_stop(make())
        assert coord.should_stop()
        with pytest.raises(ValueError, match=r"plain|triple"):
            coord.raise_requested_exception()
    coord = Coordinator()
    try:
        raise ValueError("current")
    except ValueError:
        coord.request_stop(sys.exc_info())
    with pytest.raises(ValueError, match="current"):
        coord.join()


def test_an_error_after_a_clean_stop_is_dropped() -> None:  # A55
    coord = Coordinator()
    coord.request_stop()
    coord.request_stop(ValueError("late"))
    coord.join()


def test_end_of_input_is_a_clean_stop_by_default() -> None:  # A55
    coord = Coordinator()
    coord.request_stop(OutOfRangeError(None, "end"))
    assert coord.should_stop()
    coord.join()
    coord = Coordinator(clean_stop_exception_types=())
    coord.request_stop(OutOfRangeError(None, "end"))
    with pytest.raises(OutOfRangeError):
        coord.join()


def test_after_join_an_error_is_raised_at_once() -> None:  # A55
    coord = Coordinator()
    coord.request_stop()
    coord.join()
    coord.request_stop()
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))


def test_join_waits_for_threads_that_finish_by_themselves() -> None:  # A56
    coord = Coordinator()
    done = []
    threads = [threading.Thread(target=done.append, args=(n,)) for n in range(3)]
    coord.register_thread(threads[0])
    for thread in threads:
        thread.start()
    coord.join(threads)
    assert sorted(done) == [0, 1, 2]
    assert not coord.should_stop()


def test_stragglers_are_named_or_ignored(caplog: pytest.LogCaptureFixture) -> None:  # A56
    coord = Coordinator()
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, name=f"stuck-{n}", daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
        coord.register_thread(thread)
    coord.request_stop()
    with pytest.raises(RuntimeError, match=r"grace period of 0.01 s: stuck-0 stuck-1"):
        coord.join(stop_grace_period_secs=0.01)
    coord.join(stop_grace_period_secs=0.01)  # registered threads were cleared
    with caplog.at_level(logging.INFO):
        coord.join(threads, stop_grace_period_secs=0.01, ignore_live_threads=True)
    assert "stuck-0 stuck-1" in caplog.text
    release.set()
    for thread in threads:
        thread.join()


def test_exit_requests_stop_the_others_but_are_not_swallowed() -> None:  # A57
    coord = Coordinator()
    with pytest.raises(KeyboardInterrupt), coord.stop_on_exception():
        raise KeyboardInterrupt
    assert coord.should_stop()


def test_clear_stop_forgets_the_error() -> None:  # A57
    coord = Coordinator()
    coord.request_stop(ValueError("old"))
    coord.clear_stop()
    coord.raise_requested_exception()
    coord.join()
    coord.clear_stop()
    assert not coord.joined


def test_looper_calls_until_stopped() -> None:  # A58
    coord = Coordinator()
    events: list[Any] = []

    class Looper(LooperThread):
        def start_loop(self) -> None:
            events.append("start")

        def stop_loop(self) -> None:
            events.append("stop")

    def work(word: str, *, times: int) -> None:
        events.append(word)
        if events.count(word) == times:
            coord.request_stop()

    looper = Looper.loop(coord, 0.001, work, args=("work",), kwargs={"times": 3})
    coord.join()  # it registered itself
    assert not looper.is_alive()
    assert events == ["start", "work", "work", "work", "stop"]


def test_looper_can_be_subclassed_instead() -> None:  # A58
    coord = Coordinator()

    class Once(LooperThread):
        def run_loop(self) -> None:
            coord.request_stop()

    Once(coord, None).start()
    coord.join()


def test_looper_reports_errors() -> None:  # A58
    coord = Coordinator()

    def work() -> None:
        raise ValueError("planted")

    LooperThread.loop(coord, None, work)
    with pytest.raises(ValueError, match="planted"):
        coord.join()


def test_looper_needs_a_coordinator() -> None:  # A58
    with pytest.raises(ValueError, match="must be a Coordinator, got str"):
        LooperThread("coord", None)  # type: ignore[arg-type]
