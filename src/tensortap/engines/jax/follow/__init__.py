"""Following a JAX program that nobody changed, for `tensortap run`."""

from __future__ import annotations

from tensortap.engines.jax.follow.follower import Follower

__all__ = ["Follower", "follow"]


def follow(watch: object) -> Follower:
    """Follow the program of this process from now on."""
    follower = Follower(watch)
    follower.install()
    return follower
