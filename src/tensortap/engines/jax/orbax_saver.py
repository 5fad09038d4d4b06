"""Checkpoints of a session by orbax: a directory each, which processes write together and other programs can read."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tensortap.errors import CheckpointError

__all__ = ["OrbaxSaver"]


class OrbaxSaver:
    """Takes the place of `Saver` in hooks and scaffolds; needs `orbax-checkpoint`.

    A checkpoint is the directory `<basename>-<step>`, with the step and the arrays of the state by their names.

    Args:
        max_to_keep: how many checkpoints of one basename stay in a directory; None or 0 keeps all.
    """

    def __init__(self, max_to_keep: int | None = 5) -> None:
        try:
            import orbax.checkpoint as ocp
        except ModuleNotFoundError:
            raise ModuleNotFoundError("OrbaxSaver needs orbax: pip install orbax-checkpoint") from None

        self.max_to_keep = max_to_keep
        self._orbax = ocp

    def save(self, session: Any, path_prefix: str | os.PathLike[str], global_step: int | None = None) -> Path:
        """Write a checkpoint, and wait until it is complete.

        Raises:
            CheckpointError: it could not be written.
        """
        prefix = Path(os.path.abspath(path_prefix))
        path = prefix if global_step is None else prefix.with_name(f"{prefix.name}-{int(global_step)}")
        try:
            with self._orbax.StandardCheckpointer() as writer:
                writer.save(path, _stored(session), force=True)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"Cannot save the checkpoint {path}: {error}") from error
        if self.max_to_keep and jax.process_index() == 0:
            for each in _checkpoints(prefix.parent, prefix.name)[: -self.max_to_keep]:
                shutil.rmtree(each, ignore_errors=True)
        return path

    def restore(self, session: Any, path: str | os.PathLike[str]) -> None:
        """Put the state of a checkpoint into the session, each array placed as the one that it replaces.

        Raises:
            CheckpointError: there is no such checkpoint, or it does not fit the session.
        """
        path = Path(os.path.abspath(path))
        if not path.is_dir():
            raise CheckpointError(f"There is no checkpoint {path}.")
        like = jax.tree.map(self._orbax.utils.to_shape_dtype_struct, _stored(session))
        try:
            with self._orbax.StandardCheckpointer() as reader:
                found = reader.restore(path, like)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"Cannot restore the checkpoint {path}: {error}") from error
        now = session.named_arrays()
        session.put_arrays(
            int(found["step"]), {name: _like(each, now[name]) for name, each in found["arrays"].items()}
        )

    def latest_checkpoint(self, directory: str | os.PathLike[str]) -> Path | None:
        """The newest checkpoint in a directory, or None."""
        found = _checkpoints(Path(os.path.abspath(directory)))
        return found[-1] if found else None


def _stored(session: Any) -> dict[str, Any]:
    arrays = {
        name: jax.random.key_data(each) if _is_key(each) else each
        for name, each in session.named_arrays().items()
    }
    return {"step": np.asarray(session.global_step, np.int64), "arrays": arrays}


def _like(found: Any, before: Any) -> Any:
    return jax.random.wrap_key_data(found, impl=jax.random.key_impl(before)) if _is_key(before) else found


def _is_key(array: Any) -> bool:
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def _checkpoints(directory: Path, basename: str | None = None) -> list[Path]:
    """The checkpoints in a directory, oldest step first."""
    name = re.compile(rf"({re.escape(basename) if basename else '.+'})-(\d+)")
    try:
        found = [(name.fullmatch(each.name), each) for each in directory.iterdir() if each.is_dir()]
    except OSError:
        return []
    steps = sorted((int(match[2]), each) for match, each in found if match is not None)
    return [each for _, each in steps]
