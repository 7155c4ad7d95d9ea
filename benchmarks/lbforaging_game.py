"""The real level-based foraging with the settings of ours, for the benchmark and the tests that play both."""

from __future__ import annotations

import warnings
from typing import Any

from naht.envs.lbf import Lbf


def lbforaging(env: Lbf) -> Any:
    """An environment of lbforaging."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lbforaging.foraging.environment import ForagingEnv

        game = ForagingEnv(
            players=env.num_agents,
            min_player_level=env.min_player_level,
            max_player_level=env.max_player_level,
            min_food_level=env.min_food_level,
            max_food_level=env.max_food_level,
            field_size=(env.rows, env.width),
            max_num_food=env.foods,
            sight=env.reach,
            max_episode_steps=env.horizon,
            force_coop=env.coop,
            normalize_reward=env.normalise,
            penalty=env.penalty,
        )
    # Where a field is not square, it takes rows for columns in the limits of observations, and refuses its own.
    limits = game.observation_space[0]
    game.observation_space = [type(limits)(-1, 99, limits.shape)] * env.num_agents
    return game
