"""The numbers by which the processes of a job are known: ranks have theirs, others one made of the process number."""

from __future__ import annotations

__all__ = ["FIRST_PROCESS", "is_rank", "number_of_process", "task_name"]

FIRST_PROCESS = 1 << 20
"""Numbers below are ranks. No job has so many, and no number of a process added to it leaves 32 bits."""


def number_of_process(process: int) -> int:
    """The number of a process that is no rank of anything."""
    return FIRST_PROCESS + process


def is_rank(task: int) -> bool:
    """Whether a number is that of a rank; a program that runs alone is rank 0."""
    return task < FIRST_PROCESS


def task_name(task: int) -> str:
    """A process of a job in words.

    >>> task_name(3), task_name(number_of_process(4711))
    ('rank 3', 'process 4711')
    """
    return f"rank {task}" if is_rank(task) else f"process {task - FIRST_PROCESS}"
