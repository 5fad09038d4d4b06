"""Bad values that workers of a data loader make: they are seen there, where it is known of which sample they come.

A worker looks at every batch once it is made, and at its samples if the batch is bad, before it hands the batch on
as it is. What it finds it tells the process it works for (`store/samples.py`), which keeps it with the runs that
may use the batch. A bad sample by itself means nothing: many data sets have missing values.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info
from torch.utils.data._utils import fetch, worker

from tensortap.engines.torch.glance import first_bad, tensors_in
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.values import view_of
from tensortap.ops import kernel
from tensortap.records import BadSample
from tensortap.store.samples import SampleLog, tell_of_sample

__all__ = ["BadSamples", "look_in_workers"]

_ELEMENTS, _NAN, _NEGATIVE_INFINITY, _POSITIVE_INFINITY, _MEAN = 1, 2, 3, 7, 10

_MOST_OF_A_KIND = 32
"""A worker tells of so many tensors at one place in the batch."""

_MOST_DEEP, _MOST_PARTS = 4, 256

_RUNS_KEPT, _SAMPLES_KEPT = 256, 16
"""A batch waits while those before it are used; the runs in between carry what is known of it."""


class BadSamples:
    """In the process that the workers work for: what they have told lately.

    Args:
        root: the session directory.
    """

    def __init__(self, root: Path) -> None:
        self._log = SampleLog(root, os.getpid())
        self._known: deque[tuple[int, BadSample]] = deque(maxlen=_SAMPLES_KEPT)
        self._runs = 0

    def recent(self) -> tuple[BadSample, ...]:
        """Those that may come to the run that ends now."""
        if not _workers_may_be:
            return ()
        self._runs += 1
        self._known.extend((self._runs, each) for each in self._log.news())
        while self._known and self._known[0][0] < self._runs - _RUNS_KEPT:
            self._known.popleft()
        return tuple(each for _, each in self._known)


_root: Path | None = None
_workers_may_be = False


def look_in_workers(root: Path) -> None:
    """Have workers that are started from now on, and this process if it becomes one, look at what they make."""
    global _root
    if _root is None:
        _surround_work()
        _notice_workers()
    _root = root


def _notice_workers() -> None:
    """Remember whether there are workers at all: only then there is something to read."""
    loaders: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    make = loaders.__init__

    @functools.wraps(make)
    def note_and_make(self: Any, *args: Any, **kwargs: Any) -> None:
        global _workers_may_be
        _workers_may_be = True
        make(self, *args, **kwargs)

    loaders.__init__ = note_and_make


def _surround_work() -> None:
    work: Any = worker._worker_loop

    @functools.wraps(work)
    def look_and_work(*args: Any, **kwargs: Any) -> None:
        with suppress(Exception):
            _surround_fetching()
        work(*args, **kwargs)

    worker._worker_loop = look_and_work


def _surround_fetching() -> None:
    """In a worker: look at each batch before it is handed on."""
    above = multiprocessing.parent_process()
    if _root is None or above is None or above.pid is None:
        return
    looks = _Looks(functools.partial(tell_of_sample, _root, above.pid))
    kinds: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    for kind in kinds:
        kind.fetch = looks.around(kind.fetch)


class _Looks:
    """Looks at the batches of one worker."""

    def __init__(self, tell: Callable[[BadSample], None]) -> None:
        self._tell = tell
        self._told: Counter[int] = Counter()
        self._fetched = 0
        self._samples: Any = None
        self._is_over = False

    def around(self, theirs: Any) -> Any:
        """A function that fetches a batch, and looks at it."""

        @functools.wraps(theirs)
        def fetch_and_look(fetcher: Any, index: Any) -> Any:
            if self._is_over:
                return theirs(fetcher, index)
            collate = fetcher.collate_fn

            def note_and_collate(samples: Any) -> Any:
                self._samples = list(samples) if type(samples) is list else samples
                return collate(samples)

            fetcher.collate_fn = note_and_collate
            try:
                batch = theirs(fetcher, index)
            finally:
                fetcher.collate_fn = collate
            samples, self._samples = self._samples, None
            try:
                self._look(fetcher, index, samples, batch)
            except Exception:  # the program comes first, and a batch that we cannot read is no news
                self._is_over = True
            return batch

        return fetch_and_look

    def _look(self, fetcher: Any, index: Any, samples: Any, batch: Any) -> None:
        before = self._fetched
        self._fetched += len(samples) if fetcher.auto_collation else 1
        tensors = list(tensors_in(batch))
        if first_bad(tensors) is None:  # so it is nearly always, and known in half the time
            return
        for place, tensor in enumerate(tensors):
            pill = _pill(tensor)
            if pill is None or not (pill[_NAN] or pill[_NEGATIVE_INFINITY] or pill[_POSITIVE_INFINITY]):
                continue
            self._told[place] += 1
            if self._told[place] > _MOST_OF_A_KIND:
                continue
            mean = float(pill[_MEAN])
            self._tell(
                BadSample(
                    getattr(get_worker_info(), "id", -1),
                    *_origin(fetcher, index, samples, before, tensor),
                    int(pill[_ELEMENTS]),
                    int(pill[_NAN]),
                    int(pill[_NEGATIVE_INFINITY]),
                    int(pill[_POSITIVE_INFINITY]),
                    mean if math.isfinite(mean) else 0.0,
                )
            )


def _pill(tensor: torch.Tensor) -> Any:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    elements = readable(tensor)
    return None if elements is None or elements.is_sparse else kernel.summary(view_of(elements))


def _origin(
    fetcher: Any, index: Any, samples: Any, before: int, tensor: torch.Tensor
) -> tuple[str, int, str, str]:
    """The first bad sample, how many more there are, and what made it: name and line."""
    is_iterable = isinstance(fetcher, fetch._IterableDatasetFetcher)
    if not fetcher.auto_collation:
        samples, index = [samples], [index]
    bad = [number for number, sample in enumerate(samples) if _is_bad(sample)]
    if not bad:
        maker, line = _described(fetcher.collate_fn)
        return "", 0, maker, line
    rows = _bad_rows(tensor, len(samples))  # others may be bad elsewhere
    bad = [number for number in bad if number in rows] or bad
    first, more = bad[0], len(bad) - 1
    if is_iterable:
        return (
            f"{before + first} from this worker",
            more,
            *_of_iterator(fetcher.dataset, fetcher.dataset_iter),
        )
    key = index[first] if isinstance(index, Sequence) and first < len(index) else first
    dataset, _ = _innermost(fetcher.dataset, key)
    many = getattr(dataset, "__getitems__", None) if fetcher.auto_collation else None
    return str(key), more, *_described(many or type(dataset).__getitem__, dataset)


def _bad_rows(tensor: torch.Tensor, samples: int) -> set[int]:
    if tensor.ndim == 0 or len(tensor) != samples:
        return set()
    with torch.no_grad():
        return {number for number, row in enumerate(tensor.unbind()) if _is_bad(row)}


def _is_bad(value: Any, depth: int = _MOST_DEEP) -> bool:
    if isinstance(value, torch.Tensor):
        pill = _pill(value)
        return pill is not None and bool(pill[_NAN] or pill[_NEGATIVE_INFINITY] or pill[_POSITIVE_INFINITY])
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "fc" and not bool(np.isfinite(value).all())
    if isinstance(value, float):
        return not math.isfinite(value)
    if depth and isinstance(value, Mapping | list | tuple):
        return any(_is_bad(each, depth - 1) for each in _parts(value))
    return False


def _parts(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, Mapping) else value
    yield from list(parts)[:_MOST_PARTS]


def _innermost(dataset: Any, key: Any) -> tuple[Any, Any]:
    """The data set behind those that only choose from another."""
    for _ in range(_MOST_DEEP * 2):
        if isinstance(dataset, Subset) and isinstance(key, int):
            dataset, key = dataset.dataset, dataset.indices[key]
        elif isinstance(dataset, ConcatDataset) and isinstance(key, int):
            number = next((at for at, end in enumerate(dataset.cumulative_sizes) if key < end), 0)
            dataset, key = dataset.datasets[number], key - ([0, *dataset.cumulative_sizes][number])
        else:
            break
    return dataset, key


def _of_iterator(dataset: Any, iterator: Any) -> tuple[str, str]:
    """What an iterable data set is at: the line where a generator waits."""
    frame = getattr(iterator, "gi_frame", None)
    if frame is not None:
        return frame.f_code.co_qualname, f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return _described(getattr(type(dataset), "__iter__", None), dataset)


def _described(function: Any, owner: Any = None) -> tuple[str, str]:
    """The name of a function, and the line where it returns something; where it begins if there are several."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    if code is None and owner is None and callable(function) and not isinstance(function, type):
        return _described(type(function).__call__, function)
    name = getattr(function, "__qualname__", type(owner).__name__)
    if owner is not None and "." not in name:
        name = f"{type(owner).__name__}.{name}"
    if code is None:
        return name, ""
    lines = {
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.opname == "RETURN_VALUE" and each.positions is not None
    }
    line = lines.pop() if len(lines) == 1 else None
    return name, f"{code.co_filename}:{line or code.co_firstlineno}"
