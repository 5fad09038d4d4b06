"""Every exception tensortap raises, in one family.

    TensortapError
    ├── UnknownTensorError (ValueError)    a name that no tensor, node or returned key has
    ├── FeedError (ValueError)             a fed value that does not fit what it replaces
    ├── UsageError (ValueError)            what was asked of a directory, trace or command does not fit it
    ├── NotThereError (LookupError)        a run, node, file or line that is not there
    ├── MissingExtraError (ImportError)    a package that only some need is not installed
    ├── GraphFinalizedError (RuntimeError) a node added after the graph was finalised
    ├── SessionClosedError (RuntimeError)  a session used after close()
    ├── DumpFormatError (ValueError)       a file of a session directory is damaged, foreign, or newer
    ├── CheckpointError (RuntimeError)     a checkpoint that cannot be written, read or applied
    ├── NativeBuildError (RuntimeError)    the native interceptor cannot be built or loaded here
    ├── NanLossDuringTrainingError (RuntimeError)
    └── OpError (RuntimeError)             an operation failed while a run executed
        ├── CancelledError            ├── NotFoundError           ├── AbortedError *
        ├── UnknownError              ├── AlreadyExistsError      ├── OutOfRangeError **
        ├── InvalidArgumentError      ├── PermissionDeniedError   ├── UnimplementedError
        ├── DeadlineExceededError     ├── UnauthenticatedError    ├── InternalError
        ├── FailedPreconditionError   ├── ResourceExhaustedError  ├── UnavailableError *
        └── DataLossError

    *  preemption: a MonitoredSession recovers from these by making a new session.
    ** end of input: leaves a monitored session's with-block cleanly.

`OpError` is a `RuntimeError` so that code which caught the engine's own error around an ordinary call
keeps catching it when the call moves into a session.

>>> try:
...     raise UnavailableError(None, "peer lost")
... except OpError as error:
...     print(error.message, error.error_code)
peer lost 14
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensortap.records import Node

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "CheckpointError",
    "DamagedValueError",
    "DataLossError",
    "DeadlineExceededError",
    "DumpFormatError",
    "FailedPreconditionError",
    "FeedError",
    "GraphFinalizedError",
    "InternalError",
    "InvalidArgumentError",
    "MissingExtraError",
    "NanLossDuringTrainingError",
    "NativeBuildError",
    "NotFoundError",
    "NotThereError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "SessionClosedError",
    "TensortapError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "UnknownTensorError",
    "UsageError",
]


class TensortapError(Exception):
    """Root of every exception tensortap raises."""


class UnknownTensorError(TensortapError, ValueError):
    """A name that no tensor, node or returned key has; the message suggests the nearest ones."""


class FeedError(TensortapError, ValueError):
    """A fed value whose shape, dtype or target does not fit."""


class UsageError(TensortapError, ValueError):
    """What was asked does not fit what is there; the message says what would."""


class NotThereError(TensortapError, LookupError):
    """A run, node, file or line that is not there; the message names what is near."""


class MissingExtraError(TensortapError, ModuleNotFoundError):
    """Packages that only some need are not installed; the message has the command that installs them.

    Attributes:
        extra: of tensortap that brings them, such as `serve`.
        packages: that are missing.
    """

    def __init__(self, what: str, extra: str, packages: Sequence[str]) -> None:
        names = " and ".join(", ".join(packages).rsplit(", ", 1))
        verb = "is" if len(packages) == 1 else "are"
        super().__init__(
            f"{what} needs {names}, which {verb} not installed: pip install 'tensortap[{extra}]'",
            name=packages[0],
        )
        self.what = what
        self.extra = extra
        self.packages = tuple(packages)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, tuple[str, ...]]]:
        return type(self), (self.what, self.extra, self.packages)  # it may cross to another process


class GraphFinalizedError(TensortapError, RuntimeError):
    """A node was added to a graph after it was finalised."""


class SessionClosedError(TensortapError, RuntimeError):
    """A session was used after `close()`."""


class DumpFormatError(TensortapError, ValueError):
    """A file of a session directory is damaged, foreign, or newer than this reader."""


class DamagedValueError(DumpFormatError):
    """The bytes of a stored value are not those that were written."""


class CheckpointError(TensortapError, RuntimeError):
    """A checkpoint could not be written, read or applied; the message names the file and the entry."""


class NativeBuildError(TensortapError, RuntimeError):
    """The native interceptor cannot be built or used on this machine.

    Attributes:
        reason: what is wrong, in one sentence.
        fix: what to do about it, in one sentence.
        detail: lines that show it, such as the end of a compiler's output; may be empty.
    """

    def __init__(self, reason: str, fix: str, detail: str = "") -> None:
        super().__init__(f"{reason} {fix}" + (f"\n{detail}" if detail else ""))
        self.reason = reason
        self.fix = fix
        self.detail = detail

    def __reduce__(self) -> tuple[type[NativeBuildError], tuple[str, str, str]]:
        return type(self), (self.reason, self.fix, self.detail)  # it may cross to another process


class NanLossDuringTrainingError(TensortapError, RuntimeError):
    """The loss watched by a `NanTensorHook` became NaN or infinite."""

    def __init__(self, message: str = "The loss became NaN or infinite during training.") -> None:
        super().__init__(message)


class OpError(TensortapError, RuntimeError):
    """An operation failed while a run executed.

    Attributes:
        node: the node that failed, or None when the engine could not tell.
        message: what happened, in words.
        error_code: the numeric code of the class, the same numbers gRPC uses.

    Made as `OutOfRangeError(node, "message")`, or with the three arguments that ported code writes,
    `OutOfRangeError(None, None, "message")`; of node and op, which are one thing here, the first that is given counts.
    """

    error_code: ClassVar[int] = 2

    def __init__(self, node: Node | None = None, op: Any = None, message: str | None = None) -> None:
        if message is None:
            op, message = (None, op) if isinstance(op, str) else (op, "")
        super().__init__(message)
        self.node = node if node is not None else op
        self.message = message

    def __reduce__(self) -> tuple[type[OpError], tuple[Node | None, None, str]]:
        return type(self), (self.node, None, self.message)  # it may cross to another process

    @property
    def op(self) -> Node | None:
        """The failing node, under its other name."""
        return self.node

    @property
    def node_name(self) -> str | None:
        """Name of the failing node, if known."""
        return None if self.node is None else self.node.name


class CancelledError(OpError):
    """The operation was cancelled."""

    error_code = 1


class UnknownError(OpError):
    """An error of no other kind."""

    error_code = 2


class InvalidArgumentError(OpError):
    """An operation received an argument it cannot work with."""

    error_code = 3


class DeadlineExceededError(OpError):
    """A time limit passed before the operation completed."""

    error_code = 4


class NotFoundError(OpError):
    """Something requested was not found."""

    error_code = 5


class AlreadyExistsError(OpError):
    """Something to be created already exists."""

    error_code = 6


class PermissionDeniedError(OpError):
    """The caller may not do this."""

    error_code = 7


class ResourceExhaustedError(OpError):
    """Memory, disk or another resource ran out."""

    error_code = 8


class FailedPreconditionError(OpError):
    """The system is not in the state the operation needs."""

    error_code = 9


class AbortedError(OpError):
    """The operation was aborted, typically because a peer was preempted; recoverable."""

    error_code = 10


class OutOfRangeError(OpError):
    """Iteration went past the end of the input."""

    error_code = 11


class UnimplementedError(OpError):
    """The engine cannot do this operation."""

    error_code = 12


class InternalError(OpError):
    """An invariant of the engine was broken."""

    error_code = 13


class UnavailableError(OpError):
    """The runtime or a peer is unavailable at the moment; recoverable."""

    error_code = 14


class DataLossError(OpError):
    """Data was lost or is corrupt beyond repair."""

    error_code = 15


class UnauthenticatedError(OpError):
    """The caller's identity could not be established."""

    error_code = 16
