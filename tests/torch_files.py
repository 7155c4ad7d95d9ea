"""PyTorch's files, zip and legacy, written opcode by opcode without PyTorch; and a pickle that means harm."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile

import numpy as np

ORDERED = b"ccollections\nOrderedDict\n)R"


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def numbers(*values):
    """A tuple of integers."""
    return b"(" + b"".join(b"J" + struct.pack("<i", v) for v in values) + b"t"


def tensor(key, count, offset, shape, stride, storage="FloatStorage"):
    """The opcodes of one tensor: a call of _rebuild_tensor_v2 with a reference to a storage."""
    reference = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu")
    reference += b"J" + struct.pack("<i", count) + b"NtQ"
    arguments = b"(" + reference + b"J" + struct.pack("<i", offset) + numbers(*shape) + numbers(*stride)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"\x89" + ORDERED + b"tR"


def dictionary(tensors):
    """A pickled OrderedDict with an attribute of its own, as PyTorch's state dictionaries have."""
    items = b"".join(text(name) + value for name, value in tensors.items())
    return b"\x80\x02" + ORDERED + b"(" + items + b"u" + b"}" + text("_metadata") + b"}sb."


def state_dictionary(arrays, shared):
    """(pickle, storages): every tensor in its own storage, or all in one, with kernels stored transposed."""
    if not shared:
        storages = {str(100 + i): a for i, a in enumerate(arrays.values())}
        strides = [[s // 4 for s in np.ascontiguousarray(a).strides] for a in arrays.values()]
        rows = zip(arrays.items(), storages, strides, strict=True)
        return dictionary({n: tensor(key, a.size, 0, a.shape, s) for (n, a), key, s in rows}), storages
    total = sum(a.size for a in arrays.values())
    tensors, offset = {}, 0
    for name, a in arrays.items():
        tensors[name] = tensor("0", total, offset, a.shape, [1, len(a)] if a.ndim == 2 else [1])
        offset += a.size
    return dictionary(tensors), {"0": np.concatenate([a.T.reshape(-1) for a in arrays.values()])}


def legacy_file(pickled, storages, little=True):
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": little})]
    data = [struct.pack("<q", a.size) + a.tobytes() for a in storages.values()]
    return b"".join([*head, pickled, pickle.dumps(list(storages), 2), *data])


def zip_file(pickled, storages, little=True):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights/data.pkl", pickled)
        for key, a in storages.items():
            archive.writestr(f"weights/data/{key}", a.tobytes())
        archive.writestr("weights/byteorder", "little" if little else "big")
        archive.writestr("weights/version", "3\n")
    return file.getvalue()


FORMATS = {"legacy": legacy_file, "zip": zip_file}


class Malice:
    """A pickle that leaves a mark when it is run."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)
