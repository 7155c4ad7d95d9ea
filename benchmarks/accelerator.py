"""What a GPU would have to do for one update, seen from a machine without one.

    python benchmarks/accelerator.py

lowers the training step of POAM on predator-prey, with the paper's settings, for CUDA, and counts the iterations of
loops that run one after the other; beside it the pieces for processors. Memory is that of the same program compiled
for this machine's processor.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from math import inf

os.environ["NAHT_DEVICES"] = "1"

from naht.runtime import configure

configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from naht.pieces import CACHE, WHOLE  # noqa: E402
from naht.training.config import RunConfig, run_config  # noqa: E402
from naht.training.trainer import Trainer, make_trainer  # noqa: E402


def trace_step(config: RunConfig) -> tuple[Trainer, jax.stages.Traced]:
    """The training step of a run, traced but not compiled."""
    trainer, uncontrolled = make_trainer(replace(config, devices=1))
    state = jax.eval_shape(trainer.init, jax.random.key(0))
    rest, experience = state._replace(experience=()), state.experience
    return trainer, Trainer._step.trace(trainer, rest, experience, uncontrolled.params, np.float32(1))


def sequential_iterations(program: str) -> float:
    """Loop iterations of a lowered program, nested ones multiplied; infinite if a loop's length is not known.

    Loops of one iteration count as none, which is what compilers make of them.
    """
    functions: dict[str, list[str]] = {}
    for text in re.split(r"^  func\.func ", program, flags=re.M)[1:]:
        functions[re.search(r"@([\w.]+)", text)[1]] = text.splitlines()

    def count(lines: list[str]) -> float:
        total, i = 0.0, 0
        while i < len(lines):
            if " stablehlo.while(" in lines[i]:
                indent = re.match(" *", lines[i])[0]
                body = next(k for k in range(i, len(lines)) if lines[k] == f"{indent}}} do {{")
                end = next(k for k in range(body, len(lines)) if lines[k] == f"{indent}}}")
                length = _length(lines[i + 1 : body])
                inside = count(lines[body + 1 : end])
                total += inside if length == 1 else length * (1 + inside)
                i = end
            elif call := re.search(r"\bcall @([\w.]+)", lines[i]):
                total += count(functions[call[1]])
            i += 1
        return total

    return count(functions["main"])


def _length(condition: list[str]) -> float:
    """Of a counting loop: `i < constant`."""
    text = "\n".join(condition)
    constants = re.findall(r"constant dense<(\d+)> : tensor<i32>", text)
    counts = re.findall(r"stablehlo\.compare +LT,", text)
    return int(constants[0]) if len(constants) == len(counts) == text.count("compare") == 1 else inf


def main() -> None:
    config = run_config("mpe-pp", "poam", "paper")
    for name, pieces in (("cache-sized pieces", CACHE), ("everything at once", WHOLE)):
        _report(name, replace(config, pieces=pieces))


def _report(name: str, config: RunConfig) -> None:
    trainer, traced = trace_step(config)
    lowered = traced.lower(lowering_platforms=("cuda",))
    iterations = sequential_iterations(lowered.as_text())
    memory = traced.lower().compile().memory_analysis().temp_size_in_bytes
    steps = trainer.learner.rollout_steps
    print(f"{name}: {iterations:,.0f} iterations for {steps} steps, {memory / 2**20:,.0f} MiB of temporary memory")


if __name__ == "__main__":
    main()
