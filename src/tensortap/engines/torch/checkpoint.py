"""The state of a training program in one file: modules, optimizers, schedulers, step and random generators.

Files are written with `torch.save` and read with `weights_only=True`, which accepts tensors and plain
values but never runs code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.program import Program
from tensortap.errors import CheckpointError

__all__ = ["load_state", "save_state"]

_FORMAT = "tensortap-torch-1"


def save_state(program: Program, global_step: int, path: Path) -> None:
    """Write the whole state to `path`."""
    state = {
        "format": _FORMAT,
        "global_step": global_step,
        "modules": {name: module.state_dict() for name, module in program.modules.items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in program.optimizers.items()},
        "extras": {name: extra.state_dict() for name, extra in program.extras.items()},
        "random": _random_state(),
    }
    try:
        torch.save(state, path)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"Cannot write checkpoint {str(path)!r}: {error}") from error


def load_state(program: Program, path: Path) -> int:
    """Put the state of `path` in place, all of it or none; the global step it was saved at."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no checkpoint {str(path)!r}.") from error
    except Exception as error:
        raise CheckpointError(f"Cannot read checkpoint {str(path)!r}: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise CheckpointError(f"{str(path)!r} is no tensortap checkpoint of format {_FORMAT!r}.")
    _check_names(path, "module", program.modules, state["modules"])
    _check_names(path, "optimizer", program.optimizers, state["optimizers"])
    _check_names(path, "stateful object", program.extras, state["extras"])
    for name, module in program.modules.items():
        _check_tensors(path, name, module.state_dict(), state["modules"][name])
    try:
        for name, module in program.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in program.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, extra in program.extras.items():
            extra.load_state_dict(state["extras"][name])
    except (ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"Checkpoint {str(path)!r} does not fit {name!r}: {error}") from error
    _restore_random_state(state["random"])
    return int(state["global_step"])


def _check_names(path: Path, kind: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    missing, extra = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
    if missing or extra:
        raise CheckpointError(
            f"Checkpoint {str(path)!r} does not fit this program: {kind} names it lacks: "
            f"{missing or 'none'}, names only it has: {extra or 'none'}."
        )


def _check_tensors(path: Path, module: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for key in mine.keys() ^ theirs.keys():
        where = "only the checkpoint has it" if key in theirs else "the checkpoint lacks it"
        raise CheckpointError(f"Checkpoint {str(path)!r} does not fit {module!r}: entry {key!r}, {where}.")
    for key, value in mine.items():
        if isinstance(value, torch.Tensor) and value.shape != theirs[key].shape:
            raise CheckpointError(
                f"Checkpoint {str(path)!r} does not fit {module!r}: {key!r} has shape "
                f"{list(value.shape)} here, {list(theirs[key].shape)} in the checkpoint."
            )


def _random_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    accelerators = []
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        accelerators = [module.get_rng_state(i) for i in range(torch.accelerator.device_count())]
    return {
        "torch": torch.get_rng_state(),
        "accelerators": accelerators,
        "python": [version, list(words), gauss],
        "numpy": {
            "kind": numpy["bit_generator"],
            "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            "pos": int(numpy["state"]["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
    }


def _restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        for index, saved in enumerate(state["accelerators"][: torch.accelerator.device_count()]):
            module.set_rng_state(saved, index)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = state["numpy"]
    key = numpy["key"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], key, numpy["pos"], numpy["has_gauss"], numpy["gauss"]))
