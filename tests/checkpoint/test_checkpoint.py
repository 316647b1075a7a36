"""A run that goes on from a file equals one that never stopped, bit for bit; what does not fit is refused in one sentence."""

import dataclasses
import itertools
import math

import gymnasium
import pytest
import torch

from quantail import checkpoint
from quantail.checkpoint import store
from quantail.envs.gymnasium import make_env
from quantail.envs.oracles import CartPole
from quantail.errors import CheckpointError
from quantail.evaluation import play
from quantail.loop import begin, make_agent, train
from quantail.rollout import Carry
from quantail.types import Box, Discrete, Group, MultiDiscrete
from rivers import Ragged, configured

STEERED = {"kl.target": 1e-3, "kl.penalty_kp": 1.0, "kl.penalty": 0.1, "kl.epoch_decay": 0.5}
ENTROPY = {"entropy.coef": 0.1, "entropy.final": 0.0, "entropy.decay_iterations": 5, "entropy.plateau_window": 3}

# What a resume has to carry over: a new kind of state needs an entry here, and no more.
VARIANTS = {
    "lstm": {},
    "feed-forward": {"net.memory": "none"},
    "gru, shared": {"net.memory": "gru", "net.trunks": "shared", "net.layers": 2},
    "mingru, each": {"net.memory": "mingru", "net.trunks": "each"},
    "dropout, held exploration": {"net.dropout": 0.2, "net.gsde": True},
    "non-crossing": {"critic.noncrossing": True},
    "categorical": {"critic.kind": "categorical", "critic.support_width": 2.0},
    "scalar, one": {"critic.kind": "scalar", "critic.twin": False},
    "nothing normalised": {"input.normalize_observations": False, "critic.normalize_returns": False},
    "steered": STEERED,
    "entropy waits for its plateau": ENTROPY,
    "schedule": {"optim.schedule.kind": "linear", "total_timesteps": 1000},
    "adamw": {"optim.name": "adamw", "optim.weight_decay": 0.1},
    "sgd": {"optim.name": "sgd"},
    "gated": {"optim.name": "adaptive_upgd", "optim.upgd.noise": "tracked", "optim.critic_learning_rate": 1e-3},
    "measured": {"optim.variance.estimator": "elementwise", "optim.variance.warmup": 1},
    "two batches": {"optim.variance.estimator": "two_batch", "optim.variance.warmup": 1, "ppo.micro_batches": 2},
    "answering": {"kl.target": 0.01, "optim.kl_rate.factor": 1.5, "optim.schedule.kind": "one_cycle"},
    "muon": {"optim.name": "muon"},
}


def reports(config, env, count, progress=None):
    return list(itertools.islice(train(config, env, progress=progress), count))


@pytest.mark.parametrize(("name", "same_step"), [*((name, False) for name in VARIANTS), ("lstm", True)])
def test_a_resumed_run_equals_one_that_never_stopped(name, same_step, tmp_path):
    config = configured("real", {"total_timesteps": 10**9, **VARIANTS[name]})
    path, env = tmp_path / "here.safetensors", Ragged("real", same_step)
    whole = train(config, env)
    *_, report = itertools.islice(whole, 3)
    checkpoint.save(path, report.progress, config, env, {"best": 1.5})
    expected = [checkpoint.to_bytes(one.progress, config, env) for one in itertools.islice(whole, 2)]

    other = Ragged("real", same_step)
    saved = checkpoint.read(path)
    assert (saved.config, saved.extra, saved.iteration, saved.env_steps) == (config, {"best": 1.5}, 3, report.env_steps)
    progress = checkpoint.restore(saved, other)
    assert checkpoint.to_bytes(progress, config, other, {"best": 1.5}) == path.read_bytes()
    again = itertools.islice(train(config, other, progress=progress), 2)
    assert [checkpoint.to_bytes(one.progress, config, other) for one in again] == expected


def test_weights_in_float64_come_back_in_float64():
    config, env = configured("real", {}), Ragged("real")
    whole = train(config, env, make_agent(config, env).double())
    report = next(whole)
    saved = checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env))
    progress = checkpoint.restore(saved, Ragged("real"))
    assert {weight.dtype for weight in progress.agent.parameters()} == {torch.float64}
    expected = checkpoint.to_bytes(next(whole).progress, config, env)
    assert checkpoint.to_bytes(next(train(config, Ragged("real"), progress=progress)).progress, config, env) == expected


