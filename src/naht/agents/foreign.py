"""Agents of ePyMARL and of the NAHT paper's authors, from their files to ours. Nothing of a file is run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.epymarl import EpymarlPolicy, Output
from naht.agents.saved import Agent, is_label
from naht.config import encode, is_number, read_json
from naht.envs.base import Array, Environment, EnvSpec, task_hash
from naht.envs.torch_file import read_torch_arrays
from naht.errors import require, short
from naht.storage import check_weights, tree_like

Arrays = dict[str, np.ndarray]
Params = dict[str, Array]
Named = Literal["rnn", "rnn_norm", "rnn_poam", "rnn_ns", "rnn_norm_ns"]
"""Architectures by the names that ePyMARL and the authors have for them; _ns: weights of its own for every seat."""

NEAR = 100_000
"""Steps between a checkpoint and the test that says how good it is, at most."""


@dataclass(frozen=True)
class Choices:
    """What can be said of an agent whose files don't. None: as the run's config.json and the weights have it."""

    architecture: Named | None = None
    """The network, to be checked: the names of the weights tell anyway."""
    output: Output | None = None
    """What it gives: values of actions (q) or logits (pi_logits). The weights don't tell: without config.json, rnn is
    taken for q and the others for pi_logits."""
    last_action: bool | None = None
    """Does it read its last action? Needed where the width of its input leaves that open."""
    seat_id: bool | None = None
    """Does it read its seat? Likewise."""
    number: int | None = None
    """Of weights for every seat (_ns): take those of this number for all seats. None: number i sits in seat i."""


NOTHING_SAID = Choices()


class Checkpoint(NamedTuple):
    """Where the parts of an agent lie."""

    agent: Path
    steps: int | None
    """Of training."""
    best_return: float | None
    """The test return for which it was chosen, as its run says."""
    config: Path | None
    """The run's settings."""


def find_checkpoint(path: Path, which: str | None = None) -> Checkpoint:
    """A file with an agent's weights, a folder with agent.th in it, or a run: then `which` is 'best' (the default),
    'last' or a number of steps."""
    if path.is_file() or (path / "agent.th").is_file():
        require(which is None, f"checkpoint is {short(which)}: {path} is not a run that has several")
        agent = path if path.is_file() else path / "agent.th"
    else:
        require(path.is_dir(), f"there is no file or folder {path}")
        folder = path / _chosen(path, which or "best")
        agent = folder / "agent.th"
        require(agent.is_file(), f"{folder} holds no agent.th")
    folder = agent.resolve().parent
    steps = int(folder.name) if _is_steps(folder.name) else None
    best_return, info = None, folder / "best_info.json"
    if info.is_file():
        facts = _facts(info)
        best_return, said = facts.get("best_test_return", ""), str(facts.get("best_ts"))
        require(
            _is_finite(best_return) and _is_steps(said), f"{info} has no best_test_return and best_ts that are numbers"
        )
        steps = int(said)
    return Checkpoint(agent, steps, best_return, _record(folder.parent, "config.json"))


def _is_steps(text: str) -> bool:
    return re.fullmatch("[0-9]{1,15}", text) is not None


def _is_finite(value: Any) -> bool:
    """A number that a float can hold; JSON has others."""
    return is_number(value) and abs(value) < 1e300


def _facts(path: Path) -> dict[str, Any]:
    facts = read_json(path)
    require(isinstance(facts, dict), f"{path} is no JSON object")
    return facts


def _record(run: Path, name: str) -> Path | None:
    """A file of a run's settings and curves: <base>/models/<run> has them in <base>/sacred/<run>/1."""
    run = run.resolve()
    path = run.parent.parent / "sacred" / run.name / "1" / name
    return path if run.parent.name == "models" and path.is_file() else None


def _chosen(run: Path, which: str) -> str:
    """The name of a checkpoint's folder."""
    numbered = sorted((p.name for p in run.iterdir() if p.is_dir() and _is_steps(p.name)), key=int)
    there = ["best"] * (run / "best").is_dir() + numbered
    require(bool(there), f"{run} is no agent.th, and no run: it has no checkpoints")
    if which == "best" and "best" not in there:
        curves = _record(run, "info.json")
        returns = _returns(curves, numbered) if curves else {}
        require(bool(returns), f"{run} does not say which checkpoint is best: choose last or one of {', '.join(there)}")
        return max(returns, key=lambda name: returns[name])
    name = numbered[-1] if which == "last" and numbered else which
    require(name in there, f"checkpoint is {short(which)}: {run} has {', '.join(there)}")
    unfinished = name == "best" and not (run / "best/best_info.json").is_file()
    require(not unfinished, f"{run / 'best'} lacks best_info.json: it was not written to its end")
    return name


