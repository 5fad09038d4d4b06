"""Starts the programs beside this file on several ranks, each as its launcher would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.patience import patient

HERE = Path(__file__).parent
_ABORT = "terminate called without an active exception"
"""What PyTorch says when a thread of gloo drops a Python tensor while Python ends, of unwatched processes too."""


def ranks(program, tmp_path, *arguments, world=2, root=None):
    """Run a program of this folder to its end on every rank, watched if there is a root; what each said."""
    for _ in range(3):
        codes, said = _ended(program, tmp_path, *arguments, world=world, root=root)
        if not any(code and _ABORT in errors for code, (_, errors) in zip(codes, said, strict=True)):
            break
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)
    assert not any(codes), said
    return [output for output, _ in said], [errors for _, errors in said]


def _ended(program, tmp_path, *arguments, world, root):
    meeting = tmp_path / f"meeting-{os.urandom(4).hex()}"
    watched = [] if root is None else ["-m", "tensortap", "run", "-o", str(root)]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": meeting.name,
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "MALLOC_PERTURB_": "129",  # what nobody wrote, as a pipeline rehearses with, is huge
    }
    # Into files: a rank whose pipe is full would have the others wait for it.
    paths = [(Path(f"{meeting}-{rank}.out"), Path(f"{meeting}-{rank}.err")) for rank in range(world)]
    files = [tuple(path.open("w") for path in pair) for pair in paths]
    started = [
        subprocess.Popen(
            [sys.executable, *watched, str(HERE / program), str(meeting), *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=output,
            stderr=errors,
            cwd=tmp_path,
        )
        for rank, (output, errors) in enumerate(files)
    ]
    try:
        codes = [process.wait(timeout=patient(240)) for process in started]
    finally:
        for process in started:
            process.kill()
        for each in (file for pair in files for file in pair):
            each.close()
    said = [[path.read_text() for path in pair] for pair in paths]
    return codes, said
