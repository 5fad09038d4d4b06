"""Starts the programs beside this file on several ranks, each as its launcher would."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests import warm

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
    # Into files: a rank whose pipe is full would have the others wait for it.
    paths = [(Path(f"{meeting}-{rank}.out"), Path(f"{meeting}-{rank}.err")) for rank in range(world)]
    codes = warm.ended(
        [
            {
                "arguments": [*watched, str(HERE / program), str(meeting), *arguments],
                "environment": {
                    "WORLD_SIZE": str(world),
                    "MASTER_ADDR": "localhost",
                    "MASTER_PORT": meeting.name,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                },
                "cwd": str(tmp_path),
                "stdout": str(output),
                "stderr": str(errors),
            }
            for rank, (output, errors) in enumerate(paths)
        ],
        240,
    )
    return codes, [[path.read_text() for path in pair] for pair in paths]
