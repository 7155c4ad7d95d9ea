"""Arrays on disk: named leaves in safetensors, written under a temporary name and renamed.

A file is either the old one or the new one, never half of either, whenever the process dies.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from naht.errors import NahtError

PyTree = Any

TEMPORARY = ".tmp-"
"""Names with this prefix are unfinished and may be deleted."""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves of a pytree by their path, as NumPy arrays. Random keys are stored as their data."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    raw = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    # Not np.ascontiguousarray: it turns scalars into vectors.
    return {k: np.asarray(jax.random.key_data(v) if _is_key(v) else v, order="C") for k, v in raw.items()}


def tree_like(template: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """The inverse of `named_arrays`, for a template of arrays or `jax.ShapeDtypeStruct`s."""
    leaves, structure = jax.tree.flatten_with_path(template)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    if missing := [n for n in names if n not in arrays]:
        raise NahtError(
            f"{what} lacks {len(missing)} arrays, first '{missing[0]}': it was made for another architecture"
        )
    if extra := sorted(set(arrays) - set(names)):
        raise NahtError(f"{what} has {len(extra)} unexpected arrays, first '{extra[0]}'")
    result = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        array = arrays[name]
        if _is_key(leaf):
            result.append(jax.random.wrap_key_data(jnp.asarray(array)))
            continue
        if array.shape != leaf.shape:
            raise NahtError(f"{what}: '{name}' has shape {array.shape}, expected {tuple(leaf.shape)}")
        result.append(jnp.asarray(array, leaf.dtype))
    return jax.tree.unflatten(structure, result)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and contents."""
    h = hashlib.sha256()
    for name in sorted(arrays):
        a = arrays[name]
        h.update(f"{name}:{a.dtype.str}:{a.shape};".encode())
        h.update(a.tobytes())
    return h.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file in one move; after this returns, it survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> dict[str, Any]:
    """Save arrays with a JSON header in the same file in one move. Returns the header, now with a checksum."""
    # safetensors writes memory as it lies, so a transposed view would come back scrambled.
    arrays = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    header = header | {"sha256": digest(arrays)}
    write_file(path, to_safetensors(arrays, metadata={"naht": json.dumps(header)}))
    return header


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file from `write_arrays`. A missing, damaged or foreign file is one clear sentence."""
    if not path.is_file():
        raise NahtError(f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as f:
            metadata = f.metadata() or {}
            arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as e:
        raise NahtError(f"{path} is truncated or not a safetensors file ({e})") from e
    if "naht" not in metadata:
        raise NahtError(f"{path} was not written by naht: it has no header of ours")
    header = json.loads(metadata["naht"])
    if header.get("sha256") != digest(arrays):
        raise NahtError(f"{path} is damaged: its content does not match its checksum")
    return arrays, header


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in folder.rglob(f"{TEMPORARY}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
