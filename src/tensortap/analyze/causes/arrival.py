"""Values that came bad: data, checkpoints, other ranks, memory that nobody wrote."""

from __future__ import annotations

import os
from dataclasses import replace

from tensortap.analyze.case import Case
from tensortap.analyze.causes.words import some
from tensortap.analyze.collectives import collective_words
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import Health
from tensortap.phases import is_fed, is_variable
from tensortap.records import BadSample
from tensortap.runtime_names import placeholder_behind

__all__ = ["arrived", "never_written", "overwritten", "with_unwritten"]


def arrived(case: Case) -> Cause | None:
    """What was bad before any operation of the step had touched it."""
    op_type, out = case.node.op_type, case.out
    came_by = case.finding.came_by
    if came_by is not None:
        return Cause(
            "received",
            f"The bad value came from another rank, by {collective_words(came_by)} ({came_by.name}): what this rank "
            "gave was good, as far as it was seen.",
            advice="Look at what the ranks that took part gave, and watch all of them.",
        )
    if is_fed(op_type) or op_type == "Const":
        what = "input" if is_fed(op_type) else "tensor made outside the step"
        name = placeholder_behind(case.node.name)
        unread = case.unread_before
        if unread:
            return Cause(
                "not-looked-at",
                f"What made it was not seen: {name} holds {out.bad_counts} among {int(out.elements)} "
                f"elements when it is first seen, and {some(unread)} before it could not be looked at.",
                advice="It may be made of those, or have come bad into the step.",
            )
        sample = case.sample_behind(out)
        if sample is not None:
            return _from_worker(name, out, sample)
        return Cause(
            "bad-input",
            f"The data was bad when it came: the {what} {name} holds {out.bad_counts} among "
            f"{int(out.elements)} elements.",
            advice="Look at what makes this batch: a division in the preprocessing, an empty file, a missing value.",
        )
    if is_variable(op_type):
        if case.finding.phase == "optimizer":
            return Cause(
                "bad-state",
                f"The optimizer's state {case.variable} held {out.bad_counts} when the step began.",
            )
        return Cause(
            "bad-parameter",
            f"The parameter {case.variable} was bad when the step began: {out.bad_counts} of "
            f"{int(out.elements)} elements.",
            advice="Look at its initialisation, or at the checkpoint it was loaded from.",
        )
    for name, health, line in case.loaded:
        if health.is_bad:
            sample = case.sample_behind(health)
            if sample is not None:
                return _from_worker(name, health, sample)
            where = f" at {line}" if line else ""
            return Cause(
                "bad-input",
                f"The data was bad when it came: {name}, which was loaded or came from another process{where}, holds "
                f"{health.bad_counts} among {int(health.elements)} elements.",
                advice="Look at the file it was loaded from. If it came from a worker of a data loader, try again with "
                "num_workers=0: the line of the dataset that makes it is named then.",
            )
    return None


def _from_worker(name: str, health: Health, sample: BadSample) -> Cause:
    """What a worker of a data loader made of a data set."""
    maker = f"{sample.maker} ({sample.line})" if sample.line else sample.maker
    if sample.sample:
        more = f", and {sample.more} more in the same batch" if sample.more else ""
        made = f"sample {sample.sample} was bad when {maker} returned it{more}"
        advice = f"Look at what {sample.maker} makes of sample {sample.sample}."
    else:
        made = f"the samples were good, and {maker} made a bad batch of them"
        advice = f"Look at what {sample.maker} does to samples."
    return Cause(
        "bad-input",
        f"The data was bad when it came: {name} holds {health.bad_counts} among {int(health.elements)} elements; "
        f"{made}, in worker {sample.worker} of the data loader.",
        advice=advice,
    )


def never_written(case: Case) -> Cause | None:
    """Memory that is used as it was found."""
    user = case.first_user
    used = "" if user is None else f" It is used first by {user}."
    return Cause(
        "uninitialised",
        f"Memory that was never written: {case.word} returns it as it was found, here with {case.out.bad_counts}, and "
        f"something takes it before all of it was filled.{used}",
        advice=f"Fill all of it first, or make it with {case.api('zeros')}.",
    )


def with_unwritten(cause: Cause, case: Case) -> Cause:
    """A cause with the memory that a value goes back to, if nobody was seen to write it."""
    memory = case.unwritten
    if memory is None or cause.kind == "uninitialised":
        return cause
    line = (
        f" ({os.path.basename(memory.source.file)}:{memory.source.line})" if memory.source is not None else ""
    )
    return replace(
        cause,
        sentence=f"{cause.sentence} What it was made of goes back to memory that nobody was seen to write: "
        f"{memory.name}{line} returns it as it was found.",
        advice=f"Fill all of it first, or make it with {case.api('zeros')}. If it is filled by something that is no "
        "operation, such as NumPy, look at what that writes.",
    )


def overwritten(case: Case) -> Cause | None:
    """Memory that an input shares was written to after the input was recorded: its own record is from before."""
    for writer, health in case.writers:
        if health.is_bad and not case.came_bad:
            line = f" ({writer.stack[-1].file}:{writer.stack[-1].line})" if writer.stack else ""
            return Cause(
                "overwritten",
                f"The memory of an input was overwritten before: {writer.name}{line} wrote {health.bad_counts} "
                "into it.",
                advice="Look at what that line writes, and through which view.",
            )
    return None
