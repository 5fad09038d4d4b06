"""Starts the programs beside this file on several ranks, each as its launcher would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import patient

HERE = Path(__file__).parent


def ranks(program, tmp_path, *arguments, world=2, root=None):
    """Run a program of this folder to its end on every rank, watched if there is a root; what each said."""
    meeting = tmp_path / f"meeting-{os.urandom(4).hex()}"
    watched = [] if root is None else ["-m", "tensortap", "run", "-o", str(root)]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": meeting.name,
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    started = [
        subprocess.Popen(
            [sys.executable, *watched, str(HERE / program), str(meeting), *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(world)
    ]
    ended = [process.communicate(timeout=patient(240)) for process in started]
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in ended], [errors for _, errors in ended]
