"""Settings of the whole test run."""

import os

# Tests run in parallel on few cores; waiting threads of PyTorch would take them from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
