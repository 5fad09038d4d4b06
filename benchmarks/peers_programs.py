"""Compares what tools cost on whole programs, those of `program_zoo.py`; `peers.py` compares them on one large step.

    python benchmarks/peers_programs.py mlp --rounds 5

A program runs in one process for each tool, and in one without any. They take turns, a block of steps each; the ratio
of a round is that of the times of its blocks, and the table has the median and the quartiles of the rounds. A tool that
cannot be used on a program has its reason there instead.

The tools do not do the same: `tensortap run` looks at every element of every tensor of a step for NaN and infinities,
and keeps that for hundreds of runs; anomaly detection looks for NaN in gradients; DebugMode keeps a log of operations
with shapes, or with an L1 norm of every tensor; TorchLens keeps all outputs of a model's forward pass in memory; and
msprobe writes statistics of what calls of PyTorch's functions get and return. The last two have to be installed
(`pip install --no-deps torchlens==2.36.1 graphviz`, `pip install mindstudio-probe==26.2.0`).
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from program_zoo import PROGRAMS, Step, serve
from programs import Program, quartiles, started
from torch import Tensor, nn

CHOSEN = ("mlp", "words", "unet")
BLOCK_SECS = 0.5
SETTLES_SECS = 4.0


def plain(step: Step) -> Step:
    return step


def anomaly(step: Step) -> Step:
    torch.autograd.set_detect_anomaly(True)
    return step


def debugmode(step: Step) -> Step:
    from torch.utils._debug_mode import DebugMode

    def logged() -> None:
        with DebugMode():
            step()

    return logged


def debugmode_hashes(step: Step) -> Step:
    from torch.utils._debug_mode import DebugMode

    def logged() -> None:
        with DebugMode(), DebugMode.log_tensor_hashes():
            step()

    return logged


class Traced:
    """A model whose forward pass TorchLens traces whenever it is called."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, *args: Any) -> Tensor:
        import torchlens

        trace = torchlens.trace(self._model, list(args))
        output: Tensor = trace[trace.output_layers[0]].out
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def torchlens(step: Step) -> Step:
    assert isinstance(step, FunctionType)
    for cell in step.__closure__ or ():
        if isinstance(cell.cell_contents, nn.Module):
            cell.cell_contents = Traced(cell.cell_contents)
    return step


def msprobe(step: Step) -> Step:
    os.environ["MSPROBE_LOG_LEVEL"] = "3"  # errors: it says several lines a step
    from msprobe.pytorch import PrecisionDebugger

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    choice = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    asked = {"task": "statistics", "level": "L1", "dump_path": str(folder), "rank": [], "step": []}
    config = folder / "config.json"
    config.write_text(json.dumps({**asked, "statistics": choice}))
    debugger = PrecisionDebugger(config_path=str(config))

    def dumped() -> None:
        debugger.start()
        step()
        debugger.stop()
        debugger.step()

    return dumped


TOOLS: dict[str, Callable[[Step], Step]] = {
    each.__name__: each for each in (plain, anomaly, debugmode, debugmode_hashes, torchlens, msprobe)
}
ROWS = ("tensortap", "anomaly", "debugmode", "debugmode_hashes", "torchlens", "msprobe")


def reason_against(tool: str, name: str) -> str:
    """Why a tool cannot be used on a program; nothing if it can."""
    if tool in ("torchlens", "msprobe") and find_spec(tool) is None:
        return "not installed"
    if tool == "torchlens" and name == "trainer":
        return "traces models that return tensors"
    return ""


def block_of(program: Program) -> int:
    """Let a program settle, for some seconds; how many of its steps make a block."""
    median = statistics.median(program.run(3)["walls"])
    median = statistics.median(program.run(max(3, int(SETTLES_SECS / median)))["walls"])
    return max(3, min(300, int(BLOCK_SECS / median)))


def measured(name: str, rounds: int) -> dict[str, list[float] | str]:
    """Ratios of each tool's blocks to those without a tool, round by round."""
    found: dict[str, list[float] | str] = {tool: reason_against(tool, name) for tool in ROWS}
    with ExitStack() as stack:
        plain = stack.enter_context(started(f"{name}:plain", None, __file__))
        running: dict[str, Program] = {}
        for tool in ROWS:
            if not found[tool]:
                watch = [] if tool == "tensortap" else None
                script_name = name if tool == "tensortap" else f"{name}:{tool}"
                script = {} if tool == "tensortap" else {"script": __file__}
                running[tool] = stack.enter_context(started(script_name, watch, **script))
        block = block_of(plain)
        blocks: dict[str, int] = {}
        for tool, program in running.items():
            try:
                blocks[tool] = block_of(program)
                found[tool] = []
            except SystemExit:
                found[tool] = "fails"
        for _ in range(rounds):
            without = statistics.mean(plain.run(block)["walls"])
            for tool, steps in blocks.items():
                ratios = found[tool]
                assert isinstance(ratios, list)
                ratios.append(statistics.mean(running[tool].run(steps)["walls"]) / without)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=CHOSEN, help=f"{', '.join(CHOSEN)} by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pipes", nargs=2, help="be one such program, commanded through these pipes")
    options = parser.parse_args()
    if options.pipes:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        name, _, tool = options.programs[0].partition(":")
        serve(TOOLS[tool](PROGRAMS[name]()), *options.pipes)
        return
    for name in options.programs:
        print(name)
        for tool, ratios in measured(name, options.rounds).items():
            if isinstance(ratios, str):
                print(f"  {tool:17} {ratios}")
            else:
                low, high = quartiles(ratios)
                print(f"  {tool:17} {statistics.median(ratios):5.2f}    {low:.2f}–{high:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
