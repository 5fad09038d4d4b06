"""Two runs side by side: the first tensor that differs, and by how much the others do.

The runs may come from different processes, ranks or engines. Tensors are matched by name; what is left, by operation
and order. Of each pair the most exact record that both have is compared: values, pills or hashes.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensortap.analyze.facts import RunFacts, phase_of
from tensortap.analyze.health import Health, number_text
from tensortap.pill import BAD_NAMES, BAD_WORDS

__all__ = ["Comparison", "Diff", "Tolerance", "diff_runs"]

_CHUNK = 1 << 20
_MOST_ALIGNED = 20_000
"""Tensors without a namesake that are aligned by order; the time it takes may grow with the square."""


class Tolerance(NamedTuple):
    """Two numbers agree if |a−b| ≤ absolute + relative·|b|."""

    relative: float
    absolute: float


TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-7),
    "complex128": Tolerance(1e-7, 1e-7),
    "float32": Tolerance(1.3e-6, 1e-5),
    "complex64": Tolerance(1.3e-6, 1e-5),
    "float16": Tolerance(1e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "float8_e5m2": Tolerance(0.25, 1e-3),
    "float8_e4m3fn": Tolerance(0.125, 1e-3),
}
"""By dtype, what PyTorch's own tests use; everything else must be equal."""

_EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor in both runs.

    Attributes:
        left: its name in the first run.
        right: its name in the second.
        basis: what was compared: value, pill or hash.
        is_same: within the tolerance.
        difference: the largest difference, relative to the largest absolute value; infinite if shapes, NaNs or hashes
            differ.
        detail: how it differs, in words.
    """

    left: str
    right: str
    basis: str
    is_same: bool
    difference: float
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "left": self.left,
            "right": self.right,
            "basis": self.basis,
            "is_same": self.is_same,
            "difference": self.difference,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Diff:
    """What two runs have in common and what not.

    Attributes:
        compared: every pair, in the order of the first run.
        only_left: tensors that only the first run has.
        only_right: tensors that only the second run has.
        unknown: pairs that have no record in common.
    """

    left: RunFacts
    right: RunFacts
    compared: tuple[Comparison, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    unknown: int

    @property
    def first(self) -> Comparison | None:
        """The first tensor that differs, in the order of execution."""
        return next((each for each in self.compared if not each.is_same), None)

    @property
    def differing(self) -> list[Comparison]:
        """All that differ, the largest difference first."""
        return sorted((each for each in self.compared if not each.is_same), key=lambda each: -each.difference)

    @property
    def is_same(self) -> bool:
        """Whether nothing that both have differs."""
        return self.first is None


def diff_runs(
    left: RunFacts, right: RunFacts, *, relative: float | None = None, absolute: float | None = None
) -> Diff:
    """Compare two runs.

    Args:
        left: the run whose order counts.
        right: the other.
        relative: tolerance instead of that of the dtype.
        absolute: likewise.
    """
    pairs, only_left, only_right = _matched(left, right)
    compared, unknown = [], 0
    for one, other in pairs:
        comparison = _compare(left, right, one, other, relative, absolute)
        if comparison is None:
            unknown += 1
        else:
            compared.append(comparison)
    return Diff(left, right, tuple(compared), tuple(only_left), tuple(only_right), unknown)


def _matched(left: RunFacts, right: RunFacts) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Pairs of tensors, and what has no partner."""
    pairs = {
        tensor: tensor
        for tensor in left.order
        if tensor in right.order and _op(left, tensor) == _op(right, tensor)
    }
    rest_left = [tensor for tensor in left.order if tensor not in pairs]
    rest_right = [tensor for tensor in right.order if tensor not in pairs]
    if rest_left and rest_right and max(len(rest_left), len(rest_right)) <= _MOST_ALIGNED:
        matcher = difflib.SequenceMatcher(
            None,
            [_kind(left, each) for each in rest_left],
            [_kind(right, each) for each in rest_right],
            autojunk=False,
        )
        for a, b, size in matcher.get_matching_blocks():
            pairs.update(zip(rest_left[a : a + size], rest_right[b : b + size], strict=True))
    found = set(pairs.values())
    return (
        [(tensor, pairs[tensor]) for tensor in left.order if tensor in pairs],
        [tensor for tensor in left.order if tensor not in pairs],
        [tensor for tensor in right.order if tensor not in found],
    )


def _op(facts: RunFacts, tensor: str) -> str:
    node = facts.node_of(tensor)
    return "" if node is None else facts.operation(node).word


