"""Bad results of compiled code in which no operation is bad by itself."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.findings import Cause

__all__ = ["only_together"]


def only_together(case: Case) -> Cause | None:
    """What a program returned whose operations were executed again, one by one, and are good, or could not be."""
    if case.node.op_type != "executable":
        return None
    if "donated" in case.node.attributes:
        return Cause(
            "arguments-donated",
            f"The call returned it, in {case.node.attributes.get('bad_results')} results. Its arguments were donated, "
            "and not kept, so it cannot be executed again to find the operation.",
            advice="Run it again without --no-copies to have the operation named.",
        )
    if "repeats" not in case.node.attributes:
        return Cause(
            "not-looked-inside",
            "The call returned it. Its operations could not be looked at: a shard_map over some axes of a mesh, for "
            "example, takes no taps.",
            advice="Put jax.debug.print or jax.debug.callback around the operations you suspect, or name all axes of "
            "the mesh in the shard_map.",
        )
    if str(case.node.attributes.get("repeats")) not in ("True", "1"):
        return Cause(
            "not-repeated",
            "The call returned it, and given the same arguments once more it does not: nothing is bad in it then.",
            advice="It depends on something besides its arguments: a callback, or the order in which threads add up.",
        )
    return Cause(
        "only-compiled",
        "The compiled program returns it, but executed one by one, none of its operations is bad: what the compiler "
        "makes of them together (fused, reordered, constants folded) overflows or loses a digit that matters.",
        advice="Look for products and quotients of extreme constants, and for differences of equal numbers; "
        "XLA_FLAGS=--xla_backend_optimization_level=0 tells whether it is that.",
    )
