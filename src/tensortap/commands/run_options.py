"""What the options of `tensortap run` mean: for the process that was typed, and for all that it starts."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.launch.job import Job
    from tensortap.launch.watch import ScriptOptions

__all__ = ["condition_of", "exclusions", "options_of", "profiling", "script_options", "streaming", "words_of"]

BAD_NODES_KEPT = 3
"""Of so many operations per run that turn good values bad, inputs and outputs are kept whole."""

_NOT_FOR_CHILDREN = ("program", "module_and_arguments", "code_and_arguments", "output")


def words_of(options: argparse.Namespace) -> list[str]:
    """The options as they can be typed again, without the program and where it writes."""
    from tensortap.commands import parser_of

    parser = parser_of(["run"])
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    words: list[str] = []
    for action in commands.choices["run"]._actions:
        value = getattr(options, action.dest, action.default)
        if action.dest in _NOT_FOR_CHILDREN or value == action.default or not action.option_strings:
            continue
        name = action.option_strings[-1]
        values = value if isinstance(value, list) else [value]
        words += [name if action.nargs == 0 else f"{name}={_word(each)}" for each in values]
    return words


def options_of(words: Sequence[str]) -> argparse.Namespace:
    """The options that were typed so.

    Raises:
        UsageError: they are none.
    """
    from tensortap.commands import parser_of

    parser = parser_of(["run"])
    try:
        with redirect_stderr(io.StringIO()) as said:
            return parser.parse_args(["run", *words, "-c", ""])
    except SystemExit:
        problem = said.getvalue().strip().rpartition("error: ")[2]
        raise UsageError(f"These are no options of `tensortap run`: {problem}.") from None


def _word(value: Any) -> str:
    """An argument, as it can be typed.

    >>> _word(range(5, 100, 5)), _word(1.1)
    ('5:100:5', '1.1')
    """
    return f"{value.start}:{value.stop}:{value.step}" if isinstance(value, range) else str(value)


def script_options(
    options: argparse.Namespace, root: Path, condition: Any, is_child: bool = False
) -> ScriptOptions:
    """How to watch a program.

    Args:
        options: as they were typed.
        root: the session directory.
        condition: what is bad instead of NaN and infinities.
        is_child: the process joins a directory that another one has made.
    """
    from tensortap.launch.watch import ScriptOptions
    from tensortap.sink.budget import DEFAULT_LIMIT_BYTES
    from tensortap.watch.options import WatchOptions

    wants_values = options.values or options.ring is not None
    watch = WatchOptions(
        ["DebugNumericSummary", *(["DebugIdentity"] if wants_values else [])],
        _anywhere(options.watch),
        _anywhere(options.op),
        _anywhere(options.dtype),
        keep_bad=0 if wants_values else BAD_NODES_KEPT,
    )
    how: dict[str, Any] = {"disk_bytes": DEFAULT_LIMIT_BYTES} if wants_values else {}
    if options.values:
        how["keep"] = "all"
    elif options.ring is not None:
        from tensortap.launch.memory import memory_limit

        how.update(keep="none", last=options.ring, memory_bytes=memory_limit() // 4)
    return ScriptOptions(
        root,
        watch,
        steps=options.steps,
        every=options.every,
        condition=None if condition is None else _over_pills(condition),
        stop=options.stop,
        skip_bad=options.skip_bad,
        budget=options.budget,
        copy_donated=not options.no_copies,
        compare=not options.no_compare,
        interceptor=options.interceptor,
        fsync=options.fsync,
        joins=is_child,
        **how,
    )


def streaming(options: argparse.Namespace, job: Job) -> Iterator[Any]:
    """What sends records to a debug server, if there is to be one."""
    if options.stream is not None:
        from tensortap.debug.hooks import GrpcDebugHook
        from tensortap.seam.place import place
        from tensortap.sink.stream_options import StreamOptions
        from tensortap.watch.options import WatchOptions

        health = WatchOptions(
            "DebugNumericSummary",
            _anywhere(options.watch),
            _anywhere(options.op),
            _anywhere(options.dtype),
            keep_bad=BAD_NODES_KEPT,
        )
        how = StreamOptions(
            token=options.token,
            ca_file=None if options.tls_ca is None else str(options.tls_ca),
            # Ranks on several machines have no more in common than what their launcher says.
            job=None if place().is_on_several_machines else job.stream,
        )
        yield GrpcDebugHook(options.stream, health, stream=how, send_traceback_and_source_code=True)


def profiling(options: argparse.Namespace, root: Path) -> Iterator[Any]:
    """What writes timelines, if there are to be some."""
    if options.profile or options.profile_every is not None:
        from tensortap.profile.hook import ProfilerHook

        every, most = (options.profile_every, None) if options.profile_every else (10, 10)
        yield ProfilerHook(save_steps=every, output_dir=root / "timelines", max_files=most)


def condition_of(text: str | None) -> Any:
    """What is bad instead of NaN and infinities; None for these."""
    if text is None:
        return None
    from tensortap.analyze import filters

    return filters.condition_of(text)


def exclusions(options: argparse.Namespace, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Which nodes are never bad, and which findings are accepted."""
    from tensortap.analyze.accepted import accepted_near, is_kind

    kinds: list[str] = []
    if any(
        ":" in each for each in options.exclude
    ):  # the rules are not needed otherwise, before the program runs
        from tensortap.analyze.checks import RULES

        kinds = [each for each in options.exclude if is_kind(each, RULES)]
    regexes = [each for each in options.exclude if each not in kinds]
    folders = [Path.cwd()]
    if words and words[0] not in ("-m", "-c"):
        folders.append(Path(words[0]).absolute().parent)
    exclude = regexes[0] if len(regexes) == 1 else "|".join(f"(?:{each})" for each in regexes)
    return exclude or None, [*kinds, *accepted_near(*folders)]


def _over_pills(condition: Any) -> Callable[[Sequence[float]], bool]:
    """A condition over health, asked about the numbers of a pill."""
    from tensortap.analyze.health import Health

    return lambda pill: bool(condition(Health._make([*pill, None])))


def _anywhere(regex: str | None) -> str | None:
    """A regular expression that is matched at the start, for one that may be found anywhere."""
    return None if regex is None else f".*(?:{regex})"
