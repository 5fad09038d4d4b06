"""Compiled programs, seen from inside: summaries of what compiled graphs compute, made by the graphs themselves.

    pill        the operator that summarises a tensor
    graph       a graph of the compiler in the terms of a run, and its taps
    backend     inductor, without taps and with them
    collector   where tapped code delivers
    taps        the collector of a run: nodes and names

Importing this is what `torch.compile(..., backend="tensortap")` does, and so how the engine knows that a program
wants its watched runs compiled.
"""

from tensortap.engines.torch.compiled.backend import inductor, tapped
from tensortap.engines.torch.compiled.collector import collecting
from tensortap.engines.torch.compiled.taps import GraphTaps

__all__ = ["GraphTaps", "collecting", "inductor", "tapped"]