def _returns(path: Path, names: list[str]) -> dict[str, float]:
    """By checkpoint, the logged test return that is nearest to it."""
    curves = _facts(path)
    values, steps = curves.get("test_return_mean"), curves.get("test_return_mean_T")
    if not (isinstance(values, list) and isinstance(steps, list) and steps and len(values) == len(steps)):
        return {}
    # NumPy's numbers are logged as objects with a value.
    values = [v.get("value") if isinstance(v, dict) else v for v in values]
    require(all(map(_is_finite, [*values, *steps])), f"{path} has test returns that are no numbers")
    found = {}
    for name in names:
        nearest = min(range(len(steps)), key=lambda i: abs(steps[i] - int(name)))
        if abs(steps[nearest] - int(name)) <= NEAR:
            found[name] = float(values[nearest])
    return found


def import_agent(
    checkpoint: Checkpoint, env: Environment, choices: Choices = NOTHING_SAID, name: str | None = None
) -> Agent:
    """An agent of ours that does what theirs does.

    All names and shapes of its weights are compared with those that the architecture has on this task.
    """
    require(name is None or is_label(name), f"name is {short(name)}: it must be up to 200 printable characters")
    file, config = checkpoint.agent, _facts(checkpoint.config) if checkpoint.config else {}
    arrays = _read(file)
    policy = _policy(arrays, env.spec, choices, config, file)
    files, encoder = [file], file.with_name("encoder.th")
    if policy.architecture == "rnn_poam" and encoder.is_file():
        copy = {part.removeprefix("encoder."): a for part, a in arrays.items() if part.startswith("encoder.")}
        stored = _read(encoder)
        same = copy.keys() == stored.keys() and all(np.array_equal(copy[part], a) for part, a in stored.items())
        require(same, f"{encoder} is of another agent than {file}, which has its encoder, too")
        files.append(encoder)
    shapes = policy.network.shapes | policy.unused
    template = jax.eval_shape(lambda: {part: jnp.zeros(shape) for part, shape in shapes.items()})
    params = tree_like(template, arrays, f"{file} ({_called(policy)} on {env.spec.name})")
    source: dict[str, Any] = {"format": "ePyMARL", "architecture": _called(policy)}
    if choices.number is not None:
        policy, params = _one_for_all(policy, params, choices.number, file)
        source |= {"number": choices.number}
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    card = {"task": encode(env), "task_hash": task_hash(env)} | _training(checkpoint, config, source["architecture"])
    default = f"{card['algorithm']}-seed{card['seed']}" if "seed" in card else card["algorithm"]
    return Agent(
        name or default,
        policy,
        {part: params[part] for part in policy.network.shapes},
        env.spec,
        card | {"source": source | {"sha256": hashes}},
    )


