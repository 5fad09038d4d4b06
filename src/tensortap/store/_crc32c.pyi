"""CRC-32C in C, built from native/crc32c.c; used through `tensortap.store.checksum`."""

from typing_extensions import Buffer

def crc32c(buffer: Buffer, /) -> int: ...
def each(memory: Buffer, offsets: Buffer, sizes: Buffer, out: Buffer, /) -> None:
    """int64 offsets and sizes; uint32 out."""

def isa() -> str: ...
def use_isa(name: str, /) -> None: ...
