"""What not everybody needs: the packages of each extra of tensortap, and what is said when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from tensortap.errors import MissingExtraError
from tensortap.frameworks import FRAMEWORKS

__all__ = ["EXTRAS", "missing_packages", "require"]

EXTRAS = {
    **{framework.name: {framework.module: framework.packages[0]} for framework in FRAMEWORKS},
    "stream": {"grpc": "grpcio"},
    "serve": {"grpc": "grpcio", "starlette": "starlette", "uvicorn": "uvicorn"},
    "view": {"starlette": "starlette", "uvicorn": "uvicorn"},
    "parquet": {"pyarrow": "pyarrow"},
}
"""Of each extra the modules it brings, and the packages they come in; `pyproject.toml` says which versions."""


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that are not installed.

    >>> missing_packages("stream")
    []
    """
    return [package for module, package in EXTRAS[extra].items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        found = find_spec(module)
    except ValueError:  # a stand-in that somebody has put among the modules
        return True
    return found is not None and found.origin is not None  # a folder of that name has no origin


def require(extra: str, what: str) -> None:
    """Refuse to go on without the packages of an extra.

    Args:
        extra: its name.
        what: wants them, as the beginning of a sentence.

    Raises:
        MissingExtraError: with the command that installs them.
    """
    if missing := missing_packages(extra):
        raise MissingExtraError(what, extra, missing)