def _training(checkpoint: Checkpoint, config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """What is known of how an agent was trained, by the names that cards have for it."""
    algorithm, seed = config.get("name"), config.get("seed")
    known = isinstance(algorithm, str) and re.fullmatch(r"[\w.+-]{1,60}", algorithm)
    facts = {
        "algorithm": algorithm if known else f"epymarl-{architecture}",
        "seed": seed if isinstance(seed, int) and not isinstance(seed, bool) else None,
        "steps": checkpoint.steps,
        "test_return": checkpoint.best_return,
    }
    return {fact: value for fact, value in facts.items() if value is not None}


def _read(path: Path) -> Arrays:
    arrays = read_torch_arrays(path, nothing_else=True)
    check_weights(arrays, str(path))
    for part, a in arrays.items():
        require(a.dtype == np.float32, f"{path}: '{part}' holds {a.dtype}, expected float32")
    return arrays


def _called(policy: EpymarlPolicy) -> str:
    return policy.architecture + "_ns" * policy.per_seat


def _policy(arrays: Arrays, spec: EnvSpec, choices: Choices, config: dict[str, Any], file: Path) -> EpymarlPolicy:
    """The policy that weights are for: by their names, the sizes of a few, and what is said of it.

    What it does not look at is compared later.
    """
    per_seat = "agents.0.fc2.weight" in arrays
    prefix = "agents.0." if per_seat else ""

    def has(name: str) -> bool:
        return f"{prefix}{name}" in arrays

    def size(name: str, axis: int) -> int:
        shape = arrays[f"{prefix}{name}"].shape if has(name) else ()
        require(len(shape) == 2 and min(shape) > 0, f"{file} is no agent of ePyMARL: '{prefix}{name}' is no matrix")
        return int(shape[axis])

    poam = has("encoder.rnn.weight_ih")
    layered = poam or has("base.mlp.fc1.0.weight")
    held = short(", ".join(sorted(arrays)))
    require(layered or has("fc1.weight"), f"{file} is no agent of ePyMARL: it holds {held}")
    encoder: dict[str, Any] = {}
    if poam:
        encoder = {
            "embedding": size("encoder.embedding.weight", 0),
            "encoder_hidden": size("encoder.embedding.weight", 1),
            "encoder_layers": sum(has(f"encoder.fc_list.{i}.weight") for i in range(len(arrays))),
            "old_encoder": has("encoder.fc1.weight"),
        }
    width = size("base.mlp.fc1.0.weight" if layered else "fc1.weight", 1) - encoder.get("embedding", 0)
    said = _said(choices, config)
    last_action, seat_id = _reads(width, spec, said, file)
    policy = EpymarlPolicy(
        spec,
        architecture="rnn_poam" if poam else "rnn_norm" if layered else "rnn",
        output=said["output"].value if "output" in said else "pi_logits" if layered else "q",
        hidden=size("fc2.weight", 1),
        last_action=last_action,
        seat_id=seat_id,
        recurrent=not has("rnn.weight"),
        input_norm=not layered or has("base.feature_norm.weight"),
        per_seat=per_seat,
        **encoder,
    )
    meaningless = set() if layered else {"input_norm"}
    if not poam or policy.old_encoder:
        meaningless |= {"encoder_hidden", "encoder_layers", "embedding"}
    for setting, (value, by) in said.items():
        found = _called(policy) if setting == "architecture" else getattr(policy, setting)
        fits = found == value or setting in meaningless
        require(fits, f"{file} has {setting} {found}, but {by} says {short(value)}")
    return policy


class _Saying(NamedTuple):
    value: Any
    by: str


CONFIG = {
    "agent": "architecture",
    "agent_output_type": "output",
    "hidden_dim": "hidden",
    "use_rnn": "recurrent",
    "obs_last_action": "last_action",
    "obs_agent_id": "seat_id",
    "use_obs_norm": "input_norm",
    "ed_hidden_dim": "encoder_hidden",
    "n_ed_hidden_layers": "encoder_layers",
    "embed_dim": "embedding",
}
"""What config.json calls our settings."""


def _said(choices: Choices, config: dict[str, Any]) -> dict[str, _Saying]:
    """By setting, what somebody says of an agent, and who. The caller has the last word."""
    team = config.get("obs_team_composition", False)
    require(team is False, "config.json says that the agent is told its team (obs_team_composition): that is not known")
    masked = config.get("mask_before_softmax", True)
    require(masked is True, "config.json says that forbidden actions count (mask_before_softmax is false)")
    said = {ours: _Saying(config[theirs], "config.json") for theirs, ours in CONFIG.items() if theirs in config}
    chosen = {name: value for name, value in vars(choices).items() if value is not None and name != "number"}
    return said | {name: _Saying(value, "the call") for name, value in chosen.items()}


def _reads(width: int, spec: EnvSpec, said: dict[str, _Saying], file: Path) -> tuple[bool, bool]:
    """(last action?, seat?), by how many numbers a network reads; who says otherwise is told later."""
    o, a, m = spec.obs_size, spec.num_actions, spec.num_agents
    fits = [(last, seat) for last in (True, False) for seat in (True, False) if o + last * a + seat * m == width]
    sizes = f"{spec.name} has {o} (observation), {a} (last action) and {m} (seat)"
    require(bool(fits), f"{file} reads {width} numbers: {sizes}")
    names = ("last_action", "seat_id")
    meant = [both for both in fits if all(said.get(n, (b,))[0] == b for n, b in zip(names, both, strict=True))]
    require(
        len(meant or fits) == 1, f"{file} reads {width} numbers, last action or seat among them: say which. {sizes}"
    )
    return (meant or fits)[0]


def _one_for_all(policy: EpymarlPolicy, params: Params, number: int, file: Path) -> tuple[EpymarlPolicy, Params]:
    """The agent of one number, to sit in any seat."""
    require(policy.per_seat, f"number is {number}: {file} has the same weights for all seats")
    last = policy.spec.num_agents - 1
    require(0 <= number <= last, f"number is {number}: {file} has agents 0 to {last}")
    prefix = f"agents.{number}."
    own = {part.removeprefix(prefix): a for part, a in params.items() if part.startswith(prefix)}
    return replace(policy, per_seat=False), own
