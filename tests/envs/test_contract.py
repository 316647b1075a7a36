"""What an environment hands over is refused by name, before anything has been learned from it."""

import itertools

import pytest
import torch

from quantail.envs.contract import check_step
from quantail.errors import InputError
from quantail.evaluation import play
from quantail.loop import begin, make_agent, train
from quantail.types import Box, Discrete, Group, MultiDiscrete, Step
from rivers import B, Ragged, settings

PARTS = Group(
    (("real", Box((2,))), ("image", Box((4, 4, 1), 0, 255, "uint8")), ("one", Discrete(3)), ("two", MultiDiscrete((2, 2))))
)


class Odd(Ragged):
    """Changes what a step gives, from the second row on."""

    def __init__(self, change, action="real", same_step=False):
        super().__init__(action, same_step)
        self.change, self.rows = change, 0

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        self.rows += 1
        return after, step._replace(**self.change(step)) if self.rows > 1 else step


def weights(agent):
    return {name: p.clone() for name, p in agent.named_parameters()}


REFUSED = {
    "a column of rewards": (
        lambda s: {"reward": s.reward[:, None]},
        r"reward of Odd is torch.float64 \[5, 1\]; needs floating",
    ),
    "whole rewards": (lambda s: {"reward": s.reward.long()}, r"reward of Odd is torch.int64 \[5\]; needs floating point \[5\]"),
    "one reward for all": (lambda s: {"reward": s.reward.sum()}, r"reward of Odd is torch.float64 \[\]"),
    "a list": (lambda s: {"reward": s.reward.tolist()}, r"reward of Odd is a list; needs a torch.Tensor \[5\]"),
    "flags as numbers": (
        lambda s: {"terminated": s.terminated.double()},
        r"terminated of Odd is torch.float64 \[5\]; needs torch.bool",
    ),
    "one flag for all": (lambda s: {"truncated": s.truncated[:1]}, r"truncated of Odd is torch.bool \[1\]"),
    "too few features": (
        lambda s: {"obs": s.obs[:, :3]},
        r"obs of Odd is torch.float64 \[5, 3\]; needs floating point \[5, 4\]",
    ),
    "too few environments": (lambda s: {"obs": s.obs[:-1]}, r"obs of Odd is torch.float64 \[4, 4\]"),
    "whole observations": (lambda s: {"obs": s.obs.long()}, r"obs of Odd is torch.int64"),
    "observations in parts": (lambda s: {"obs": {"x": s.obs}}, r"obs of Odd is a dict; needs a torch.Tensor"),
    "a column of gains": (lambda s: {"pnl": s.reward[:, None]}, r"pnl of Odd is torch.float64 \[5, 1\]"),
    "a column of weights": (lambda s: {"policy_weight": s.reward[:, None]}, r"policy_weight of Odd"),
    "a vector in the infos": (lambda s: {"info": {"x": s.obs}}, r"info\['x'\] of Odd is torch.float64 \[5, 4\]; needs \[5\]"),
    "a float in the infos": (lambda s: {"info": {"x": 1.0}}, r"info\['x'\] of Odd is a float"),
    "a mask of real actions": (
        lambda s: {"action_mask": torch.ones(B, 2).bool()},
        r"action_mask of Odd is given, but only choices",
    ),
    "a final observation beside the last": (
        lambda s: {"final_obs": s.obs},
        r"final_obs of Odd is given, but same_step is False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_any_weight_changes(case):
    change, words = REFUSED[case]
    config = settings("real")
    env = Odd(change)
    agent = make_agent(config, env)
    before = weights(agent)
    with pytest.raises(InputError, match=words):
        next(train(config, env, agent))
    torch.testing.assert_close(weights(agent), before, rtol=0, atol=0)
    with pytest.raises(InputError, match=words):
        play(Odd(change), agent, begin(config, Ragged("real"), agent).carry.obs_moments, config, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {"final_obs": None}, r"final_obs of Odd is None, but same_step is True"),
        (lambda s: {"final_obs": s.obs[:, :3]}, r"final_obs of Odd is torch.float64 \[5, 3\]"),
    ],
)
def test_a_source_that_moves_at_once_has_to_show_the_last_observation(change, words):
    """Without it the value of a truncated episode would be that of the next one's first row."""
    with pytest.raises(InputError, match=words):
        next(train(settings("real"), Odd(change, same_step=True)))


