"""What data loaders give: whether batches, or the samples of one, are equal that should differ."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tensortap.engines.torch import lines
from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.updates.events import name_around, own_line
from tensortap.engines.torch.updates.samples import mark_of, sample_of
from tensortap.engines.torch.values import view_of
from tensortap.records import Frame, LoaderUse

__all__ = ["Loaders"]

_FIRST, _THEN = 64, 64
"""Batches that are looked at: so many, then one of so many."""

_MOST_LOADERS, _MOST_TENSORS, _MOST_DEEP = 32, 4, 3
_ROWS, _COLUMNS = 64, 64


class Loaders:
    """Stands before PyTorch's data loaders until it is closed, and looks at some of the batches they give."""

    def __init__(self) -> None:
        self._uses: weakref.WeakKeyDictionary[Any, _Use] = weakref.WeakKeyDictionary()
        self._all: list[_Use] = []  # an iterator does not keep its loader alive
        self._of_iterator: weakref.WeakKeyDictionary[Any, _Use] = weakref.WeakKeyDictionary()
        self._begin, self._draw = DataLoader.__iter__, _BaseDataLoaderIter.__next__
        self._ours = self._beginning(), self._drawing()
        DataLoader.__iter__, _BaseDataLoaderIter.__next__ = self._ours  # type: ignore[method-assign]

    def close(self) -> None:
        """Put PyTorch's own functions back, where ours still are."""
        if DataLoader.__iter__ is self._ours[0]:
            DataLoader.__iter__ = self._begin  # type: ignore[method-assign]
        if _BaseDataLoaderIter.__next__ is self._ours[1]:
            _BaseDataLoaderIter.__next__ = self._draw  # type: ignore[method-assign]

    def told(self) -> tuple[LoaderUse, ...]:
        """What is known of each of them."""
        return tuple(use.told() for use in self._all if use.drawn)

    def _beginning(self) -> Any:
        theirs = self._begin

        @functools.wraps(theirs)
        def begin(loader: Any) -> Any:
            iterator = theirs(loader)
            use = self._uses.get(loader)
            if use is None and len(self._all) < _MOST_LOADERS:
                use = self._uses[loader] = _Use(loader)
                self._all.append(use)
            if use is not None:
                use.begun += 1
                self._of_iterator[iterator] = use
            return iterator

        return begin

    def _drawing(self) -> Any:
        theirs = self._draw

        @functools.wraps(theirs)
        def draw(iterator: Any) -> Any:
            batch = theirs(iterator)
            use = self._of_iterator.get(iterator)
            if use is not None:
                use.take(batch, sys._getframe(1))
            return batch

        return draw


class _Use:
    """Counts what one loader gives."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._last: tuple[str | None, ...] = ()
        self._name = ""
        self._source: Any = None
        self._batches = _batches_of(loader)
        self._of = type(getattr(loader, "dataset", None)).__name__
        self._item_at = _line_of_items(getattr(loader, "dataset", None))
        self.workers = int(getattr(loader, "num_workers", 0) or 0)
        self.begun = self.drawn = 0
        self._compared = self._same = self._looked_at = self._alike = 0

    def take(self, batch: Any, frame: FrameType) -> None:
        """A batch has been drawn."""
        self.drawn += 1
        if self.drawn > _FIRST and self.drawn % _THEN > 1:
            return
        try:
            with unnoticed():
                self._look(batch, frame)
        except Exception:  # ours, and no reason to fail in a program
            self.drawn = -sys.maxsize

    def _look(self, batch: Any, frame: FrameType) -> None:
        if self._source is None:
            loader = self._loader()
            self._source = own_line(frame)
            self._name = ("" if loader is None else name_around(frame, loader)) or self._of
        tensors = list(_tensors_in(batch))[:_MOST_TENSORS]
        marks = tuple(mark_of(sample_of(each)) for each in tensors)
        if not any(marks):
            return
        if self._last and self._compares:
            self._compared += 1
            self._same += marks == self._last
        self._last = marks
        self._looked_at += 1
        self._alike += any(map(_rows_are_alike, tensors))

    @property
    def _compares(self) -> bool:
        """Whether the batch before was looked at, too."""
        return self.drawn <= _FIRST or self.drawn % _THEN == 1

    def told(self) -> LoaderUse:
        source = None if self._source is None else str(self._source)
        counts = (self.begun, self.drawn, self._compared, self._same, self._looked_at, self._alike)
        return LoaderUse(self._name, source, self._batches, self.workers, *counts, self._item_at)


def _line_of_items(dataset: Any) -> str | None:
    """Where a data set of the program's own, or one that another wraps, gives one sample."""
    for _ in range(_MOST_DEEP):
        give = getattr(type(dataset), "__getitem__", None)
        if isinstance(give, FunctionType) and lines.is_users(give.__code__):
            code = give.__code__
            line = Frame(code.co_filename, code.co_firstlineno, code.co_qualname)
            return None if line.is_installed else str(line)
        dataset = getattr(dataset, "dataset", None)
    return None


def _batches_of(loader: Any) -> int | None:
    """How many batches there are in one pass; to ask a stream for it would have consequences."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # of the user's data set, which may not have a length
        return None


def _tensors_in(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < _MOST_DEEP:
        inside = batch.values() if isinstance(batch, Mapping) else batch
        if isinstance(batch, list | tuple | Mapping):
            for each in inside:
                yield from _tensors_in(each, depth + 1)


@asking_no_class
def _rows_are_alike(tensor: torch.Tensor) -> bool:
    """Whether half of the samples of a batch of floats, or more, repeat another one that is no constant."""
    if tensor.dim() < 2 or tensor.shape[0] < 4 or not tensor.is_floating_point() or not tensor.is_cpu:
        return False
    plain = readable(tensor)
    if plain is None or plain.is_sparse or plain.numel() // plain.shape[0] < 4:
        return False
    array = view_of(plain).to_numpy()
    rows = array.reshape(array.shape[0], -1)[:_ROWS]
    rows = rows[:, :: max(1, rows.shape[1] // _COLUMNS)]
    if rows.shape[1] < 4 or np.ptp(rows[0]) == 0:
        return False
    different = len({row.tobytes() for row in rows})
    return 2 * different <= len(rows)
