"""A client in a process of its own: streams runs until it is done, or killed. Arguments: address, rank, runs, pills."""

from __future__ import annotations

import sys

import numpy as np

from tests.server.tools import events, identity, metadata, open_stream, pill, pill_batch


class Address:
    def __init__(self, address):
        self.address = address


def main(address, rank, runs, pills):
    names = [f"layer/{place}" for place in range(pills)]
    batch = pill_batch(names, [pill(mean=place) for place in range(pills)], rank)
    for run in range(runs):
        list(open_stream(Address(address), events(metadata(run, rank=rank, job="load"), batch)))


def half_a_tensor(address, rank):
    """Send some records and half of a large one, say so, and wait to be killed."""
    large = identity("large", np.zeros(2_000_000), rank)

    def messages():
        parts = list(events(metadata(0, rank=rank, job="killed"), identity("small", [1.0], rank), large))
        yield from parts[:-2]
        print("half", flush=True)
        sys.stdin.read()

    list(open_stream(Address(address), messages()))


if __name__ == "__main__":
    if sys.argv[3] == "half":
        half_a_tensor(sys.argv[1], int(sys.argv[2]))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
