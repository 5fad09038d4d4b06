"""Following a PyTorch program that nobody changed, for `tensortap run`."""

from __future__ import annotations

import os
from contextlib import suppress

from tensortap.engines.torch.choice import VARIABLE
from tensortap.engines.torch.devices import world_size
from tensortap.engines.torch.follow.bad_samples import look_in_workers
from tensortap.engines.torch.follow.follower import Follower
from tensortap.engines.torch.follow.forked import (
    listen_here,
    listen_in_children,
    listen_to_loaders,
    tell_if_loading_data,
)
from tensortap.engines.torch.follow.watch import Watch
from tensortap.errors import NativeBuildError

__all__ = [
    "Follower",
    "Watch",
    "follow",
    "listen_here",
    "listen_in_children",
    "listen_to_loaders",
    "tell_if_loading_data",
    "world_size",
]


def follow(watch: Watch) -> Follower:
    """Follow the program of this process from now on."""
    _build_observer(watch.options.interceptor)
    look_in_workers(watch.root)
    follower = Follower(watch)
    follower.install()
    return follower


def _build_observer(interceptor: str | None) -> None:
    """Build the native interceptor now if it is missing, and not in the middle of the first step."""
    if (interceptor or os.environ.get(VARIABLE, "auto")) != "dispatch":
        from tensortap.engines.torch.observer import build

        with suppress(NativeBuildError):  # whoever needs it says what is wrong
            build.ensure_built()
