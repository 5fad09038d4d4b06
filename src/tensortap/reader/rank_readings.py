"""What the ranks of a job recorded, run by run, for `analyze.ranks`."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from tensortap.analyze.ranks import Reading, RunReadings
from tensortap.errors import DamagedValueError
from tensortap.pill import HASH_OP, NAN_COUNT_OP, PILL_OP
from tensortap.reader.session_dir import SessionDir
from tensortap.records.task import is_rank
from tensortap.store.stored_run import StoredRun, StoredTensor, open_run

__all__ = ["COMPARED_OPS", "rank_readings"]

log = logging.getLogger(__name__)

COMPARED_OPS = (HASH_OP, PILL_OP, NAN_COUNT_OP)


def rank_readings(
    session: SessionDir, debug_ops: Container[str] = COMPARED_OPS, *, part: str = "", last: int | None = None
) -> Iterator[RunReadings]:
    """The readings of all ranks, one run after the other.

    Args:
        session: the session directory that the ranks wrote.
        debug_ops: which records to compare.
        part: only tensors whose name contains this.
        last: only so many of the last runs.
    """
    by_number: dict[int, list[Any]] = {}
    for ref in session.runs:
        by_number.setdefault(ref.index, []).append(ref)
    numbers = sorted(by_number)
    for number in numbers[-last:] if last else numbers:
        ranks: dict[int, list[Reading]] = {}
        step = -1
        for ref in by_number[number]:
            try:
                source = open_run(ref.path)
            except (OSError, ValueError) as error:
                session.notices.append(f"The run {ref.name} cannot be read: {error}")
                continue
            if not is_rank(source.task):  # a process that the program started for something else
                continue
            metadata = source.core_metadata
            step = metadata[0].global_step if metadata else step
            # A rank that was started again has several runs of one number: the later one counts.
            ranks[source.task] = _readings(source, debug_ops, part)
        yield RunReadings(number, step, ranks)


def _readings(source: StoredRun, debug_ops: Container[str], part: str) -> list[Reading]:
    found: list[Reading] = []
    executions: dict[tuple[str, str], int] = {}
    for tensors in source.tensors.values():
        for each in tensors:
            if each.debug_op not in debug_ops or part not in each.tensor_name:
                continue
            key = (each.tensor_name, each.debug_op)
            execution = executions[key] = executions.get(key, -1) + 1
            found.append(Reading(*key, execution, each.timestamp, _bytes(each)))
    found.sort(key=lambda reading: reading.timestamp)
    return found


def _bytes(stored: StoredTensor) -> bytes:
    if stored.inline is not None:
        return stored.inline
    try:
        value: Any = stored.load()
    except DamagedValueError as error:
        log.warning("Not compared: %s", error)
        return b""
    return np.asarray(value).tobytes() if hasattr(value, "dtype") else b""
