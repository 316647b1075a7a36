"""What is learned from. All kinds come from the same net return R = E'/E − 1, so no cost is counted twice.

    log_return      r = ln(E'/E)
    excess          R − mean return of the assets
    mean_variance   r − ½λr²
    drawdown        r − η·max(0, d' − d)²,  d = 1 − E/peak
    sharpe          D = (B·ΔA − ½A·ΔB)/(B − A²)^{3/2},  ΔA = R − A, ΔB = R² − B         (Moody & Saffell 2001)
    downside        D = (R − ½A)/d                               where R > 0
                    D = (d²·(R − ½A) − ½A·R²)/d³                 elsewhere; d² the mean square of losses

A, B and d² are running means of R, R² and min(R, 0)² with a rate η. They are part of the state and have to be observed. They
begin as those of one who has earned nothing at the market's risk (A = 0, B = σ², d² = σ²/2, σ² of the bars before): begun at 0,
the first rewards would be a thousandfold.

Excess, sharpe and downside can be good in the very bar that ruins (all else fell too; A is below 0): there they are
REWARD_FLOOR at most. R is −1 at least, whatever is owed.
"""

import math
from typing import NamedTuple

from quantail.market.numbers import Numbers, Value
from quantail.market.terms import REWARD_FLOOR, Reward

LEAST_VARIANCE = 1e-10  # of returns; below 10 bp of a bp nothing is told apart


class Memory(NamedTuple):
    """Running means."""

    mean: Value  # [B] A
    square: Value  # [B] B of sharpe, d² of downside


FLOOR_GROWTH = math.exp(REWARD_FLOOR)


def log_growth(n: Numbers, after: Value, before: Value) -> Value:
    """ln(E'/E), not below the floor: equity may be gone, and its logarithm with it."""
    return n.log(n.at_least(after / before, FLOOR_GROWTH))


class Earned(NamedTuple):
    """What one bar did to equity, as far as the kind of reward asks for it."""

    growth: Value  # [B] ln(E'/E)
    simple: Value  # [B] E'/E − 1
    ruined: Value  # [B] bool
    market: Value = 0.0  # [B] mean return of the assets that have a bar
    deeper: Value = 0.0  # [B] d' − d


def rewarded(n: Numbers, reward: Reward, earned: Earned, memory: Memory) -> tuple[Value, Memory]:
    """Reward [B] and the memory after."""
    growth, simple = earned.growth, earned.simple
    if reward.kind == "log_return":
        return growth * reward.scale, memory
    if reward.kind == "mean_variance":
        return (growth - 0.5 * reward.risk_aversion * growth * growth) * reward.scale, memory
    if reward.kind == "drawdown":
        deeper = n.at_least(earned.deeper, 0.0)
        return (growth - reward.drawdown_aversion * deeper * deeper) * reward.scale, memory
    simple = n.at_least(simple, -1.0)
    found, memory = (simple - earned.market, memory) if reward.kind == "excess" else differential(n, reward, simple, memory)
    return n.where(earned.ruined, n.at_most(found, REWARD_FLOOR), found) * reward.scale, memory


def differential(n: Numbers, reward: Reward, simple: Value, memory: Memory) -> tuple[Value, Memory]:
    """D of sharpe or downside [B] and the memory after."""
    mean, square = memory
    if reward.kind == "sharpe":
        d_mean, d_square = simple - mean, simple * simple - square
        variance = n.at_least(square - mean * mean, LEAST_VARIANCE)
        ratio = (square * d_mean - 0.5 * mean * d_square) / (variance * n.root(variance))
    else:
        loss = n.at_most(simple, 0.0)
        d_mean, d_square = simple - mean, loss * loss - square
        variance = n.at_least(square, LEAST_VARIANCE)
        edge = simple - 0.5 * mean
        ratio = (edge - 0.5 * mean * loss * loss / variance) / n.root(variance)
    return ratio, Memory(mean + reward.rate * d_mean, square + reward.rate * d_square)


def first_memory(reward: Reward, variance: Value) -> Memory:
    """What an episode begins with, from the variance of the market's bars before it."""
    return Memory(variance * 0.0, variance if reward.kind == "sharpe" else 0.5 * variance)
