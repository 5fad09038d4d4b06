"""What a look at each batch adds to a worker of a data loader: time per batch with over without, taken in turns.

    python benchmarks/loader.py

A worker does nothing else, and works beside the program: the program itself pays nothing of this.
"""

from __future__ import annotations

import statistics
import time
import zlib

import torch
from torch.utils.data import Dataset
from torch.utils.data._utils import fetch
from torch.utils.data._utils.collate import default_collate

from tensortap.engines.torch.follow.bad_samples import _Looks

ROUNDS = 60


class Rows(Dataset):
    """Rows of a table that lies in memory: a worker has next to nothing to do."""

    batch = 64

    def __init__(self):
        self.table = torch.randn(4096, 32)

    def __getitem__(self, index):
        return self.table[index], index % 10


class Images(Dataset):
    """Pictures of 64 by 64, as bytes; each is cut, turned, and made to floats."""

    batch = 64

    def __init__(self):
        self.pictures = torch.randint(0, 255, (512, 3, 72, 72), dtype=torch.uint8)
        self.mean, self.scale = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.22)

    def __getitem__(self, index):
        left, top = index % 8, index // 8 % 8
        picture = self.pictures[index % 512, :, top : top + 64, left : left + 64].float() / 255
        return ((picture.flip(2) if index % 2 else picture) - self.mean) / self.scale, index % 10


class Packed(Images):
    """The same, but packed as in PNG files, so that each has to be unpacked first."""

    def __init__(self):
        super().__init__()
        self.pictures = (self.pictures.float().cumsum(2) / 72).byte()  # noise cannot be packed
        self.packed = [zlib.compress(each.numpy().tobytes()) for each in self.pictures]

    def __getitem__(self, index):
        unpacked = bytearray(zlib.decompress(self.packed[index % 512]))
        self.pictures[index % 512] = torch.frombuffer(unpacked, dtype=torch.uint8).view(3, 72, 72)
        return super().__getitem__(index)


class Text(Dataset):
    """Token numbers: integers are never bad."""

    batch = 32

    def __init__(self):
        self.tokens = torch.randint(0, 50_000, (200_000,))

    def __getitem__(self, index):
        return self.tokens[index * 7 : index * 7 + 256], self.tokens[index * 7 + 1 : index * 7 + 257]


def main() -> None:
    torch.set_num_threads(1)
    theirs = fetch._MapDatasetFetcher.fetch
    ours = _Looks(lambda sample: None).around(theirs)
    for kind in (Rows, Images, Packed, Text):
        fetcher = fetch._MapDatasetFetcher(kind(), True, default_collate, False)
        plain, looked_at, ratios = [], [], []
        for number in range(ROUNDS + 5):
            indices = [(number * 64 + each) % 4096 for each in range(kind.batch)]
            times = {}
            for way in (theirs, ours) if number % 2 else (ours, theirs):
                begin = time.thread_time()
                way(fetcher, indices)
                times[way] = time.thread_time() - begin
            if number >= 5:
                plain.append(times[theirs])
                looked_at.append(times[ours])
                ratios.append(times[ours] / times[theirs])
        print(
            f"{kind.__name__.lower():8} {statistics.median(plain) * 1e3:7.3f} ms per batch, with a look "
            f"{statistics.median(looked_at) * 1e3:7.3f} ms: {statistics.median(ratios):.3f}"
        )


if __name__ == "__main__":
    main()