def test_the_agent_alone_plays_as_it_did_and_moves_no_global_stream():
    config, env = configured("real", {}), Ragged("real")
    report = reports(config, env, 2)[-1]
    saved = checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    agent = checkpoint.restore_agent(saved)
    assert torch.equal(torch.rand(2), expected)
    there = play(env, report.agent, report.carry.obs_moments, config, 20)
    here = play(Ragged("real"), agent, saved.observation_moments, saved.config, 20)
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))


def test_what_no_file_holds_is_as_fine_as_before():
    """Levels and their masses are float64 beside weights of any kind, and made anew; a rounded one moves figures."""
    config, env = configured("real", {}), Ragged("real")
    report = reports(config, env, 1)[-1]
    agent = checkpoint.restore_agent(checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env)))
    before, after = (dict(one.named_buffers()) for one in (report.agent, agent))
    assert {name: (buffer.dtype, buffer.tolist()) for name, buffer in after.items()} == {
        name: (buffer.dtype, buffer.tolist()) for name, buffer in before.items()
    }


def test_an_agent_that_is_given_takes_the_weights():
    config, env = configured("real", {}), Ragged("real")
    report = reports(config, env, 1)[-1]
    saved = checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env))
    mine = make_agent(dataclasses.replace(config, seed=9), env)
    assert checkpoint.restore(saved, env, agent=mine).agent is mine
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), report.agent.parameters(), strict=True))


def test_other_settings_may_go_on_from_the_same_weights():
    config, env = configured("real", {}), Ragged("real")
    report = reports(config, env, 1)[-1]
    saved = checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env))
    faster = configured("real", {"optim.learning_rate": 0.01})
    progress = checkpoint.restore(saved, Ragged("real"), faster)
    assert reports(faster, Ragged("real"), 1, progress)[0].metrics["train/learning_rate"] == 0.01


def test_moments_come_from_the_file_and_settings_from_the_config():
    config, env = configured("real", {"optim.name": "adaptive_upgd"}), Ragged("real")
    saved = checkpoint.from_bytes(checkpoint.to_bytes(reports(config, env, 1)[-1].progress, config, env))
    other = configured("real", {"optim.name": "adaptive_upgd", "optim.weight_decay": 0.4, "optim.upgd.sigma": 0.5})
    progress = checkpoint.restore(saved, Ragged("real"), other)
    (group,) = progress.optimizer.param_groups
    assert (group["weight_decay"], group["sigma"], group["utility_beta"]) == (0.4, 0.5, 0.999)
    assert all(float(progress.optimizer.state[p]["step"]) > 0 for p in group["params"])


# --- environments that cannot be put back -----------------------------------------------------------------------------


class Counted(gymnasium.Env):
    """Observes how often it was seeded, and with what, beside the time in its episode."""

    observation_space = gymnasium.spaces.Box(-math.inf, math.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.luck = 0, self.np_random.random()
        return self.observed(), {}

    def step(self, action):
        self.time += 1
        return self.observed(), 1.0 + action, self.time == 7, False, {}

    def observed(self):
        return torch.tensor([self.time, self.luck]).numpy()


def test_an_environment_that_cannot_be_put_back_starts_new_episodes_and_all_else_goes_on():
    config = configured("choice", {})
    env = make_env(Counted, num_envs=3)
    started = begin(config, env).carry
    *_, report = reports(config, env, 2)
    saved = checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env))
    one, two = (checkpoint.restore(saved, make_env(Counted, num_envs=3)).carry for _ in range(2))
    assert one.start.all()
    assert not one.ended.any()
    assert (one.obs[:, 0] == 0).all()
    assert not torch.equal(one.obs, started.obs)  # other episodes than those the run began with
    assert torch.equal(one.obs, two.obs)  # and the same ones each time
    assert all(not state.any() for state in one.memory)
    assert not one.episode_length.any()
    assert one.iteration == 2
    assert one.scale == report.carry.scale
    assert all(torch.equal(a, b) for a, b in zip(one.obs_moments[""], report.carry.obs_moments[""], strict=True))


def test_it_may_come_back_in_another_number():
    config, env = configured("choice", {}), make_env(Counted, num_envs=3)
    saved = checkpoint.from_bytes(checkpoint.to_bytes(reports(config, env, 1)[0].progress, config, env))
    more = make_env(Counted, num_envs=4)
    assert reports(config, more, 1, checkpoint.restore(saved, more))[0].iteration == 1


