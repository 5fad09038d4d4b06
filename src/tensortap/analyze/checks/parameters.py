"""What the updates of a session say of its parameters, as several rules ask."""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.analyze.checks.evidence import Evidence
from tensortap.records import ParameterUpdate, Update

__all__ = ["History", "outermost", "untrained", "without_gradient"]

History = list[tuple[Update, ParameterUpdate]]
"""What each update meant to a parameter."""


def outermost(chosen: Iterable[str], everything: Iterable[str]) -> dict[str, list[str]]:
    """Names as the outermost modules that hold nothing but such names, with what each of them holds.

    >>> outermost(["a/b/w", "a/b/v", "a/c/w"], ["a/b/w", "a/b/v", "a/c/w", "a/c/v"])
    {'a/b': ['a/b/w', 'a/b/v'], 'a/c/w': ['a/c/w']}
    """
    wanted = set(chosen)
    whole: dict[str, bool] = {}
    for name in everything:
        parts = name.split("/")
        for length in range(1, len(parts) + 1):
            prefix = "/".join(parts[:length])
            whole[prefix] = whole.get(prefix, True) and name in wanted
    found: dict[str, list[str]] = {}
    for name in sorted(wanted, key=list(everything).index):
        parts = name.split("/")
        prefixes = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
        found.setdefault(next(prefix for prefix in prefixes if whole[prefix]), []).append(name)
    return found


def untrained(evidence: Evidence, least: int = 2) -> dict[str, History]:
    """Parameters that get gradients in at least so many updates, that no optimizer has, and that nobody changes."""
    found = {}
    for name, history in evidence.parameters.items():
        if any(each.held or not each.trains or not each.is_owned for _, each in history):
            continue
        told = [(update, each) for update, each in history if each.gradient]
        marks = {each.mark for _, each in history}
        if len(told) >= least and len(marks) == 1 and None not in marks:
            found[name] = told
    return found


def without_gradient(evidence: Evidence, least: int) -> dict[str, History]:
    """Parameters that an optimizer has and the loss never leads to, though it leads to others of that optimizer.

    A program that uses parts of its model now and then is left alone: it may come to these, too.
    """
    reached: dict[str, set[bool | None]] = {
        name: {each.is_reached for _, each in history} for name, history in evidence.parameters.items()
    }
    changing = {
        name.split("/")[0]
        for name, seen in reached.items()
        if {True, False} <= seen and _alone(evidence, name)
    }
    found = {}
    for name, history in evidence.parameters.items():
        own = [
            (update, each)
            for update, each in history
            if update.optimizer in each.held and not update.is_skipped
        ]
        if len(own) < least or name.split("/")[0] in changing or reached[name] != {False}:
            continue
        is_untouched = all(
            each.trains and each.is_owned and each.gradient is None and not each.changed
            for _, each in history
        )
        others = all(
            any(other.is_reached and update.optimizer in other.held for other in update.parameters)
            for update, _ in own
        )
        if is_untouched and others and len({each.mark for _, each in history}) == 1:
            found[name] = own
    return found


def _alone(evidence: Evidence, name: str) -> bool:
    """Whether the updates of one optimizer that has a parameter differ in whether the loss leads to it."""
    own = [
        (update.optimizer, each.is_reached)
        for update, each in evidence.parameters[name]
        if update.optimizer in each.held
    ]
    return any({(optimizer, True), (optimizer, False)} <= set(own) for optimizer, _ in own)
