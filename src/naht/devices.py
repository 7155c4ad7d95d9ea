"""One run on several devices: every device plays and learns from its share of the environments.

The devices are cores of the processor (JAX sees as many as `runtime.configure` asks for) or accelerators. Each runs the
same program on its own environments; whatever all must agree on is added up over them with `total`. On one device all
of this disappears.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from naht.errors import require

T = TypeVar("T")
AXIS = "devices"
SHARED: Any = PartitionSpec()  # type: ignore[no-untyped-call]
"""The same on every device."""
SPLIT: Any = PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
"""Cut along the leading axis, the environments."""


def check_devices(devices: int, **batches: int) -> None:
    """Are there that many, and can they share these batches?"""
    there = jax.device_count()
    require(devices >= 1, f"devices is {devices}: it must be at least 1")
    require(
        devices <= there,
        f"devices is {devices}, but JAX sees {there}; on a CPU, set the environment variable NAHT_DEVICES={devices}",
    )
    for name, size in batches.items():
        require(size % devices == 0, f"{name} is {size}: {devices} devices can't share it evenly")


def zeros(*shape: int, dtype: Any = np.float32) -> jax.Array:
    """Zeros made by NumPy. JAX would compile a program for every shape, which is most of a run's first second."""
    return jnp.asarray(np.zeros(shape, dtype))


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def spread(f: Callable[..., T], devices: int, inputs: Any, outputs: Any) -> Callable[..., T]:
    """`f` on every device at once; `inputs` and `outputs` say what is SPLIT and what is SHARED (prefixes of trees)."""
    if devices == 1:
        return f
    # JAX's check of what varies over devices would ask for casts inside every loop.
    return jax.shard_map(f, mesh=_mesh(devices), in_specs=inputs, out_specs=outputs, check_vma=False)


def place(tree: T, devices: int, layout: Any) -> T:
    """Put arrays where `spread` expects them, so that the first call compiles the same program as all others."""
    mesh = _mesh(devices)

    def put(spec: Any, part: Any) -> Any:
        # Empty arrays come back from compiled code as shared, whatever they were.
        wanted = jax.tree.map(lambda leaf: NamedSharding(mesh, spec if leaf.size else SHARED), part)
        return jax.device_put(part, wanted)

    return jax.tree.map(put, layout, tree, is_leaf=lambda x: isinstance(x, PartitionSpec))


def total(tree: T, devices: int) -> T:
    """The sum over devices, inside `spread`."""
    return tree if devices == 1 else jax.lax.psum(tree, AXIS)  # type: ignore[no-untyped-call]


def own_key(key: jax.Array, devices: int) -> jax.Array:
    """A random key of this device's own, inside `spread`."""
    return key if devices == 1 else jax.random.fold_in(key, jax.lax.axis_index(AXIS))
