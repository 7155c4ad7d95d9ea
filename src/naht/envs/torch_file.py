"""Read the tensors of a PyTorch file without PyTorch, and without running anything that the file asks for.

A .pt file is a pickle, and unpickling can call any function. This reader knows the few names that a plain dictionary of
tensors needs and refuses everything else.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from naht.errors import NahtError, one_line

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
DTYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


class _Sealed:
    """Takes nothing but what it was made with: a pickle may otherwise set any attribute of an object."""

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it sets attributes of a tensor")


@dataclass(frozen=True)
class _StorageType(_Sealed):
    """Stands for torch.FloatStorage and its like."""

    dtype: str

    def __call__(self, *_: Any) -> Any:
        raise pickle.UnpicklingError("a storage outside the file's own")


@dataclass
class _Storage(_Sealed):
    dtype: np.dtype
    count: int
    data: np.ndarray = field(default_factory=lambda: np.empty(0))

    def fill(self, raw: bytes) -> None:
        if len(raw) != self.count * self.dtype.itemsize:
            raise EOFError("the data end early")
        self.data = np.frombuffer(raw, self.dtype)


@dataclass
class _Tensor(_Sealed):
    """A view into a storage, made into an array once the storage is filled."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def array(self) -> np.ndarray:
        data = self.storage.data
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if min(self.shape, default=1) < 0 or self.offset < 0 or min(self.stride, default=0) < 0:
            raise ValueError("a tensor with negative sizes")
        # The data that are there count, not those announced: as_strided reads whatever lies beyond.
        if 0 not in self.shape and last >= data.size:
            raise ValueError("a tensor beyond its storage")
        if prod(self.shape) > data.size:  # strides of 0 make much of little
            raise ValueError("a tensor larger than its storage")
        strides = [s * data.itemsize for s in self.stride]
        return np.lib.stride_tricks.as_strided(data[self.offset :], self.shape, strides).copy()


def _rebuild_tensor(storage: Any, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): _StorageType(dtype) for name, dtype in DTYPES.items()},
}


class _Reader(pickle._Unpickler):
    """Knows only the names in ALLOWED.

    The one in Python: the one in C makes room for as many objects as a file announces.
    """

    def __init__(self, file: Any):
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6):
            raise pickle.UnpicklingError("a reference to no storage")
        kind, storage_type, key, _, count, *view = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType) or any(view):
            raise pickle.UnpicklingError(f"a reference of kind {kind!r}")
        return self.storages.setdefault(str(key), _Storage(np.dtype(storage_type.dtype), int(count)))


def _legacy(file: Any) -> Any:
    """Magic number, protocol, facts about the system, the object, the storages' names, their data in that order."""
    for expected in (MAGIC, PROTOCOL):
        if _Reader(file).load() != expected:
            raise ValueError("neither of PyTorch's formats")
    _Reader(file).load()
    reader = _Reader(file)
    tree = reader.load()
    for key in _Reader(file).load():
        storage = reader.storages[str(key)]
        (count,) = np.frombuffer(file.read(8), "<i8")
        if count != storage.count:
            raise ValueError("a storage of another size than announced")
        storage.fill(file.read(int(count) * storage.dtype.itemsize))
    return tree


def check_archive(archive: zipfile.ZipFile, most: int) -> None:
    """Refuse what would unpack to more than `most` bytes, before any of it is unpacked."""
    size = sum(info.file_size for info in archive.infolist())
    if size > most:
        raise ValueError(f"it unpacks to {size:,} bytes, more than {most:,}")


def _zipped(archive: zipfile.ZipFile) -> Any:
    """data.pkl and one file per storage, all in one folder."""
    check_archive(archive, LARGEST)
    pickled = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if pickled is None:
        raise ValueError("neither of PyTorch's formats")
    folder = pickled.removesuffix("data.pkl")
    reader = _Reader(io.BytesIO(archive.read(pickled)))
    tree = reader.load()
    for key, storage in reader.storages.items():
        storage.fill(archive.read(f"{folder}data/{key}"))
    return tree


LARGEST = 2**28
"""Bytes that a file may unpack to."""


def read_torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a saved state dictionary by name, from the legacy or the zip format of `torch.save`."""
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            tree = _zipped(zipfile.ZipFile(file)) if zipped else _legacy(file)
        if not isinstance(tree, dict):
            raise ValueError("it holds no dictionary")
        return {str(name): value.array() for name, value in tree.items() if isinstance(value, _Tensor)}
    except NahtError:
        raise
    except OSError as e:
        raise NahtError(f"can't read {path}: {e.strerror}") from e
    except Exception as e:  # a damaged pickle can fail in any way
        raise NahtError(f"{path} can't be read as a PyTorch file of tensors: {one_line(e)}") from e
