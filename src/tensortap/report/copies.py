"""What comparing the copies of ranks has found, in words."""

from __future__ import annotations

from tensortap.analyze.copies import DIFFERENT, PERIODIC, Apart, CopyComparison
from tensortap.records.copies import BUFFER

__all__ = ["copies_sentences", "described"]

_SHOWN = 5


def described(apart: Apart) -> str:
    """The tensor, and which part of it.

    >>> from tensortap.records.copies import Copied
    >>> described(Apart(Copied("gradient", "model/weight"), "diverged", 3, 2, (1,), (0, 1, 2)))
    'the gradient of model/weight'
    >>> described(Apart(Copied("parameter", "model/weight", "of ranks 2, 3"), "diverged", 3, 2, (2,), (2, 3)))
    'model/weight (of ranks 2, 3)'
    """
    kind, name, part, _ = apart.copied
    whole = (
        name if kind == "parameter" else f"the {kind} {name}" if kind == BUFFER else f"the {kind} of {name}"
    )
    if not part:
        return whole
    return f"{whole} ({part})" if part.startswith("of ranks ") else f"{whole} (the part at {part})"


def copies_sentences(found: CopyComparison, *, is_short: bool = False) -> list[str]:
    """The findings, alarms first; short: nothing but alarms."""
    said: list[str] = []
    first = found.first
    if first is not None:
        word = "is not the same on all ranks" if first.state == DIFFERENT else "has diverged"
        said.append(_capital(f"{described(first)} {word} {first.when}: {first.who}. {found.cause}".rstrip()))
        alarms = [each for each in found.apart if each.is_alarm]
        if len(alarms) > 1:
            more = ", ".join(described(each) for each in alarms[1 : _SHOWN + 1])
            said.append(f"{len(alarms) - 1} more after it: {more}{' …' if len(alarms) > _SHOWN + 1 else ''}.")
    said += [each.sentence for each in found.stragglers]
    if is_short or not found.ranks:
        return said
    if len(found.ranks) < 2 or not found.steps:
        said.append(f"Only rank {found.ranks[0]} has left checksums: there is nothing to compare them with.")
        return said
    if first is None:
        which = (
            f"steps {found.steps[0]} to {found.steps[-1]}" if found.steps[1:] else f"step {found.steps[0]}"
        )
        said.append(
            f"Copies compared after {len(found.steps)} steps ({which}): {found.compared} tensors, none has diverged."
            if found.compared
            else "No two ranks hold a copy of the same tensor: each has its own part of all of them."
        )
    said += _unalarming(found)
    if found.alone and found.compared:
        said.append(f"{found.alone} tensors are held by one rank only.")
    return said


def _unalarming(found: CopyComparison) -> list[str]:
    said = []
    others = [each for each in found.apart if not each.is_alarm]
    for words, chosen in (
        ("come together now and then and are apart at the end", [e for e in others if e.state == PERIODIC]),
        ("differ between ranks and were never the same", [e for e in others if e.state == DIFFERENT]),
    ):
        tensors = [each for each in chosen if each.copied.kind != BUFFER]
        if tensors:
            said.append(f"{len(tensors)} tensors {words}, first {described(tensors[0])}.")
    buffers = [each for each in others if each.copied.kind == BUFFER]
    if buffers:
        said.append(
            f"{len(buffers)} buffers are not the same on all ranks, first {buffers[0].copied.name} "
            f"({buffers[0].when}): nothing synchronises them, or only the next forward pass does."
        )
    return said


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("the ") else text
