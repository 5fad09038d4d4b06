"""What a `watch_fn` returns: which tensors of the coming run to watch, and by which debug ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensortap.seam.pattern import TensorPattern

__all__ = ["WatchOptions", "as_watch_options"]

DEFAULT_DEBUG_OP = "DebugIdentity"


class WatchOptions:
    """Which tensors of a run to watch, and what to record of them.

    All regular expressions are matched at the start of the text. A tensor is watched if every allow list
    that is given matches and no deny list does. Views are left out unless nodes are allowed by name or op type:
    another node's record shows the same memory.

    Args:
        debug_ops: one debug op or several, such as `"DebugNumericSummary(mute_if_healthy=true)"`; none means
            `DebugIdentity`, the whole value.
        node_name_regex_allowlist: watch only nodes with such names.
        op_type_regex_allowlist: watch only such operations, as in `r"aten::(mm|addmm)"`.
        tensor_dtype_regex_allowlist: watch only outputs of such dtypes, as in `r"float|bfloat"`.
        tolerate_debug_op_creation_failures: leave out a debug op that cannot be made, instead of refusing
            the run.
        node_name_regex_denylist: never watch nodes with such names.
        op_type_regex_denylist: never watch such operations.
        tensor_dtype_regex_denylist: never watch outputs of such dtypes.
        keep_bad: with the numeric summary: of how many nodes of a run that make a NaN or an infinity of good
            values the inputs and outputs are recorded whole, the moment it happens.
        old_spellings: `node_name_regex_whitelist`, `op_type_regex_whitelist` and
            `tensor_dtype_regex_whitelist`, as TensorFlow 1.x called the allow lists.

    Raises:
        ValueError: a regular expression that does not compile, or an allow list given in both spellings.

    >>> options = WatchOptions(["DebugNumericSummary"], node_name_regex_allowlist=r".*attn.*")
    >>> options.debug_ops
    ['DebugNumericSummary']
    >>> WatchOptions(node_name_regex_whitelist="model/").node_name_regex_allowlist
    'model/'
    """

    def __init__(
        self,
        debug_ops: str | Iterable[str] | None = None,
        node_name_regex_allowlist: str | None = None,
        op_type_regex_allowlist: str | None = None,
        tensor_dtype_regex_allowlist: str | None = None,
        tolerate_debug_op_creation_failures: bool = False,
        *,
        node_name_regex_denylist: str | None = None,
        op_type_regex_denylist: str | None = None,
        tensor_dtype_regex_denylist: str | None = None,
        keep_bad: int = 0,
        **old_spellings: str | None,
    ) -> None:
        allow = {
            "node_name_regex_allowlist": node_name_regex_allowlist,
            "op_type_regex_allowlist": op_type_regex_allowlist,
            "tensor_dtype_regex_allowlist": tensor_dtype_regex_allowlist,
        }
        for spelling, value in old_spellings.items():
            name = spelling.replace("_whitelist", "_allowlist")
            if name not in allow or name == spelling:
                raise TypeError(f"WatchOptions has no argument {spelling!r}.")
            if value is not None and allow[name] is not None:
                raise ValueError(f"{name} and {spelling} are two spellings of one argument; give one.")
            allow[name] = allow[name] if value is None else value
        self.debug_ops: list[str] = as_op_list(debug_ops) or [DEFAULT_DEBUG_OP]
        self.pattern = TensorPattern(
            **allow,
            node_name_regex_denylist=node_name_regex_denylist,
            op_type_regex_denylist=op_type_regex_denylist,
            tensor_dtype_regex_denylist=tensor_dtype_regex_denylist,
        )
        self.tolerate_debug_op_creation_failures = bool(tolerate_debug_op_creation_failures)
        if not isinstance(keep_bad, int) or keep_bad < 0:
            raise ValueError(f"keep_bad is a number of nodes, got {keep_bad!r}.")
        self.keep_bad = keep_bad

    @property
    def node_name_regex_allowlist(self) -> str | None:
        """Only nodes with such names."""
        return self.pattern.node_name_regex_allowlist

    @property
    def op_type_regex_allowlist(self) -> str | None:
        """Only such operations."""
        return self.pattern.op_type_regex_allowlist

    @property
    def tensor_dtype_regex_allowlist(self) -> str | None:
        """Only outputs of such dtypes."""
        return self.pattern.tensor_dtype_regex_allowlist

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatchOptions) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = {name: getattr(self.pattern, name) for name in TensorPattern.__slots__}
        shown = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
        if self.tolerate_debug_op_creation_failures:
            shown += ", tolerate_debug_op_creation_failures=True"
        if self.keep_bad:
            shown += f", keep_bad={self.keep_bad}"
        return f"WatchOptions({self.debug_ops!r}{shown})"


def as_watch_options(returned: Any) -> WatchOptions:
    """What a `watch_fn` returned, in any of its forms, as `WatchOptions`.

    Args:
        returned: `WatchOptions`; or the older tuple `(debug_ops, node_name_regex[, op_type_regex[,
            dtype_regex[, tolerate]]])`; or None, for everything.

    Raises:
        TypeError: anything else; the message says what a watch_fn returns.

    >>> as_watch_options(("DebugNanCount", r".*fc.*")).node_name_regex_allowlist
    '.*fc.*'
    """
    if returned is None:
        return WatchOptions()
    if isinstance(returned, WatchOptions):
        return returned
    if isinstance(returned, tuple) and 1 <= len(returned) <= 5:
        return WatchOptions(*returned)
    raise TypeError(
        "watch_fn must return WatchOptions, or a tuple (debug_ops, node_name_regex[, op_type_regex[, "
        f"dtype_regex[, tolerate]]]), got {returned!r}."
    )


def as_op_list(debug_ops: str | Iterable[str] | None) -> list[str]:
    """One debug op or several, as a list of texts."""
    if debug_ops is None:
        return []
    listed = [debug_ops] if isinstance(debug_ops, str) else list(debug_ops)
    for each in listed:
        if not isinstance(each, str):
            raise TypeError(
                f"A debug op is text such as 'DebugIdentity', got {type(each).__name__}: {each!r}."
            )
    return listed
