"""TensorBoard's event files, written without its packages: they are records of a few fields with two checksums.

Own code since a package that writes them from a thread of its own can make a run wait forever when the disk is full.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import BinaryIO


def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli, which Python's zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    """The checksum as records hold it: turned, and moved by a constant."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    head = bytearray()
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(head) + bytes([number])


def _field(number: int, content: bytes) -> bytes:
    """A text, or a message within a message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


class EventFile:
    """Rows of numbers as events, each on the disk's side when `write` returns.

    The file holds a run from its start, and a TensorBoard that is looking forgets what it has seen of that run so far.
    """

    def __init__(self, file: BinaryIO, seconds: float):
        self._file = file
        self._record(seconds, 0, _field(3, b"brain.Event:2"))
        self._record(seconds, 0, _field(7, b"\x08\x01"))  # a session starts at step 0

    def write(self, seconds: float, step: int, row: Mapping[str, float]) -> None:
        """A row at a step; `seconds` since 1970."""
        values = [_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value) for tag, value in row.items()]
        self._record(seconds, step, _field(5, b"".join(_field(1, value) for value in values)))

    def _record(self, seconds: float, step: int, what: bytes) -> None:
        event = b"\x09" + struct.pack("<d", seconds) + b"\x10" + _varint(step) + what
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()
