"""Settings of the whole test run, and the order in which a test leaves the machine."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.patience import patience

# Tests run in parallel on few cores; waiting threads of PyTorch would take them from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Property tests look for new examples on a developer's machine; a build must not fail by luck.
settings.register_profile("build", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("build")


@pytest.fixture(autouse=True)
def warnings_given_once_are_given_in_every_test():
    """What is said once per process is said once per test, whichever tests ran before."""
    from tensortap.sink.base import notices

    notices.forget()


@pytest.fixture(autouse=True)
def senders_end_with_their_test():
    """Servers of a test are gone after it; the end of the test run must neither wait for them nor report on them."""
    yield
    senders = sys.modules.get("tensortap.sink.stream.senders")
    if senders is not None:
        senders.close_all()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Limits of whole tests follow how busy the machine is, as those within them do."""
    limit = item.get_closest_marker("timeout")
    seconds = limit.args[0] if limit and limit.args else float(item.config.getini("timeout") or 0)
    if seconds and not item.config.getoption("timeout", None):
        item.add_marker(pytest.mark.timeout(seconds * max(3.0, patience())), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """What a test has started ends with it if it fails; one that passes sees to it itself."""
    before = _children()
    try:
        return (yield)
    except BaseException:
        _kill(_children() - before)
        raise


def pytest_sessionfinish():
    """Nothing stays behind, whatever happened."""
    _kill(_children())


def _children() -> set[int]:
    """Processes that this one has started, and all that they have, without the helpers of multiprocessing."""
    parents = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdecimal():
            try:
                parents[int(entry)] = int(
                    Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
                )
                if b"multiprocessing" in Path(f"/proc/{entry}/cmdline").read_bytes():
                    del parents[int(entry)]
            except (OSError, IndexError, ValueError):
                continue
    found, generation = set(), {os.getpid()}
    while generation := {child for child, parent in parents.items() if parent in generation}:
        found |= generation
    return found


def _kill(processes: set[int]) -> None:
    for each in processes:
        try:
            os.kill(each, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
