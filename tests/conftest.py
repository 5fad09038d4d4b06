"""Settings of the whole test run."""

import os

import pytest
from hypothesis import settings

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
