"""Debug URLs: where the records of a watch go.

    file:///path/of/run/directory     files, one directory per run
    grpc://host:port[/path]           a debug server
    memcbk:///key                     a function or a list in this process

The scheme may be written in any case, for every kind of data alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.records import RunInfo

__all__ = ["SCHEMES", "DebugUrl", "Destination", "as_url_list", "file_url", "parse_debug_url"]

SCHEMES = ("file", "grpc", "memcbk")


@dataclass(frozen=True, slots=True)
class DebugUrl:
    """A debug URL in its parts.

    Attributes:
        scheme: one of `SCHEMES`, in lower case.
        host: of a `grpc` URL, otherwise empty.
        port: of a `grpc` URL, otherwise 0.
        path: the directory of a `file` URL, the key of a `memcbk` URL, the path of a `grpc` URL or "".

    >>> str(parse_debug_url("GRPC://localhost:6064/run"))
    'grpc://localhost:6064/run'
    """

    scheme: str
    path: str
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "grpc":
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"grpc://{host}:{self.port}{self.path}"
        return f"{self.scheme}://{'/' if self.scheme == 'memcbk' else ''}{self.path}"


class Destination(str):
    """A debug URL of one session or hook, with the way to open its sinks: what a URL cannot say travels with it.

    Two of them are two destinations, even if they read the same. A copy is the same destination; what arrives in
    another process is the URL alone.

    Attributes:
        open_sink: makes the sink of one run.

    >>> there = Destination("file:///tmp/dumps", open_sink=print)
    >>> there == "file:///tmp/dumps", parse_debug_url(there).path
    (True, '/tmp/dumps')
    """

    open_sink: Callable[[RunInfo], Any]

    def __new__(cls, url: str, open_sink: Callable[[RunInfo], Any]) -> Destination:
        """A checked URL."""
        parse_debug_url(url)
        made = super().__new__(cls, url)
        made.open_sink = open_sink
        return made

    def __copy__(self) -> Destination:
        return self

    def __deepcopy__(self, memo: object) -> Destination:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def parse_debug_url(text: str) -> DebugUrl:
    """Take a debug URL apart.

    Raises:
        ValueError: not a debug URL; the message quotes it and shows the forms that exist.

    >>> parse_debug_url("file:///tmp/dumps/run_1_0").path
    '/tmp/dumps/run_1_0'
    >>> parse_debug_url("memcbk:///seen").path
    'seen'
    >>> parse_debug_url("ftp://host/")
    Traceback (most recent call last):
    ValueError: 'ftp://host/' is no debug URL: ...
    """
    if not isinstance(text, str):
        raise TypeError(f"A debug URL is text, got {type(text).__name__}: {text!r}.")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise _invalid(text, "its scheme must be file, grpc or memcbk")
    if scheme == "file":
        if not rest.strip("/") and rest != "/":
            raise _invalid(text, "it names no directory")
        return DebugUrl(scheme, rest)
    if scheme == "memcbk":
        key = rest.removeprefix("/")
        if not rest.startswith("/") or not key:
            raise _invalid(text, "the key follows three slashes")
        return DebugUrl(scheme, key)
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise _invalid(text, "it needs a host and a port")
    return DebugUrl(scheme, slash + path, host, int(port))


def file_url(directory: str | Path) -> str:
    """The URL of a run directory.

    >>> file_url("/tmp/dumps/run_1_0")
    'file:///tmp/dumps/run_1_0'
    """
    return f"file://{directory}"


def as_url_list(urls: str | Iterable[str] | None) -> list[str]:
    """One URL or several, as a list, each checked.

    >>> as_url_list("file:///tmp/a")
    ['file:///tmp/a']
    """
    listed = [urls] if isinstance(urls, str) else list(urls or ())
    for url in listed:
        parse_debug_url(url)
    return listed


def _invalid(text: str, why: str) -> ValueError:
    return ValueError(
        f"{text!r} is no debug URL: {why}. Write file:///directory, grpc://host:port[/path] or memcbk:///key."
    )