def _kind(facts: RunFacts, tensor: str) -> tuple[str, str, tuple[int | None, ...]]:
    """What two tensors of different names must have in common to be taken for the same."""
    node, spec = facts.node_of(tensor), facts.spec(tensor)
    if node is None:
        return tensor, "", ()
    return facts.operation(node).word, phase_of(node), () if spec is None else spec.shape


def _compare(
    left: RunFacts, right: RunFacts, one: str, other: str, relative: float | None, absolute: float | None
) -> Comparison | None:
    values = left.value(one), right.value(other)
    dtypes = [_dtype(left, one), _dtype(right, other)]
    known = [TOLERANCES.get(each, _EXACT) for each in dtypes]
    tolerance = Tolerance(
        max(each.relative for each in known) if relative is None else relative,
        max(each.absolute for each in known) if absolute is None else absolute,
    )
    if values[0] is not None and values[1] is not None:
        return Comparison(one, other, "value", *_compare_values(values[0], values[1], tolerance))
    healths = left.health(one), right.health(other)
    if healths[0] is not None and healths[1] is not None:
        return Comparison(one, other, "pill", *_compare_healths(healths[0], healths[1], tolerance))
    hashes = left.hash(one), right.hash(other)
    if hashes[0] is not None and hashes[1] is not None:
        same = hashes[0] == hashes[1]
        return Comparison(one, other, "hash", same, 0.0 if same else math.inf, "" if same else "other bits")
    return None


def _dtype(facts: RunFacts, tensor: str) -> str:
    value = facts.value(tensor)
    if value is not None:
        return str(value.dtype)
    health = facts.health(tensor)
    spec = facts.spec(tensor)
    return (health.dtype if health is not None else "") or ("" if spec is None else spec.dtype)


def _compare_values(
    a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: Tolerance
) -> tuple[bool, float, str]:
    if a.shape != b.shape:
        return False, math.inf, f"shape {list(a.shape)} and {list(b.shape)}"
    if a.dtype.kind not in "biufcV" or b.dtype.kind not in "biufcV":
        same = a.tolist() == b.tolist()
        return same, 0.0 if same else math.inf, "" if same else "other elements"
    wrong, largest, size, odd = 0, 0.0, 0.0, 0
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _CHUNK):
        x, y = (_calculable(each[start : start + _CHUNK]) for each in (flat_a, flat_b))
        with np.errstate(all="ignore"):
            equal = (x == y) | (np.isnan(x) & np.isnan(y))
            finite = np.isfinite(x) & np.isfinite(y)
            distance = np.where(finite, np.abs(x - y), 0.0)
            close = equal | (finite & (distance <= tolerance.absolute + tolerance.relative * np.abs(y)))
        wrong += int((~close).sum())
        odd += int((~finite & ~equal).sum())
        largest = max(largest, float(distance.max(initial=0.0)))
        size = max(size, float(np.where(finite, np.abs(y), 0.0).max(initial=0.0)))
    if not wrong:
        return True, 0.0, ""
    detail = f"{wrong} of {a.size} elements, by up to {number_text(largest)}"
    if odd:
        detail += f"; {odd} are NaN or infinite in only one"
    return False, math.inf if odd else largest / max(size, 1e-300), detail


def _calculable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _compare_healths(a: Health, b: Health, tolerance: Tolerance) -> tuple[bool, float, str]:
    if a.shape is not None and b.shape is not None and a.shape != b.shape:
        return False, math.inf, f"shape {list(a.shape)} and {list(b.shape)}"
    for name, said in zip(BAD_NAMES, BAD_WORDS, strict=True):
        if getattr(a, name) != getattr(b, name):
            return False, math.inf, f"{int(getattr(a, name))} and {int(getattr(b, name))} {said}"
    if not a.finite or not b.finite:
        return a.finite == b.finite, 0.0 if a.finite == b.finite else math.inf, ""
    size = max(a.magnitude, b.magnitude)
    limit = tolerance.absolute + tolerance.relative * size
    pairs = {
        "min": (a.min, b.min),
        "max": (a.max, b.max),
        "mean": (a.mean, b.mean),
        "std": (math.sqrt(max(a.variance, 0.0)), math.sqrt(max(b.variance, 0.0))),
    }
    distances = {name: abs(x - y) for name, (x, y) in pairs.items()}
    worst = max(distances, key=lambda name: distances[name])
    if distances[worst] <= limit:
        return True, 0.0, ""
    x, y = pairs[worst]
    return False, distances[worst] / max(size, 1e-300), f"{worst} {x:.6g} and {y:.6g}"
