"""Work beside a program leaves it the interpreter, until somebody waits for that work."""

import sys
import threading
import time

from tensortap.launch.polite import Politely


def worked(hurry, secs):
    """How much of a processor a busy thread has taken within a block of so many seconds, from 0 to 1."""
    shares = []

    def work():
        with Politely(hurry):
            began, until = time.thread_time(), time.monotonic() + secs
            while time.monotonic() < until:
                sorted(range(50))
            shares.append((time.thread_time() - began) / secs)
        assert sys.getprofile() is None

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return shares[0]


def test_a_busy_thread_rests_most_of_the_time_unless_it_has_to_hurry():
    hurry = threading.Event()
    politely = worked(hurry, 1.0)
    assert politely < 0.3
    hurry.set()
    assert worked(hurry, 1.0) > politely
