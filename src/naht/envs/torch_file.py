"""Read and write the tensors of a PyTorch file without PyTorch, and without running anything that a file asks for.

A .pt or .th file is a pickle, and unpickling can call any function. This reader knows the few names that a plain
dictionary of tensors needs and refuses everything else.
"""

from __future__ import annotations

import io
import pickle
import struct
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
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only tensors are read")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6):
            raise pickle.UnpicklingError("a reference to no storage")
        kind, storage_type, key, _, count, *view = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType) or any(view):
            raise pickle.UnpicklingError(f"a reference of kind {kind!r}")
        storage = _Storage(np.dtype(storage_type.dtype), int(count))
        if storage.count * storage.dtype.itemsize > LARGEST:  # before room is made for it
            raise pickle.UnpicklingError(f"a storage of {storage.count:,} numbers")
        return self.storages.setdefault(str(key), storage)


def _legacy(file: Any) -> Any:
    """Magic number, protocol, facts about the system, the object, the storages' names, their data in that order."""
    for expected in (MAGIC, PROTOCOL):
        if _Reader(file).load() != expected:
            raise ValueError("neither of PyTorch's formats")
    facts = _Reader(file).load()
    _check_order("little" if isinstance(facts, dict) and facts.get("little_endian", True) else "big")
    reader = _Reader(file)
    tree = reader.load()
    for key in _Reader(file).load():
        storage = reader.storages[str(key)]
        (count,) = np.frombuffer(file.read(8), "<i8")
        if count != storage.count:
            raise ValueError("a storage of another size than announced")
        storage.fill(file.read(int(count) * storage.dtype.itemsize))
    return tree


def _check_order(order: str) -> None:
    if order != "little":
        raise ValueError(f"its numbers have their bytes in the order '{order[:20]}', not 'little'")


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
    if f"{folder}byteorder" in archive.namelist():  # older ones don't say
        _check_order(archive.read(f"{folder}byteorder").decode())
    reader = _Reader(io.BytesIO(archive.read(pickled)))
    tree = reader.load()
    for key, storage in reader.storages.items():
        storage.fill(archive.read(f"{folder}data/{key}"))
    return tree


LARGEST = 2**28
"""Bytes that a file may unpack to."""


def read_torch_arrays(path: Path, *, nothing_else: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a saved state dictionary by name, from the legacy or the zip format of `torch.save`.

    With `nothing_else`, a dictionary that has more than tensors in it is refused.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"it has {size:,} bytes, more than {LARGEST:,}")
        with open(path, "rb") as file:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            tree = _zipped(zipfile.ZipFile(file)) if zipped else _legacy(file)
        if not isinstance(tree, dict):
            raise ValueError("it holds no dictionary")
        other = [str(name)[:60] for name, value in tree.items() if not isinstance(value, _Tensor)]
        if nothing_else and other:
            raise ValueError(f"'{other[0]}' is no tensor")
        return {str(name): value.array() for name, value in tree.items() if isinstance(value, _Tensor)}
    except NahtError:
        raise
    except OSError as e:
        raise NahtError(f"can't read {path}: {e.strerror}") from e
    except Exception as e:  # a damaged pickle can fail in any way
        raise NahtError(f"{path} can't be read as a PyTorch file of tensors: {one_line(e)}") from e


def torch_file(weights: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """A file for `torch.load(..., weights_only=True)`: a dictionary of facts (plain data) and of "weights", which is a
    dictionary of tensors. Float32 only."""
    arrays = {str(i): np.asarray(a, "<f4", order="C") for i, a in enumerate(weights.values())}
    tensors = b"".join(_text(n) + _tensor(k, a) for n, (k, a) in zip(weights, arrays.items(), strict=True))
    plain = pickle.dumps(facts, 2)[2:-1]  # without its first and last opcode
    pickled = b"\x80\x02" + plain + _text("weights") + b"}(" + tensors + b"us."
    entries = {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n"}
    entries |= {f"data/{key}": a.tobytes() for key, a in arrays.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(f"agent/{name}"), content)  # without a date: equal agents, equal files
    return file.getvalue()


def _text(value: str) -> bytes:
    """The opcode of a text."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _numbers(*values: int) -> bytes:
    """The opcodes of a tuple."""
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def _tensor(key: str, a: np.ndarray) -> bytes:
    """The opcodes of a call of _rebuild_tensor_v2 with a reference to a storage. Python's pickler would have to import
    what it names."""
    storage = b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text(key) + _text("cpu")
    storage += b"J" + struct.pack("<i", a.size) + b"tQ"
    shape, stride = _numbers(*a.shape), _numbers(*[s // a.itemsize for s in a.strides])
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + stride + b"\x89" + hooks + b"tR"
