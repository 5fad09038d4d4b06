"""The writer thread: order, bounds, and what happens when it stalls or dies."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tensortap.sink.queue import WriterQueue
from tests.patience import patient
from tests.sink.sample import Gate


@pytest.fixture
def queue():
    queue = WriterQueue(max_bytes=100)
    yield queue
    assert queue.drain(patient(10))


def test_jobs_are_done_in_order_by_one_other_thread(queue):
    done = []
    for number in range(50):
        assert queue.submit(lambda number=number: done.append((number, threading.current_thread().name)))
    assert queue.drain(patient(10))
    assert done == [(number, "tensortap-writer") for number in range(50)]


def test_a_full_queue_waits_for_the_writer_before_it_refuses(queue):
    gate = Gate()
    queue.submit(gate)
    gate.started.wait(patient(10))
    assert queue.submit(lambda: None, 100)
    threading.Timer(0.1, gate.opened.set).start()
    assert queue.submit(lambda: None, 50, max_wait_secs=10)


def test_a_writer_that_does_not_move_costs_the_wait_once(queue):
    gate = Gate()
    queue.submit(gate, 100)
    start = time.monotonic()
    refused = [queue.submit(lambda: None, 50, max_wait_secs=0.2) for _ in range(20)]
    assert refused == [False] * 20
    assert time.monotonic() - start < patient(1)
    assert queue.submit(lambda: None), "a job without size, such as the end of a run, is always accepted"
    gate.opened.set()
    queue.drain(patient(10))
    assert queue.submit(lambda: None, 50, max_wait_secs=0.2), "it waits again once the writer has moved"


def test_a_job_larger_than_the_bound_is_accepted_by_an_empty_queue(queue):
    done = []
    assert queue.submit(lambda: done.append(1), 10_000)
    assert queue.drain(patient(10))
    assert done == [1]
    assert queue.pending_bytes == 0


def test_a_job_that_raises_is_logged_and_the_next_one_is_done(queue, caplog):
    done = []
    queue.submit(lambda: 1 / 0, 10)
    queue.submit(lambda: done.append(1), 10)
    assert queue.drain(patient(10))
    assert done == [1]
    assert queue.faults == 1
    assert "Writing records failed" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_writer_thread_is_replaced(queue, caplog):
    died = []

    def die():
        died.append(threading.current_thread())
        raise SystemExit

    done = []
    queue.submit(die, 10)
    deadline = time.monotonic() + patient(10)
    while not died and time.monotonic() < deadline:
        time.sleep(0.01)
    died[0].join(patient(10))
    queue.submit(lambda: done.append(1), 10)
    assert queue.drain(patient(10))
    assert done == [1]
    assert queue.pending_bytes == 0
    assert "died" in caplog.text


def test_draining_gives_up_after_the_timeout(queue):
    gate = Gate()
    queue.submit(gate)
    assert not queue.drain(0.1)
    gate.opened.set()


def test_a_forked_process_begins_with_an_empty_queue(queue):
    gate = Gate()
    queue.submit(gate, 60)
    gate.started.wait(patient(10))
    parent = os.getpid()
    # A duty of the parent, which must not be done twice.
    queue.submit(lambda: os._exit(3) if os.getpid() != parent else None, 40)
    child = os.fork()
    if child == 0:
        done = []
        accepted = queue.submit(lambda: done.append(1), 50, max_wait_secs=0)
        drained = queue.drain(patient(10))
        os._exit(0 if accepted and drained and done == [1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.opened.set()
