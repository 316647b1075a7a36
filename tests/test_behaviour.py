"""What the policy did, figure by figure, against loops over single rows."""

import collections
import itertools
import math

import numpy as np
import pytest
import torch

from quantail.behaviour import behaviour_metrics, full_share, on_a_side, top_share
from quantail.types import Box
from rivers import ACTIONS, B, T, flow, settings


def rows(river):
    """(t, b) of the rows that count."""
    weight = river.rollout.policy_weight
    found = [at for at in itertools.product(range(T), range(B)) if weight[at] > 0]
    assert 5 < len(found) < T * B
    return found


def figures(action, **net):
    river = flow(settings(action, net=net), action=action)
    return river, {name: float(value) for name, value in behaviour_metrics(river.agent, river.carry, river.rollout).items()}


@pytest.mark.parametrize("action", ["choice", "choices"])
def test_share_of_the_commonest_choice(action):
    river, found = figures(action)
    taken = np.array([river.rollout.action[at].reshape(-1).tolist() for at in rows(river)])
    shares = [collections.Counter(column.tolist()).most_common(1)[0][1] / len(column) for column in taken.T]
    assert found["policy/action_top_share"] == pytest.approx(np.mean(shares), rel=1e-12)
    assert set(found) == {"policy/action_top_share", "memory/full"}


def test_rows_that_do_not_count_have_no_choice():
    action, counts = torch.tensor([[0, 0, 2], [1, 1, 1]]), torch.tensor([[1.0, 1, 0], [0, 0, 1]])
    assert float(top_share(action, [3], counts)) == pytest.approx(2 / 3)
    assert math.isnan(top_share(action, [3], torch.zeros(2, 3)))


@pytest.mark.parametrize("action", ["real", "tanh", "sigmoid"])
def test_figures_of_real_actions(action):
    river, found = figures(action)
    head, log_std = river.agent.policy, river.rollout.policy.log_std
    given = np.array([head.to_env(river.rollout.action[at]).tolist() for at in rows(river)])
    assert found["policy/action_spread"] == pytest.approx(given.std(0).mean(), rel=1e-10)
    deviations = [np.exp(log_std[at].tolist()).mean() for at in rows(river)]
    assert found["train/std"] == pytest.approx(np.mean(deviations), rel=1e-10)
    space = ACTIONS[action][0]
    assert isinstance(space, Box)
    beside = [
        space.high - x < 1e-3 * (space.high - space.low) or x - space.low < 1e-3 * (space.high - space.low) for x in given.flat
    ]
    assert found["policy/action_at_bound"] == pytest.approx(np.mean(beside) if math.isfinite(space.high) else 0.0)


def test_a_side_is_where_the_box_ends():
    action = torch.tensor([[-1.0, 5.0, 2.0], [-0.9999, 1e9, 2.999], [-0.99, -1e9, 3.0]], dtype=torch.float64)
    low, high = torch.tensor([-1.0, -torch.inf, 0.0]).double(), torch.tensor([1.0, torch.inf, 3.0]).double()
    expected = [[True, False, False], [True, False, True], [False, False, True]]
    assert on_a_side(action, low, high).tolist() == expected
    half_open = on_a_side(torch.tensor([[0.0], [7.0]]), torch.tensor([0.0]), torch.tensor([torch.inf]))
    assert half_open.tolist() == [[True], [False]]


@pytest.mark.parametrize(("memory", "states"), [("lstm", (0.4, 3.0)), ("gru", (0.995,))])
def test_a_full_memory_is_seen(memory, states):
    river = flow(settings("choice", net={"memory": memory, "layers": 2}))
    empty = tuple(torch.zeros_like(state) for state in river.carry.memory)
    assert float(full_share(river.agent, empty)) == 0
    actor = [torch.full_like(state, value) for state, value in zip(empty, states, strict=False)]
    last = actor[-1].clone()
    last[0, 1:] = 0.0  # of two layers and B environments all but B − 1 are full
    half = (*actor[:-1], last, *empty[len(actor) :])
    assert float(full_share(river.agent, half)) == pytest.approx(0.5 * (B + 1) / (2 * B))


@pytest.mark.parametrize("memory", ["mingru", "none"])
def test_a_memory_without_a_limit_is_never_full(memory):
    river, found = figures("choice", memory=memory)
    assert full_share(river.agent, river.carry.memory) is None
    assert "memory/full" not in found


def test_actions_that_never_change_have_no_spread():
    river = flow(settings("real"), action="real")
    still = river.rollout._replace(action=torch.full_like(river.rollout.action, 0.25))
    assert float(behaviour_metrics(river.agent, river.carry, still)["policy/action_spread"]) == 0