LEARNT = {"obs_moments", "return_moments", "return_history", "scale", "risk", "iteration"}


def test_every_part_of_the_carry_belongs_to_the_episodes_or_to_the_run():
    """A new field has to say which: what belongs to episodes must not outlive them."""
    assert sorted([*checkpoint.RUNNING, *LEARNT]) == sorted(Carry._fields)


# --- what does not fit ------------------------------------------------------------------------------------------------

BOX = Box((4,))


@pytest.fixture(scope="module")
def saved():
    config, env = configured("choice", {}), Ragged("choice")
    return checkpoint.from_bytes(checkpoint.to_bytes(begin(config, env), config, env), "run.safetensors")


class Other(Ragged):
    """The same world with other spaces."""

    def __init__(self, seen=BOX, taken=None, num_envs=5):
        super().__init__("choice", num_envs=num_envs)
        self.observation_space, self.action_space = seen, taken or self.action_space


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            Other(seen=Box((7,))),
            r"run.safetensors has the observation space Box\[4\] of float32 from -inf to inf, Other has Box\[7\]",
        ),
        (Other(seen=Box((4,), -1.0)), "Other has .* from -1 to inf; use the environment it was trained in"),
        (Other(seen=Box((4,), (-1.0, 0.0, 0.0, 0.0))), r"from \[-1.0, 0.0, 0.0, 0.0\] to inf"),
        (Other(taken=Discrete(2)), r"the action space Discrete\(3\), Other has Discrete\(2\)"),
        (Other(taken=MultiDiscrete((2, 3))), r"Other has MultiDiscrete\(\[2, 3\]\)"),
        (Other(seen=Group((("a", BOX), ("b", Discrete(2))))), r"Other has Group\(a: Box.*, b: Discrete\(2\)\)"),
        (Other(num_envs=6), "run.safetensors holds 5 environments, Other has 6; make it with num_envs=5"),
    ],
)
def test_another_environment_is_refused(saved, env, words):
    with pytest.raises(CheckpointError, match=words):
        checkpoint.restore(saved, env)


def test_bounds_written_out_or_not_are_the_same_space(saved):
    checkpoint.check_environment(saved, Other(seen=Box((4,), (-math.inf,) * 4)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"net.hidden": 9}, r"the agent of run.safetensors does not fit: size mismatch for .* Use the settings"),
        ({"net.memory": "gru"}, "the agent of run.safetensors does not fit"),
        ({"optim.name": "sgd"}, None),  # the moments of another optimizer are of no use to it
    ],
)
def test_other_settings_that_do_not_fit_are_refused(saved, values, words):
    if words is None:
        checkpoint.restore(saved, Ragged("choice"), configured("choice", values))
        return
    with pytest.raises(CheckpointError, match=words):
        checkpoint.restore(saved, Ragged("choice"), configured("choice", values))


@pytest.mark.parametrize("tree", [{}, {"config": {}}, {"config": {"net": {"hiden": 3}}, "observation_space": {"kind": "Box"}}])
def test_a_file_of_another_kind_is_refused(tree):
    with pytest.raises(CheckpointError, match="x is no checkpoint of a training run"):
        checkpoint.from_bytes(store.pack(tree), "x")


@pytest.mark.parametrize(
    "space",
    [
        Box((2, 3), 0.0, math.inf),
        Box((), -1.0, 1.0),
        Box((2,), (0.0, -math.inf), (1.0, 2.0)),
        Box((8, 8, 3), 0, 255, "uint8"),
        Discrete(4),
        MultiDiscrete((2, 5)),
        Group((("pixels", Box((8, 8, 3), 0, 255, "uint8")), ("which", Discrete(3)))),
    ],
)
def test_every_space_comes_back(space):
    from quantail.checkpoint.spaces import space_from, space_to

    tree = store.unpack(store.pack({"space": space_to(space)}), "x")
    assert space_to(space_from(tree["space"])) == space_to(space)
    assert type(space_from(tree["space"])) is type(space)


def test_native_environments_resume_too():
    env = CartPole(3, velocities=False)
    config = configured("choice", {})
    whole = train(config, env)
    first = checkpoint.from_bytes(checkpoint.to_bytes(next(whole).progress, config, env))
    expected = checkpoint.to_bytes(next(whole).progress, config, env)
    other = CartPole(3, velocities=False)
    again = next(train(config, other, progress=checkpoint.restore(first, other)))
    assert checkpoint.to_bytes(again.progress, config, other) == expected
