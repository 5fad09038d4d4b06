"""A page that stands alone: the bundle and what it shows in one file, which opens from disk without any server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Mapping
from typing import Any

from tensortap.report.plain import plain
from tensortap.web import asset

__all__ = ["single_file"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src blob: data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="page"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/octet-stream" id="contents">{contents}</script>
<script>{script}</script>
</body>
</html>
"""


def single_file(title: str, contents: Mapping[str, Any]) -> str:
    """The page with its contents, which are compressed.

    >>> text = single_file("a < b", {"answers": {}})
    >>> "<title>a &lt; b</title>" in text, text.count("<script")
    (True, 2)
    """
    script = asset("page.js")[0].decode().replace("</script", "<\\/script").strip()
    style = asset("page.css")[0].decode().replace("</style", "<\\/style").strip()
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(json.dumps(plain(dict(contents)), allow_nan=False).encode()) + packer.flush()
    return _PAGE.format(
        title=html.escape(title),
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        contents=base64.b64encode(packed).decode(),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
