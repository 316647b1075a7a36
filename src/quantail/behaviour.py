"""What the policy did in a rollout, apart from whether it was any good: how sharp it is, whether it always does the same."""

from typing import cast

import torch
from torch import Tensor

from quantail.nets.agent import Agent, Trunk
from quantail.nets.heads import ChoiceHead, GaussianHead
from quantail.nets.memory import Memory
from quantail.rollout import Carry, Rollout

FULL = 0.99  # |tanh(c)| or |h| from which on a memory cell counts as full: what comes in hardly moves it
AT_SIDE = 0.001  # of a box's width: so close to a side an action counts as lying on it


def behaviour_metrics(agent: Agent, carry: Carry, rollout: Rollout) -> dict[str, Tensor]:
    """Figures of the actions over the rows that count, and how full the memory is at the end of the rollout."""
    counts = (rollout.policy_weight > 0).double()
    found: dict[str, Tensor] = {}
    if isinstance(agent.policy, ChoiceHead):
        found["policy/action_top_share"] = top_share(rollout.action, agent.policy.sizes, counts)
    if isinstance(agent.policy, GaussianHead):
        action = agent.policy.to_env(rollout.action).double().flatten(2)  # [T, B, A]
        found["train/std"] = rows_mean(rollout.policy.log_std.double().exp().mean(-1), counts)
        centre = rows_mean(action, counts)
        found["policy/action_spread"] = rows_mean((action - centre).square(), counts).sqrt().mean()
        low, high = cast(Tensor, agent.policy.low), cast(Tensor, agent.policy.high)
        found["policy/action_at_bound"] = rows_mean(on_a_side(action, low, high).double().mean(-1), counts)
    share = full_share(agent, carry.memory)
    return found if share is None else found | {"memory/full": share}


def rows_mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of the rows that count: values [T, B, ...], counts [T, B] 0 or 1 -> [...]; NaN if there are none."""
    counts = counts.reshape(*counts.shape, *[1] * (values.ndim - 2))
    return torch.where(counts > 0, values, 0.0).sum((0, 1)) / counts.sum((0, 1))


def top_share(action: Tensor, sizes: list[int], counts: Tensor) -> Tensor:
    """The share of the commonest choice; of several side by side the mean.  action [T, B] or [T, B, D], counts [T, B]."""
    rows = action.reshape(*counts.shape, len(sizes))
    each = [rows_mean(torch.nn.functional.one_hot(rows[..., i], size).double(), counts) for i, size in enumerate(sizes)]
    return torch.stack([shares.max() for shares in each]).mean()


def on_a_side(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which actions lie on a side of their box: [..., A], bounds [A] -> [..., A] bool; an open box has no sides."""
    width = high - low
    margin = torch.where(width.isfinite(), AT_SIDE * width, 0.0)
    return (action <= low + margin) | (action >= high - margin)


def full_share(agent: Agent, memory: Memory) -> Tensor | None:
    """The share of memory cells at their limit: |tanh(c)| of an LSTM, |h| of a GRU; None where a memory has no limit."""
    at, full = 0, []
    for trunk in agent.trunks.values():
        net = cast(Trunk, trunk).memory
        own, at = memory[at : at + net.states], at + net.states
        if net.kind in ("lstm", "gru"):
            cells = own[1].tanh() if net.kind == "lstm" else own[0]
            full.append((cells.abs() > FULL).double().mean())
    return torch.stack(full).mean() if full else None
