"""Slow second opinions on returns: loops over one environment at a time, by the forward sums that the papers print."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from oracles.rollouts import Rollout

Column = list[float]


def lambda_returns(rollout: Rollout, gamma: float, lam: float) -> Tensor:
    """The mixture of n-step returns (1 − λ)·Σ_{n<N} λ^{n−1}·G⁽ⁿ⁾ + λ^{N−1}·G⁽ᴺ⁾   (Sutton & Barto 2018, eq. 12.3)."""

    def one(env: "_Env", t: int) -> float:
        rows = env.rows_from(t)
        n_step, rewards = [], 0.0
        for n, row in enumerate(rows, start=1):
            rewards += gamma ** (n - 1) * env.rewards[row]
            n_step.append(rewards + gamma**n * env.reached(row))
        mixed = sum((1 - lam) * lam ** (n - 1) * g for n, g in enumerate(n_step[:-1], start=1))
        return mixed + lam ** (len(n_step) - 1) * n_step[-1]

    return _each_row(rollout, lambda env, t: one(env, t) if env.valid[t] else env.values[t])


def advantages(rollout: Rollout, gamma: float, lam: float) -> Tensor:
    """The exponentially weighted sum Σ_l (γλ)^l·δ_{t+l} up to the episode's end   (Schulman et al. 2016, eq. 16)."""

    def one(env: "_Env", t: int) -> float:
        errors = [env.rewards[row] + gamma * env.reached(row) - env.values[row] for row in env.rows_from(t)]
        return sum((gamma * lam) ** n * error for n, error in enumerate(errors))

    return _each_row(rollout, lambda env, t: one(env, t) if env.valid[t] else 0.0)


def vtrace(ratio: Tensor, rollout: Rollout, gamma: float, lam: float, rho_max: float, c_max: float) -> tuple[Tensor, Tensor]:
    """v_t = V_t + Σ_k γ^{k−t}·Π_{i<k} c_i·ρ_k·δ_k, A_t = ρ_t·(r_t + γ·((1 − λ)·V⁺ + λ·v_{t+1}) − V_t)   (Espeholt 2018)."""

    def target(env: "_Env", t: int) -> float:
        total, weight = env.values[t], 1.0
        for row in env.rows_from(t):
            error = env.rewards[row] + gamma * env.reached(row) - env.values[row]
            total += weight * min(rho_max, env.ratio[row]) * error
            weight *= gamma * lam * min(c_max, env.ratio[row])
        return total

    def advantage(env: "_Env", t: int) -> float:
        following = env.reached(t)
        if len(env.rows_from(t)) > 1:
            following = (1 - lam) * following + lam * target(env, t + 1)
        return min(rho_max, env.ratio[t]) * (env.rewards[t] + gamma * following - env.values[t])

    targets = _each_row(rollout, lambda env, t: target(env, t) if env.valid[t] else env.values[t], ratio)
    return targets, _each_row(rollout, lambda env, t: advantage(env, t) if env.valid[t] else 0.0, ratio)


def walk(
    rollout: Rollout, t: int, follows: Sequence[bool], drawn: Sequence[float], own: Sequence[float], gamma: float
) -> float:
    """One particle of row t of a rollout of one environment, walked forwards until it stops following.

    follows, drawn, own [T]: whether it goes on after each row, else what it draws there, and what an invalid row draws.
    """
    env = _Env(rollout, ())
    if not env.valid[t]:
        return own[t]
    total, discount = 0.0, 1.0
    for row in env.rows_from(t):
        total += discount * env.rewards[row]
        discount *= gamma
        if env.ends(row) or not follows[row]:
            return total if env.terminated[row] else total + discount * drawn[row]
    return total + discount * (own[row + 1] if row + 1 < len(env.rewards) else drawn[row])


def inverse_transform(locations: Sequence[float], masses: Sequence[float], u: float) -> float:
    """The first location whose cumulated mass exceeds u."""
    return next(x for x, below in zip(locations, np.cumsum(masses), strict=True) if below > u)


def standardised(numbers: Sequence[float], weights: Sequence[float]) -> list[float]:
    """(x − mean)/std of weighted numbers in exact fractions, rounded once at the end."""
    x, w = [Fraction(n) for n in numbers], [Fraction(n) for n in weights]
    mean = sum(a * b for a, b in zip(x, w, strict=True)) / sum(w)
    variance = sum(b * (a - mean) ** 2 for a, b in zip(x, w, strict=True)) / sum(w)
    return [math.copysign(math.sqrt((a - mean) ** 2 / variance), a - mean) for a in x]


class _Env:
    """One environment's columns as plain numbers."""

    def __init__(self, rollout: Rollout, index: tuple[int, ...], ratio: Tensor | None = None) -> None:
        def column(x: Tensor) -> Column:
            return x[(slice(None), *index)].tolist()

        self.rewards, self.values = column(rollout.rewards), column(rollout.values)
        self.terminated, self.truncated = column(rollout.terminated), column(rollout.truncated)
        self.final_values = None if rollout.final_values is None else column(rollout.final_values)
        self.ratio = [] if ratio is None else column(ratio)
        if rollout.valid is not None:
            self.valid = column(rollout.valid)
        elif self.final_values is not None:
            self.valid = [True] * len(self.rewards)
        else:
            self.valid = [t == 0 or not self.ends(t - 1) for t in range(len(self.rewards))]

    def ends(self, t: int) -> bool:
        return bool(self.terminated[t] or self.truncated[t])

    def reached(self, t: int) -> float:
        """Value of the observation that row t led to."""
        if self.terminated[t]:
            return 0.0
        return self.final_values[t] if self.final_values is not None and self.truncated[t] else self.values[t + 1]

    def rows_from(self, t: int) -> list[int]:
        """Row t and those after it whose rewards still count for it."""
        rows = [t]
        while not self.ends(rows[-1]) and rows[-1] + 1 < len(self.rewards) and self.valid[rows[-1] + 1]:
            rows.append(rows[-1] + 1)
        return rows


def _each_row(rollout: Rollout, one, ratio: Tensor | None = None) -> Tensor:
    result = torch.empty_like(rollout.rewards)
    for index in _indices(rollout.rewards.shape[1:]):
        env = _Env(rollout, index, ratio)
        for t in range(len(env.rewards)):
            result[(t, *index)] = one(env, t)
    return result


def _indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return iter(np.ndindex(*shape))
