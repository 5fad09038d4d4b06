"""Python processes that begin with PyTorch imported, which takes longer than most programs of tests.

One process imports what they need and waits; each job is forked from it before it has a thread, and then does what
`python FILE` or `python -m tensortap` would. What pins how a process begins starts a Python of its own instead.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.patience import patient

_IMPORTS = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "tensortap.commands",
)
_ROOT = Path(__file__).parent.parent
_ready: subprocess.Popen[str] | None = None


def ended(commands: list[dict[str, Any]], seconds: float = 120.0) -> list[int]:
    """The exit codes of processes that run at the same time.

    Each has `arguments` as python gets them, `environment` (what is added to ours), `cwd`, and the paths `stdout`
    and `stderr`.
    """
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(commands) + "\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], patient(seconds))
        assert readable, "they did not end in time"
        return json.loads(process.stdout.readline())
    except BaseException:
        close()
        raise


def close() -> None:
    """End the waiting process with all that it has started."""
    global _ready
    if _ready is not None:
        process, _ready = _ready, None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdin.close()
        process.stdout.close()


atexit.register(close)


def _process() -> subprocess.Popen[str]:
    global _ready
    if _ready is None or _ready.poll() is not None:
        close()
        _ready = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=_ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                "MALLOC_PERTURB_": "129",  # what nobody wrote, as a pipeline rehearses with, is huge
            },
        )
    return _ready


def _serve() -> dict[str, Any]:
    """Fork processes as they are asked for; returns in each of them, with what it is to be."""
    import importlib

    for name in _IMPORTS:
        importlib.import_module(name)
    for line in sys.stdin:
        started = []
        for command in json.loads(line):
            process = os.fork()
            if process == 0:
                return command
            started.append(process)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
        print(json.dumps(codes), flush=True)
    os._exit(0)


def _become(command: dict[str, Any]) -> None:
    for path, descriptor in ((os.devnull, 0), (command["stdout"], 1), (command["stderr"], 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(command["environment"])
    os.chdir(command["cwd"])
    arguments = command["arguments"]
    if arguments[:2] == ["-m", "tensortap"]:
        from tensortap.commands import main

        sys.argv, sys.path[0] = ["tensortap", *arguments[2:]], command["cwd"]
        sys.exit(main(arguments[2:]))
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _become(_serve())
