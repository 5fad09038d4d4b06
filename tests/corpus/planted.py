"""What a planted fault is: a training program of the kind people write, and the answer it must get.

A plant is a function that returns a `Program`; the line at fault ends in `# here`. The answer says what an engineer
would call the cause: where the analysis says something else, it is the analysis that has to change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tests.analyze.planted import Program, batches

NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class Plant:
    """A program and its answer.

    Attributes:
        build: makes the program.
        node: full name of the node that makes the first bad value.
        op_type: what it executes.
        kind: of the cause.
        says: words the sentence of cause must have.
        phase: forward, backward, optimizer, input or parameter.
        module: path of its module, None outside of any.
        step: in which it happens.
        reached: what the bad value came to: "loss", "gradients" or "parameter"; None if it is not asked for.
    """

    build: Callable[[], Program]
    node: str
    op_type: str
    kind: str
    says: str
    phase: str
    module: str | None
    step: int
    reached: str | None

    @property
    def name(self) -> str:
        return self.build.__name__

    @property
    def line(self) -> int | None:
        """Number of the line that ends in `# here`, None if the fault is in no line."""
        lines, start = inspect.getsourcelines(self.build)
        return next((start + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")), None)


PLANTS: list[Plant] = []


def plant(node, op_type, kind, says, *, phase="forward", module=None, step=0, reached=None):
    def add(build):
        PLANTS.append(Plant(build, node, op_type, kind, says, phase, module, step, reached))
        return build

    return add


def optimized(modules, optimizer, loss_of, feeds):
    """A program that trains several modules on one loss."""

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return Program(step, modules, {"optimizer": optimizer}, feeds)


def layers(last=2):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, last))


def blank_rows(step, count=4):
    """Batches of random rows; in one of them some rows are all zero, as padding is."""
    feeds = batches(count)
    feeds[step]["x"][2:4] = 0
    return feeds
