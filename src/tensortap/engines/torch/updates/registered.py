"""Parameters as they are when a module gets them, to know whether somebody has written to them since."""

from __future__ import annotations

import functools
import linecache
import re
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.updates.declared import line_of_attribute
from tensortap.engines.torch.updates.samples import mark_of, sample_of
from tensortap.records import Frame

__all__ = ["RegisteredParameters"]

_EMPTY = re.compile(r"\b(empty|empty_like|new_empty|Tensor|FloatTensor|empty_strided)\(")
_MOST = 10_000


class RegisteredParameters:
    """Remembers, until it is closed, what parameters held that the user's modules made of empty memory."""

    def __init__(self) -> None:
        self._marks: Any = WeakIdKeyDictionary()
        self._handle = register_module_parameter_registration_hook(self._on_parameter)

    def __bool__(self) -> bool:
        return len(self._marks) > 0

    def close(self) -> None:
        """Remember no more of them; harmless when called again."""
        self._handle.remove()

    def is_unwritten(self, parameter: torch.Tensor) -> bool | None:
        """Whether a parameter still holds what was in the memory it was made of; None if that is not known."""
        known = self._marks.get(parameter)
        if known is None:
            return None
        mark, version, _ = known
        sample = sample_of(parameter)
        if sample is None:
            return None
        # Memory that nobody has used holds zeros, and may well have been filled with zeros.
        return parameter._version == version and mark_of(sample) == mark and bool(sample.any())

    def source_of(self, parameter: torch.Tensor) -> Frame | None:
        """Where it was made."""
        known = self._marks.get(parameter)
        return None if known is None else known[2]

    def _on_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        try:
            if not isinstance(parameter, nn.Parameter) or len(self._marks) >= _MOST:
                return
            kind: Any = type(module)
            line = _line_of_empty(kind, name)
            if line is not None:
                with unnoticed():
                    self._marks[parameter] = mark_of(sample_of(parameter)), parameter._version, line
        except Exception:  # ours, and no reason to fail in a program
            return


@functools.lru_cache(maxsize=4096)
def _line_of_empty(owner: type, attribute: str) -> Frame | None:
    """The line at which a class of the user's makes a parameter of memory as it was found."""
    line = line_of_attribute(owner, attribute)
    if line is None or not _EMPTY.search(linecache.getline(line.file, line.line)):
        return None
    return line
