"""The prey of predator-prey: a small network that flees, shipped with the package or read from a file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Array
from naht.envs.torch_file import check_archive, read_torch_arrays
from naht.errors import NahtError, one_line, require
from naht.storage import check_weights, digest, read_arrays, write_arrays

SHIPPED = "naht"
"""The name of the prey that comes with the package."""
KIND = "prey"
LARGEST_FILE = 2**26
"""Bytes of a prey's file, unpacked, at most."""
PARTS = ("kernel", "bias")
Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""(kernel [in, out], bias [out]) of each layer."""


@dataclass(frozen=True, eq=False)
class Prey:
    """Dense layers with ReLU between them; the action is the best logit's."""

    layers: Layers
    card: dict[str, Any]

    def logits(self, obs: Array) -> Array:
        """obs [..., O] -> [..., A]."""
        return forward(self.layers, obs)

    def act(self, obs: Array) -> Array:
        """obs [..., O] -> actions [...] int32."""
        logits = self.logits(obs)
        best = logits.max(-1, keepdims=True)
        # The first of the best, counted by comparison: an argmax over so few entries is far slower on CPUs.
        action = jnp.zeros(logits.shape[:-1], jnp.int32)
        for a in reversed(range(logits.shape[-1])):
            action = jnp.where(logits[..., a] == best[..., 0], a, action)
        return action

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        named = {f"{part}_{i}": a for i, layer in enumerate(self.layers) for part, a in zip(PARTS, layer, strict=True)}
        # safetensors writes memory as it lies: a transposed kernel would be damaged.
        return {name: np.asarray(a, order="C") for name, a in named.items()}

    @property
    def fingerprint(self) -> str:
        return digest(self.arrays)

    def save(self, path: Path) -> None:
        """Write our own format: safetensors with the card in its header."""
        write_arrays(path, self.arrays, {"kind": KIND, "card": self.card})


def forward(layers: Any, x: Array) -> Array:
    """Dense layers with ReLU between them. layers: sequence of (kernel, bias); x [..., in] -> [..., out]."""
    for i, (kernel, bias) in enumerate(layers):
        x = (jax.nn.relu(x) if i else x) @ kernel + bias
    return x


def load_prey(name: str, obs_size: int) -> Prey:
    """The shipped prey, or one from a file: ours (.safetensors), or the published ePyMARL parameters (.pt, .npz)."""
    prey = _shipped() if name == SHIPPED else _read(str(Path(name).resolve()), name)
    sees, actions = prey.layers[0][0].shape[0], prey.layers[-1][1].shape[0]
    require(
        sees == obs_size and actions == 5,
        f"prey '{name}' sees {sees} numbers and has {actions} actions; this world shows {obs_size} and has 5: "
        "train one for it with naht train-prey",
    )
    return prey


@lru_cache
def _shipped() -> Prey:
    with resources.as_file(resources.files("naht") / "assets" / "prey.safetensors") as path:
        return _ours(path)


@lru_cache
def _read(path: str, name: str) -> Prey:
    """Cached, so that equal environments share one prey within a process."""
    file = Path(path)
    if not file.is_file():
        raise NahtError(f"there is no prey '{name}': it is neither '{SHIPPED}' nor a file")
    size = file.stat().st_size
    require(size <= LARGEST_FILE, f"prey file '{name}' has {size:,} bytes: a prey has at most {LARGEST_FILE:,}")
    if file.suffix == ".safetensors":
        return _ours(file)
    if file.suffix == ".npz":
        try:
            # Opened here: NumPy leaves the files open that it can't read.
            with open(file, "rb") as opened:
                check_archive(zipfile.ZipFile(opened), LARGEST_FILE)
                with np.load(opened, allow_pickle=False) as stored:
                    arrays = {key: stored[key] for key in stored.files}
        except Exception as e:  # a damaged archive can fail in any way
            raise NahtError(f"{name} is not a whole .npz file ({one_line(e)})") from e
    elif file.suffix == ".pt":
        arrays = read_torch_arrays(file)
    else:
        raise NahtError(f"prey file '{name}' ends in '{file.suffix}': expected .safetensors (ours), .pt or .npz")
    return _published({key.replace(".", "_"): a for key, a in arrays.items()}, name)


def _ours(path: Path) -> Prey:
    arrays, header = read_arrays(path, most=LARGEST_FILE)
    require(header.get("kind") == KIND, f"{path} is of kind '{header.get('kind')}', not '{KIND}'")
    count = len(arrays) // 2
    names = [f"{part}_{i}" for i in range(count) for part in PARTS]
    require(set(names) == set(arrays), f"{path} is no prey: it holds {', '.join(sorted(arrays)) or 'nothing'}"[:200])
    check_weights(arrays, str(path))
    layers = tuple((arrays[f"kernel_{i}"], arrays[f"bias_{i}"]) for i in range(count))
    _check_layers(layers, str(path))
    card = header.get("card")
    return Prey(layers, card if isinstance(card, dict) else {})


def _check_layers(layers: Layers, name: str) -> None:
    """Each layer must take what the one before gives."""
    shapes = [(kernel.shape, bias.shape) for kernel, bias in layers]
    flat = all(len(kernel) == 2 and kernel[1:] == bias for kernel, bias in shapes)
    joined = all(bias == kernel[:1] for (_, bias), (kernel, _) in pairwise(shapes))
    require(bool(layers) and flat and joined, f"the layers of prey '{name}' don't fit together: {shapes}")


def _published(arrays: dict[str, np.ndarray], name: str) -> Prey:
    """ePyMARL's network: batch norm of the input in evaluation mode, then three dense layers with kernels [out, in]."""
    norm = [f"in_fn_{part}" for part in ("weight", "bias", "running_mean", "running_var")]
    dense = [(f"fc{i}_weight", f"fc{i}_bias") for i in (1, 2, 3)]
    names = [*norm, *[key for pair in dense for key in pair]]
    missing = [key for key in names if key not in arrays]
    require(not missing, f"{name} is not the published prey: it lacks {', '.join(missing)}")
    check_weights({key: arrays[key] for key in names}, name)
    exact = {key: arrays[key].astype(np.float64) for key in names}
    layers = [(exact[kernel].T, exact[b]) for kernel, b in dense]
    _check_layers(tuple(layers), name)
    kernel, b = layers[0]
    uneven = [key for key in norm if exact[key].shape != kernel.shape[:1]]
    require(not uneven, f"{name} is not the published prey: {', '.join(uneven)} should have {len(kernel)} numbers")
    # The norm is affine, so the first layer can absorb it.
    weight, bias, mean, variance = (exact[key] for key in norm)
    require(bool((variance >= 0).all()), f"{name} is not the published prey: a variance is negative")
    scale = weight / np.sqrt(variance + 1e-5)
    layers[0] = (kernel * scale[:, None], b + (bias - mean * scale) @ kernel)
    return Prey(tuple((k.astype(np.float32), b.astype(np.float32)) for k, b in layers), {"source": "ePyMARL"})
