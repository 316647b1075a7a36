"""Rollouts to judge returns by: random ones, and ones whose value function is perfect by construction."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Rollout(NamedTuple):
    """What the functions of `returns` are handed; float64."""

    rewards: Tensor  # [T, ...]
    values: Tensor  # [T+1, ...]
    terminated: Tensor  # [T, ...]
    truncated: Tensor  # [T, ...]
    valid: Tensor | None = None  # [T, ...]
    final_values: Tensor | None = None  # [T, ...]


def random_rollout(
    shape: tuple[int, ...], seed: int, *, ends: float = 0.3, mode: str = "next_step", scale: float = 1.0
) -> Rollout:
    """Normal rewards and values of a given scale; each flag is up with probability `ends`, also both at once.

    mode: `next_step`; `same_step` with final values; `explicit` with a random `valid` mask.
    """
    rng = np.random.default_rng(seed)
    normal = lambda rows: torch.from_numpy(scale * rng.standard_normal((rows, *shape[1:])))  # noqa: E731
    flags = lambda share: torch.from_numpy(rng.random(shape) < share)  # noqa: E731
    rollout = Rollout(normal(shape[0]), normal(shape[0] + 1), flags(ends), flags(ends))
    final_values, valid = normal(shape[0]), flags(0.7)
    if mode == "same_step":
        return rollout._replace(final_values=final_values)
    return rollout._replace(valid=valid) if mode == "explicit" else rollout


def perfect_rollout(mode: str, steps: int, envs: int, gamma: float, seed: int) -> Rollout:
    """Random episodes laid out as a source in this autoreset mode shows them, with the true value of every observation.

    What a learner must not read is NaN: values after a termination, final values of rows that were not truncated, and
    whatever a row holds that waits for its reset. `disabled` waits one to three rows and says so in `valid`.
    """
    rng = np.random.default_rng(seed)
    columns = [_column(mode, steps + 1, gamma, rng) for _ in range(envs)]
    rewards, values, terminated, truncated, valid, final_values = torch.tensor(columns, dtype=torch.float64).permute(2, 1, 0)
    return Rollout(
        rewards[:-1],
        values,
        terminated[:-1].bool(),
        truncated[:-1].bool(),
        valid[:-1].bool() if mode == "disabled" else None,
        final_values[:-1] if mode == "same_step" else None,
    )


def _column(mode: str, length: int, gamma: float, rng: np.random.Generator) -> list[tuple[float, ...]]:
    """(reward, value, terminated, truncated, valid, final value) per row of one environment."""
    nan = float("nan")
    rows: list[tuple[float, ...]] = []
    while len(rows) < length:
        terminated = bool(rng.random() < 0.4)
        final = 0.0 if terminated else float(rng.normal(0, 10))
        rewards = rng.normal(size=rng.integers(1, 6)).tolist()
        values = [final]
        for reward in reversed(rewards):
            values.insert(0, reward + gamma * values[0])
        last = len(rewards) - 1
        for t, reward in enumerate(rewards):
            ends = t == last
            rows.append(
                (reward, values[t], ends and terminated, ends and not terminated, 1, nan if terminated or not ends else final)
            )
        seen = nan if terminated else final
        if mode != "same_step":
            rows.append((nan, seen, 0, 0, 0, nan))
        if mode == "disabled":
            rows.extend([(nan, nan, 0, 0, 0, nan)] * int(rng.integers(0, 3)))
    return rows[:length]
