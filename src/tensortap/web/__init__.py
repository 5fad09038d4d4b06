"""The page as it is shipped. Its sources are in `web/` of the repository; `make page` builds `bundle/` of them."""

from __future__ import annotations

import functools
import hashlib
import zlib
from pathlib import Path

__all__ = ["asset", "packed"]

_BUNDLE = Path(__file__).with_name("bundle")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@functools.cache
def asset(name: str) -> tuple[bytes, str, str]:
    """Content, media type and tag of one file of the bundle.

    >>> asset("index.html")[1]
    'text/html; charset=utf-8'
    """
    path = _BUNDLE / name
    content = path.read_bytes()
    return content, _KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@functools.cache
def packed(name: str) -> bytes:
    """The same content, compressed with gzip."""
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(asset(name)[0]) + packer.flush()