@pytest.mark.parametrize(
    ("action", "mask", "words"),
    [
        ("choice", torch.ones(B, 2, dtype=torch.bool), r"action_mask of Odd is torch.bool \[5, 2\]; needs torch.bool \[5, 3\]"),
        ("choice", torch.ones(B, 3), r"action_mask of Odd is torch.float32"),
        ("choices", torch.ones(B, 2, dtype=torch.bool), r"needs torch.bool \[5, 5\]"),
    ],
)
def test_masks_are_flags_for_every_choice(action, mask, words):
    with pytest.raises(InputError, match=words):
        next(train(settings(action), Odd(lambda s: {"action_mask": mask}, action)))


class Start(Ragged):
    """Starts with something else than it promises."""

    def __init__(self, obs, mask=None):
        super().__init__("choice")
        self.obs, self.mask = obs, mask

    def reset(self, noise):
        return super().reset(noise)[0], self.obs

    def first_mask(self, state):
        return self.mask


def test_the_first_observation_and_mask_are_checked_too():
    config, good = settings(), torch.zeros(B, 4)
    with pytest.raises(InputError, match=r"obs of Start is torch.float32 \[5, 2\]"):
        begin(config, Start(good[:, :2]))
    with pytest.raises(InputError, match=r"action_mask of Start is torch.bool \[5, 4\]; needs torch.bool \[5, 3\]"):
        begin(config, Start(good, torch.ones(B, 4, dtype=torch.bool)))
    begin(config, Start(good, torch.ones(B, 3, dtype=torch.bool)))


class Grouped(Ragged):
    observation_space = PARTS


GOOD = {
    "real": torch.zeros(B, 2),
    "image": torch.zeros(B, 4, 4, 1, dtype=torch.uint8),
    "one": torch.zeros(B, dtype=torch.int64),
    "two": torch.zeros(B, 2, dtype=torch.int64),
}


@pytest.mark.parametrize(
    ("part", "bad", "words"),
    [
        ("real", torch.zeros(B, 2, dtype=torch.int64), r"obs\['real'\] of Grouped is torch.int64"),
        ("image", torch.zeros(B, 4, 4, 1), r"obs\['image'\] of Grouped is torch.float32 .*needs torch.uint8 \[5, 4, 4, 1\]"),
        (
            "one",
            torch.zeros(B, 1, dtype=torch.int64),
            r"obs\['one'\] of Grouped is torch.int64 \[5, 1\]; needs torch.int64 \[5\]",
        ),
        ("two", torch.zeros(B, 3, dtype=torch.int64), r"obs\['two'\] .*needs torch.int64 \[5, 2\]"),
        ("three", torch.zeros(B), r"obs of Grouped has the parts \['image', 'one', 'real', 'three', 'two'\]; its space needs"),
    ],
)
def test_each_part_of_an_observation_is_named(part, bad, words):
    env, never = Grouped(), torch.zeros(B, dtype=torch.bool)
    check_step(env, Step(GOOD, torch.zeros(B), never, never))
    with pytest.raises(InputError, match=words):
        check_step(env, Step({**GOOD, part: bad}, torch.zeros(B), never, never))
    with pytest.raises(InputError, match=r"obs of Grouped is a Tensor; its space needs the parts"):
        check_step(env, Step(torch.zeros(B, 4), torch.zeros(B), never, never))


def test_whole_numbers_are_figures_too():
    """Counts and flags in the infos, also in some rows only."""

    def sometimes(step):
        return {"info": {"count": torch.arange(B), "flag": step.terminated} if bool(step.truncated.any()) else {}}

    reports = list(itertools.islice(train(settings("real"), Odd(sometimes)), 2))
    assert 0 <= reports[1].metrics["env/count"] <= B - 1
    assert 0 <= reports[1].metrics["env/flag"] <= 1
