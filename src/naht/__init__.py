"""N-agent ad hoc teamwork in JAX.

The public API, imported when first used, so that `import naht` itself is instant and `naht.configure()` can still say
how JAX should run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from naht.config import setting
from naht.errors import NahtError
from naht.runtime import configure
from naht.version import __version__

if TYPE_CHECKING:
    from naht.agents.policy import Percept, Policy
    from naht.agents.python import Situation
    from naht.agents.saved import Agent, load_agent
    from naht.agents.scripted import Teammate, register_teammate
    from naht.bridges.gymnasium import to_gymnasium
    from naht.bridges.jaxmarl import from_jaxmarl
    from naht.bridges.pettingzoo import from_pettingzoo, to_pettingzoo
    from naht.envs.base import Environment, EnvSpec, HostEnvironment, TimeStep
    from naht.envs.conformance import check_environment
    from naht.evaluation.comparison import Difference, compare, compare_rows
    from naht.evaluation.play import EpisodeRow, evaluate_mn, evaluate_sampler
    from naht.evaluation.statistics import bootstrap_iqm, mean_interval
    from naht.learning.algorithms import Algorithm, register_algorithm
    from naht.learning.learner import Circumstances, Learner, LearnerSettings
    from naht.report.replay import Replay, draw_frame, record, save_replay
    from naht.rollout import Arena, Trajectory
    from naht.tasks import Defaults, Task, make_env, register_task
    from naht.teams.population import Member, Population, load_members
    from naht.teams.sampler import Selection, Team, TeamSampler, team_sampler
    from naht.training.config import RunConfig, run_config
    from naht.training.folder import read_metrics
    from naht.training.run import resume, train

_HOMES = {
    "naht.bridges.gymnasium": ("to_gymnasium",),
    "naht.bridges.jaxmarl": ("from_jaxmarl",),
    "naht.bridges.pettingzoo": ("from_pettingzoo", "to_pettingzoo"),
    "naht.agents.policy": ("Percept", "Policy"),
    "naht.agents.python": ("Situation",),
    "naht.agents.saved": ("Agent", "load_agent"),
    "naht.agents.scripted": ("Teammate", "register_teammate"),
    "naht.envs.base": ("EnvSpec", "Environment", "HostEnvironment", "TimeStep"),
    "naht.envs.conformance": ("check_environment",),
    "naht.evaluation.comparison": ("Difference", "compare", "compare_rows"),
    "naht.evaluation.play": ("EpisodeRow", "evaluate_mn", "evaluate_sampler"),
    "naht.evaluation.statistics": ("bootstrap_iqm", "mean_interval"),
    "naht.learning.algorithms": ("Algorithm", "register_algorithm"),
    "naht.learning.learner": ("Circumstances", "Learner", "LearnerSettings"),
    "naht.report.replay": ("Replay", "draw_frame", "record", "save_replay"),
    "naht.rollout": ("Arena", "Trajectory"),
    "naht.tasks": ("Defaults", "Task", "make_env", "register_task"),
    "naht.teams.population": ("Member", "Population", "load_members"),
    "naht.teams.sampler": ("Selection", "Team", "TeamSampler", "team_sampler"),
    "naht.training.config": ("RunConfig", "run_config"),
    "naht.training.run": ("read_metrics", "resume", "train"),
}

__all__ = [
    "Agent",
    "Algorithm",
    "Arena",
    "Circumstances",
    "Defaults",
    "Difference",
    "EnvSpec",
    "Environment",
    "EpisodeRow",
    "HostEnvironment",
    "Learner",
    "LearnerSettings",
    "Member",
    "NahtError",
    "Percept",
    "Policy",
    "Population",
    "Replay",
    "RunConfig",
    "Selection",
    "Situation",
    "Task",
    "Team",
    "TeamSampler",
    "Teammate",
    "TimeStep",
    "Trajectory",
    "__version__",
    "bootstrap_iqm",
    "check_environment",
    "compare",
    "compare_rows",
    "configure",
    "draw_frame",
    "evaluate_mn",
    "evaluate_sampler",
    "from_jaxmarl",
    "from_pettingzoo",
    "load_agent",
    "load_members",
    "make_env",
    "mean_interval",
    "read_metrics",
    "record",
    "register_algorithm",
    "register_task",
    "register_teammate",
    "resume",
    "run_config",
    "save_replay",
    "setting",
    "team_sampler",
    "to_gymnasium",
    "to_pettingzoo",
    "train",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'naht' has no attribute '{name}'")
