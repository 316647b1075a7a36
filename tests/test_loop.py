"""The river as a whole: it repeats, every setting moves it, its statistics stay frozen where they must, nothing breaks it."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from quantail import engine, loop
from quantail.config import Config, InputConfig, OptimConfig
from quantail.control import Schedules
from quantail.errors import ConfigError, InputError, TrainingError
from quantail.loop import Hooks, begin, make_agent, rollout_noise, train
from quantail.monitor import looks
from quantail.rollout import collect
from rivers import ACTIONS, B, Ragged, T, configured, disturb, flow, refresh, settings

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def run(config: Config, iterations: int = 2, action: str = "real", same_step: bool = False, terms: Any = ()) -> list[dict]:
    """Everything that an outsider can see of some iterations: figures without the clock's, then the weights."""
    config = dataclasses.replace(config, total_timesteps=config.total_timesteps if iterations == 0 else 10**9)
    found: list[dict] = []
    reports = train(config, Ragged(action, same_step), loss_terms=terms)
    try:
        for report in reports if iterations == 0 else itertools.islice(reports, iterations):
            found.append({name: value for name, value in report.metrics.items() if not name.startswith("time/")})
            last = report.agent.state_dict()
    except TrainingError as error:
        return [*found, {"stopped": str(error)}]
    return [*found, {name: value.clone() for name, value in last.items()}]


def same(one: list[dict], other: list[dict]) -> bool:
    """Bit for bit; NaN is NaN."""
    if [sorted(part) for part in one] != [sorted(part) for part in other]:
        return False
    pairs = [(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a]
    return all(a == b if isinstance(a, str) else np.array_equal(a, b, equal_nan=True) for a, b in pairs)


# --- it repeats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_the_same_seed_repeats_bit_for_bit_whatever_the_global_stream_does(action):
    config = settings(action, net={"dropout": 0.2})
    torch.manual_seed(1)
    first = run(config, action=action)
    torch.manual_seed(2)
    assert same(run(config, action=action), first)
    assert not same(run(dataclasses.replace(config, seed=1), action=action), first)


def test_training_leaves_the_global_stream_alone():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    run(settings("real"))
    assert torch.equal(torch.rand(3), expected)


# --- every setting is read --------------------------------------------------------------------------------------------


class Flip(NamedTuple):
    """Change one setting of a base, and the weights must change: a figure that merely repeats the setting proves nothing."""

    value: Any
    base: Mapping[str, Any] = MappingProxyType({})  # "part.field" -> value
    iterations: int = 2  # 0: to the end
    action: str = "real"
    broken: bool = False  # every step is void


STRICT = {"kl.target": 1e-9, "kl.absolute_factor": 1e9, "ppo.n_epochs": 4}
STEERED = {"kl.target": 1e-6, "kl.absolute_factor": 1e9, "kl.penalty": 0.1}
DECAY = {"entropy.coef": 0.1, "entropy.final": 0.0, "entropy.decay_iterations": 2}
LOST = {"entropy.coef": 0.1, "entropy.boost_factor": 3.0, "entropy.boost_patience": 0, "seed": 5, "critic.vf_coef": 0.0}
HELD = {"critic.clip": "mean_and_variance", "critic.clip_radius": 1e-3}
FROZEN = LOST | {"critic.return_freeze": 1}
WARM = {"ppo.clip_range": 2e-3, "ppo.clip_start": 1e-4, "ppo.clip_warmup": 3, "optim.learning_rate": 3e-3}
CLONE = {"clone.coef": 0.5, "clone.final": 0.1, "clone.decay_steps": 100}
GATED = {"optim.name": "adaptive_upgd"}
NOISY = {"optim.variance.estimator": "elementwise", "optim.variance.warmup": 0}
CYCLE = {"optim.schedule.kind": "one_cycle", "total_timesteps": 130}
ANSWERED = {"kl.target": 1e-6, "kl.absolute_factor": 1e9, "optim.kl_rate.factor": 1.5}
RISKY = {"risk.weight": 0.5, "risk.alpha": 0.5}
LIMITED = {"risk.limit": 9.0, "risk.alpha": 0.5, "risk.horizon": "step"}
FLIPS = {
    "risk.horizon": Flip("step", RISKY),
    "risk.window": Flip(3, RISKY | {"risk.horizon": "window", "risk.window": 2}),
    "risk.alpha": Flip(0.3, RISKY),
    "risk.weight": Flip(0.4),
    "risk.limit": Flip(9.0),
    "risk.alpha_decay": Flip(0.5, RISKY),
    "risk.memory": Flip(90, RISKY | {"risk.horizon": "step", "risk.memory": 40}),
    "risk.nu_rate": Flip(0.1, RISKY),
    "risk.kp": Flip(0.1, LIMITED),
    "risk.ki": Flip(0.3, LIMITED),
    "risk.kd": Flip(9.0, LIMITED, iterations=4),
    "risk.delay": Flip(1, LIMITED | {"risk.kd": 9.0}, iterations=4),
    "risk.smoothing": Flip(0.9, LIMITED),
    "risk.cap": Flip(0.01, LIMITED),
    "seed": Flip(1),
    "total_timesteps": Flip(200, {"total_timesteps": 60}, iterations=0),
    "net.encoder_sizes": Flip((5,)),
    "net.memory": Flip("gru"),
    "net.hidden": Flip(3),
    "net.layers": Flip(2),
    "net.dropout": Flip(0.3),
    "net.trunks": Flip("shared"),
    "net.critic_memory": Flip(False),
    "net.critic_moves_trunk": Flip(False, {"net.trunks": "shared"}),
    "net.actor_sizes": Flip(()),
    "net.critic_sizes": Flip((3,)),
    "net.activation": Flip("relu"),
    "net.squash": Flip("sigmoid", {"net.squash": "tanh"}, action="sigmoid"),
    "net.log_std_init": Flip(-1.0),
    "net.state_dependent_std": Flip(True),
    "net.gsde": Flip(True),
    "net.ortho_init": Flip(False),
    "critic.kind": Flip("scalar"),
    "critic.atoms": Flip(7),
    "critic.levels": Flip("midpoint"),
    "critic.twin": Flip(False),
    "critic.twin_reduce": Flip("min"),
    "critic.noncrossing": Flip(True),
    "critic.sorting": Flip(True),
    "critic.kappa": Flip(0.5),
    "critic.targets": Flip("lambda_return"),
    "critic.particles": Flip(5),
    "critic.support_width": Flip(2.0, {"critic.kind": "categorical"}),
    "critic.vf_coef": Flip(1.0),
    "critic.normalize_returns": Flip(False),
    "critic.return_rate": Flip(0.7),
    "critic.return_window": Flip(2),
    "critic.return_max_step": Flip(0.01),
    "critic.return_freeze": Flip(1, iterations=3),
    "critic.return_thaw": Flip(1, FROZEN, iterations=4),
    "critic.ret_clip": Flip(0.5),
    "critic.clip": Flip("mean_only", {"critic.clip_radius": 1e-3}),
    "critic.clip_radius": Flip(1e-4, {"critic.clip": "mean_only", "critic.clip_radius": 1e-3}),
    "critic.clip_variance_factor": Flip(1.0, HELD),
    "critic.clip_warmup": Flip(1, HELD),
    "critic.clip_explained": Flip(1.0, HELD),
    "ppo.n_steps": Flip(9),
    "ppo.n_epochs": Flip(3),
    "ppo.batch_size": Flip(T),
    "ppo.burn_in": Flip(2, {"ppo.batch_size": 4}),
    "ppo.gamma": Flip(0.9),
    "ppo.gae_lambda": Flip(0.5),
    "ppo.clip_range": Flip(1e-4),
    "ppo.clip_start": Flip(5e-4, WARM),
    "ppo.clip_warmup": Flip(5, WARM),
    "ppo.normalize_advantage": Flip("env"),
    "ppo.log_ratio_clamp": Flip("tanh"),
    "kl.target": Flip(1e-9),
    "kl.absolute_factor": Flip(1e9, {"kl.target": 1e-9}),
    "kl.consecutive": Flip(1, STRICT),
    "kl.fraction": Flip(0.0, STRICT),
    "kl.smoothing": Flip(0.9, STRICT | {"kl.target": 1e-4, "kl.consecutive": 1, "optim.learning_rate": 3e-3}),
    "kl.epoch_decay": Flip(0.25, STRICT | {"kl.consecutive": 7}),
    "kl.penalty": Flip(0.5),
    "kl.penalty_max": Flip(0.2, STEERED | {"kl.penalty_ki": 1e6}),
    "kl.penalty_kp": Flip(100.0, STEERED),
    "kl.penalty_ki": Flip(100.0, STEERED),
    "kl.penalty_kd": Flip(1000.0, STEERED, iterations=3),
    "entropy.coef": Flip(0.1),
    "entropy.final": Flip(0.05, DECAY),
    "entropy.floor": Flip(0.09, DECAY),
    "entropy.decay_iterations": Flip(7, DECAY),
    "entropy.plateau_window": Flip(2, DECAY),
    "entropy.plateau_tolerance": Flip(1e9, DECAY | {"entropy.plateau_window": 2}, iterations=4),
    "entropy.boost_factor": Flip(2.0, LOST, iterations=4),
    "entropy.boost_patience": Flip(9, LOST, iterations=4),
    "entropy.boost_cap": Flip(1.5, LOST, iterations=4),
    "clone.coef": Flip(0.5),
    "clone.final": Flip(0.4, CLONE),
    "clone.warmup_steps": Flip(10**6, CLONE),
    "clone.decay_steps": Flip(10**6, CLONE),
    "clone.beta": Flip(0.1, CLONE),
    "clone.max_weight": Flip(1.0, CLONE),
    "optim.name": Flip("sgd"),
    "optim.learning_rate": Flip(1e-2),
    "optim.schedule.kind": Flip("cosine", {"total_timesteps": 90}, iterations=0),
    "optim.schedule.floor": Flip(
        9e-3, {"optim.schedule.kind": "linear", "total_timesteps": 90, "optim.learning_rate": 0.01}, iterations=0
    ),
    "optim.schedule.warmup": Flip(0.5, iterations=1),
    "optim.schedule.warmup_start": Flip(0.5, {"optim.schedule.warmup": 0.5}, iterations=1),
    "optim.schedule.cycle_peak": Flip(0.9, CYCLE, iterations=0),
    "optim.schedule.cycle_start": Flip(0.5, CYCLE, iterations=1),
    "optim.kl_rate.factor": Flip(3.0, ANSWERED, iterations=3),
    "optim.kl_rate.band": Flip(1e9, ANSWERED, iterations=3),
    "optim.kl_rate.limit": Flip(1.1, ANSWERED, iterations=3),
    "optim.critic_learning_rate": Flip(1e-2),
    "optim.beta1": Flip(0.5),
    "optim.beta2": Flip(0.5),
    "optim.upgd.utility_beta": Flip(0.5, GATED),
    "optim.upgd.gate": Flip("tanh", GATED),
    "optim.upgd.strength": Flip(2.0, GATED),
    "optim.upgd.scale": Flip("unit", GATED),
    "optim.upgd.normaliser": Flip("reference", GATED),
    "optim.upgd.protecting": Flip(False, GATED),
    "optim.upgd.sigma": Flip(0.1, GATED),
    "optim.upgd.noise": Flip("tracked", GATED),
    "optim.variance.estimator": Flip("elementwise", {"optim.variance.warmup": 0}),
    "optim.variance.apply_to": Flip("gradient", NOISY),
    "optim.variance.alpha": Flip(0.5, NOISY),
    "optim.variance.decay": Flip(0.1, NOISY, iterations=3),
    "optim.variance.warmup": Flip(3, NOISY),
    "optim.variance.floor": Flip(1.0, NOISY),
    "optim.variance.cap": Flip(1e-3, NOISY),
    "optim.eps": Flip(1e-2),
    "optim.weight_decay": Flip(0.5),
    "optim.max_grad_norm": Flip(1e-3, {"optim.name": "sgd"}),
    "optim.patience": Flip(2, broken=True),
    "input.normalize_observations": Flip(False),
    "input.clip_observations": Flip(0.3),
    "input.reward_scale": Flip(7.0, {"critic.normalize_returns": False}),
}
EXCEPTIONS = {
    "risk.observe": "whether a named environment shows its sums: tests/test_risk.py",
    "ppo.micro_batches": "less memory for the same step: tests/test_update.py shows that the gradient is the same",
}


def leaves(value: Any, path: str = "") -> list[str]:
    found = []
    for one in dataclasses.fields(value):
        inner = getattr(value, one.name)
        found += leaves(inner, f"{path}{one.name}.") if dataclasses.is_dataclass(inner) else [f"{path}{one.name}"]
    return found


def broken_loss(agent, rows, knobs):
    return torch.tensor(math.nan)


@pytest.fixture(scope="module")
def bases():
    return {}


@pytest.mark.parametrize("path", FLIPS)
def test_a_changed_setting_changes_the_weights(path, bases):
    flip = FLIPS[path]
    terms = [broken_loss] if flip.broken else []
    key = (flip.action, flip.iterations, flip.broken, str(dict(flip.base)))
    if key not in bases:
        bases[key] = run(configured(flip.action, flip.base), flip.iterations, flip.action, terms=terms)
    flipped = configured(flip.action, {**flip.base, path: flip.value})
    assert flipped != configured(flip.action, flip.base)
    assert not same(run(flipped, flip.iterations, flip.action, terms=terms)[-1:], bases[key][-1:])


def test_every_setting_is_flipped_or_has_its_reason():
    beside = ("env.", "run.", "engine.")  # what these change is told in tests/run/test_flips.py and tests/test_engine.py
    assert sorted([*FLIPS, *EXCEPTIONS]) == sorted(leaf for leaf in leaves(Config()) if not leaf.startswith(beside))


def test_a_setting_that_contradicts_another_is_refused():
    with pytest.raises(ConfigError, match="gsde and state_dependent_std"):
        run(settings("real", net={"gsde": True, "state_dependent_std": True}))


# --- names and counts -------------------------------------------------------------------------------------------------

SB3 = """rollout/ep_rew_mean rollout/ep_len_mean train/approx_kl train/clip_fraction train/explained_variance train/value_loss
train/policy_gradient_loss train/entropy_loss train/loss train/learning_rate train/clip_range train/n_updates time/fps
time/iterations time/total_timesteps time/time_elapsed"""


def test_what_sb3_logs_has_sb3s_names():
    *_, report = itertools.islice(train(settings("real"), Ragged("real")), 3)
    assert [name for name in SB3.split() if not math.isfinite(report.metrics.get(name, math.nan))] == []
    assert report.metrics["time/iterations"] == 3
    assert report.metrics["train/n_updates"] == 6  # two epochs each
    assert report.metrics["time/total_timesteps"] == report.env_steps
    expected = report.env_steps / report.metrics["time/time_elapsed"]
    assert report.metrics["time/fps"] == pytest.approx(expected)


def test_the_time_of_an_iteration_is_shared_out_among_its_phases(monkeypatch):
    """On a clock that moves only when a phase runs, by a number of its own."""
    now = [100.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])

    def slow(module, name, seconds):
        plain = getattr(module, name)

        def run(*arguments, **keywords):
            now[0] += seconds
            return plain(*arguments, **keywords)

        monkeypatch.setattr(module, name, run)

    slow(loop, "update", 4.0)
    for name, seconds in {"collect": 1.0, "read": 2.0, "figures_of": 8.0}.items():
        slow(engine, name, seconds)
    reports = train(settings("real"), Ragged("real"))
    first = next(reports).metrics
    now[0] += 16.0  # what the caller does with a report
    second = next(reports).metrics
    phases = ("collect", "estimate", "update", "other")
    assert [first[f"time/{phase}_seconds"] for phase in phases] == [1.0, 2.0, 4.0, 0.0]
    assert [second[f"time/{phase}_seconds"] for phase in phases] == [1.0, 2.0, 4.0, 24.0]
    assert (first["time/time_elapsed"], second["time/time_elapsed"]) == (15.0, 46.0)


@pytest.mark.parametrize("same_step", [False, True])
def test_steps_are_valid_rows_and_training_ends_when_they_are_seen(same_step):
    config = dataclasses.replace(settings("real"), total_timesteps=150)
    reports = list(train(config, Ragged("real", same_step)))
    assert [report.iteration for report in reports] == list(range(len(reports)))
    assert reports[-1].env_steps >= 150 > reports[-2].env_steps
    assert reports[-1].env_steps == sum(report.metrics["rollout/valid_rows"] for report in reports)
    if same_step:
        assert reports[-1].env_steps == 3 * T * B


def test_returns_of_episodes_are_raw_whatever_is_learned_from():
    plain, scaled = (
        next(iter(train(settings("real", input=InputConfig(reward_scale=scale)), Ragged("real")))) for scale in (1.0, 9.0)
    )
    assert plain.metrics["rollout/ep_rew_mean"] == scaled.metrics["rollout/ep_rew_mean"]
    ratio = scaled.metrics["critic/return_std"] / plain.metrics["critic/return_std"]
    assert ratio == pytest.approx(9.0, rel=0.2)
    river = flow(settings("real", input=InputConfig(reward_scale=9.0)), Ragged("real"))
    other = flow(settings("real"), Ragged("real"))
    torch.testing.assert_close(river.rollout.reward, 9.0 * other.rollout.reward, **EXACT)
    torch.testing.assert_close(river.rollout.pnl, other.rollout.pnl, **EXACT)


# --- statistics of observations and returns ---------------------------------------------------------------------------


def test_observation_moments_are_frozen_in_a_rollout_and_those_of_all_valid_rows_after_it():
    config, env = settings("real"), Ragged("real")
    agent = make_agent(config, env).double()
    carry, seen = begin(config, env, agent).carry, []
    for i in range(3):
        noise = rollout_noise(config, env, agent, i)
        rollout, after = collect(env, agent, carry, noise, config)
        for ours, theirs in zip(after.obs_moments[""], carry.obs_moments[""], strict=True):
            assert torch.equal(ours, theirs)
        known = carry.obs_moments[""]
        raw = rollout.obs[:T] * known.variance.sqrt() + known.mean
        inside = rollout.obs[:T].abs().amax() < 10  # nothing was clipped
        assert inside
        seen.append(raw[rollout.value_weight > 0].numpy())
        particles = torch.zeros(T, B, 9, dtype=torch.float64)
        carry = refresh(after, rollout, particles, agent, config)
        rows = np.concatenate(seen)
        np.testing.assert_allclose(carry.obs_moments[""].mean.numpy(), rows.mean(0), rtol=1e-10)
        np.testing.assert_allclose(carry.obs_moments[""].variance.numpy(), rows.var(0), rtol=1e-9)
        assert carry.obs_moments[""].weight[0] == len(rows)


# --- nothing breaks it ------------------------------------------------------------------------------------------------


class Spoiled(Ragged):
    """One broken number, or always the same one: which field, which environment, from which row on."""

    where = torch.tensor([3])

    def __init__(self, what: str, value: float, forever: bool = False, same_step: bool = False) -> None:
        super().__init__("real", same_step)
        self.what, self.value, self.forever, self.rows = what, value, forever, 0

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        self.rows += 1
        here = torch.isin(torch.arange(B), self.where) & torch.tensor(self.rows >= 14 if self.forever else self.rows == 14)
        obs = torch.where(here[:, None], self.value, step.obs)
        spoiled = {
            "reward": step._replace(reward=torch.where(here, self.value, step.reward)),
            "pnl": step._replace(pnl=torch.where(here, self.value, step.reward)),
            "obs": step._replace(obs=obs),
        }[self.what]
        return after, spoiled


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["reward", "pnl", "obs"])
def test_a_broken_number_is_named_and_training_goes_on(what, value, forever, same_step):
    env = Spoiled(what, value, forever, same_step)
    reports = list(itertools.islice(train(settings("real"), env), 4))
    named = [any(f"{what} was not finite in environments [3]" in words for words in one.findings) for one in reports]
    assert named == [False, True, forever, forever]
    for report in reports:
        assert all(p.isfinite().all() for p in report.agent.parameters())
        assert report.metrics["optim/void_steps"] == 0
        assert math.isfinite(report.metrics["train/loss"])
        assert all(part.isfinite().all() for part in report.carry.obs_moments[""])


class AllSpoiled(Spoiled):
    """All environments break."""

    where = torch.arange(B)


class Final(Ragged):
    """Every truncated episode ends in an observation that is not a number."""

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        bad = torch.where(step.truncated[:, None], math.nan, step.obs if step.final_obs is None else step.final_obs)
        return after, step._replace(final_obs=bad) if self.same_step else step._replace(obs=bad)


@pytest.mark.parametrize("same_step", [False, True])
def test_a_row_cut_off_at_a_broken_observation_weighs_nothing(same_step):
    """Its value would be bootstrapped from zeros."""
    config = settings("real")
    river = flow(config, Final("real", same_step))
    cut = river.rollout.truncated
    assert cut.sum() > 3
    assert (river.rollout.value_weight[cut] == 0).all()
    assert river.rollout.not_finite[..., 2][cut].all()
    assert river.rollout.episode_return[cut].isnan().all()
    others = river.rollout.valid & ~cut
    assert (river.rollout.value_weight[others] == 1).all()
    assert river.rollout.critics.isfinite().all()


def test_a_broken_loss_stops_training_with_the_last_good_weights():
    config = settings("real", optim=OptimConfig(patience=5))
    env = Ragged("real")
    agent = make_agent(config, env)
    calls = itertools.count()

    def breaks(agent, rows, knobs):
        return torch.tensor(math.nan if next(calls) >= 6 else 0.0)  # the whole first iteration is good

    reports = train(config, env, agent, [breaks])
    next(reports)
    good = {name: p.clone() for name, p in agent.named_parameters()}
    with pytest.raises(TrainingError, match=r"5 optimizer steps in a row changed nothing, first because of loss term 0"):
        next(reports)
    torch.testing.assert_close(dict(agent.named_parameters()), good, rtol=0, atol=0)


class Weighty(Ragged):
    """A weight that is no number, in the third row of environment 1."""

    rows = 0

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        self.rows += 1
        here = (torch.arange(B) == 1) & torch.tensor(self.rows == 3)
        return after, step._replace(policy_weight=torch.where(here, math.nan, 1.0).double())


def test_a_void_step_says_what_was_wrong_with_the_batch():
    config = settings("real", optim=OptimConfig(patience=100))
    env = Weighty("real")
    agent = make_agent(config, env)
    before = {name: p.clone() for name, p in agent.named_parameters()}
    first, second = itertools.islice(train(config, env, agent), 2)
    (words,) = (one for one in first.findings if "optimizer steps changed nothing" in one)
    assert "policy_weight has 1 non-finite entry of 55, the first is nan at [2, 1]" in words
    assert first.metrics["optim/void_steps"] > 0
    assert second.metrics["optim/void_steps"] == 0
    assert all(p.isfinite().all() for p in agent.parameters())
    assert any((p != before[name]).any() for name, p in agent.named_parameters())


def test_an_agent_whose_weights_are_broken_is_refused_by_name():
    config, env = settings("real"), Ragged("real")
    agent = make_agent(config, env)
    with torch.no_grad():
        agent.policy.mean.weight[1, 2] = math.inf
    with pytest.raises(InputError, match=r"policy.mean.weight has 1 non-finite entry of 10, the first is inf at \[1, 2\]"):
        next(train(config, env, agent))


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_when_no_row_can_be_learned_from_training_stops_with_its_weights(what):
    config, env = settings("real", optim=OptimConfig(patience=3)), AllSpoiled(what, math.nan, forever=True)
    agent, blind = make_agent(config, env), []
    reports = train(config, env, agent)
    with pytest.raises(TrainingError, match="3 rollouts in a row held hardly a row to learn from"):
        blind.extend(report.control.blind for report in reports)
    assert blind == [0, 0, 1, 2]
    assert all(p.isfinite().all() for p in agent.parameters())


def test_void_steps_in_a_row_are_counted_over_iterations():
    config = settings("real", optim=OptimConfig(patience=10))
    reports = train(config, Ragged("real"), loss_terms=[broken_loss])
    assert next(reports).control.void_steps == 6
    with pytest.raises(TrainingError, match="10 optimizer steps"):
        next(reports)


def test_a_stop_at_the_very_first_step_is_reported_and_steered_by():
    """The weights move behind the update's back, at the end of the rollout: its first batch is already too far."""
    config = configured("real", {"kl.target": 1e-9, "kl.epoch_decay": 0.5})
    env = Ragged("real")
    agent, rows = make_agent(config, env), itertools.count(1)
    step = env.step

    def step_and_disturb(*inputs):
        if next(rows) % T == 0:
            disturb(agent, 0.1)
        return step(*inputs)

    env.step = step_and_disturb
    first, second = itertools.islice(train(config, env, agent), 2)
    for report, factor in ((first, 0.5), (second, 0.5)):
        assert report.metrics["optim/steps"] == report.metrics["optim/void_steps"] == 0
        assert report.metrics["train/approx_kl"] > 1.5e-9
        assert report.control.epoch_factor == factor


@pytest.mark.parametrize("action", ["real", "tanh", "choices"])
def test_a_float64_agent_trains_in_float64(action):
    env, config = Ragged(action), settings(action, net={"dropout": 0.2})
    agent = make_agent(config, env).double()
    report = next(train(config, env, agent))
    assert {p.dtype for p in report.agent.parameters()} == {torch.float64}
    assert math.isfinite(report.metrics["train/loss"])


def test_held_exploration_trains_in_float64_too():
    env, config = Ragged("real"), settings("real", net={"gsde": True})
    report = next(train(config, env, make_agent(config, env).double()))
    assert math.isfinite(report.metrics["train/loss"])


def test_hooks_are_told_of_each_rollout_before_anything_is_learned_and_set_the_knobs():
    config, env = settings("real", total_timesteps=10**9), Ragged("real")
    agent, told = make_agent(config, env), []

    def collected(rollout, carry):
        told.append((rollout.valid.sum(), carry.iteration, {name: p.clone() for name, p in agent.named_parameters()}))

    hooks = Hooks(Schedules(learning_rate=lambda left: 0.003 if left == 1 else 0.0), collected)
    before = {name: p.clone() for name, p in agent.named_parameters()}
    first, second = itertools.islice(train(config, env, agent, hooks=hooks), 2)
    assert [carry for _, carry, _ in told] == [1, 2]
    assert told[0][0] == first.env_steps == second.env_steps - told[1][0]
    torch.testing.assert_close(told[0][2], before, rtol=0, atol=0)
    assert any(not torch.equal(told[1][2][name], p) for name, p in before.items())
    assert [one.metrics["train/learning_rate"] for one in (first, second)] == [0.003, 0.0]


def test_a_loss_term_moves_the_weights():
    def pull(agent, rows, knobs):
        return 100 * sum(p.square().sum() for p in agent.policy.parameters())

    plain, pulled = (run(settings("real"), terms=terms)[-1] for terms in ((), (pull,)))
    assert plain["policy.mean.weight"].norm() > 1.1 * pulled["policy.mean.weight"].norm()


CLIPS = ("off", "mean_only", "mean_and_variance", "per_quantile")
LAWS = ({"kind": "scalar"}, {}, {"sorting": True}, {"noncrossing": True}, {"kind": "categorical", "atoms": None})


@pytest.mark.parametrize("trunks", ["shared", "actor_critic", "each"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: "-".join(map(str, law.values())) or "quantile")
@pytest.mark.parametrize("clip", CLIPS)
def test_every_critic_trains_on_ragged_episodes_of_both_sources(clip, law, trunks):
    """Two iterations, for in the first nothing was said before: every weight of every critic moves, and stays finite."""
    for twin, same_step in itertools.product((False, True), (False, True)):
        config = settings("real", {"clip": clip, "clip_radius": 1e-4, "twin": twin} | law, net={"trunks": trunks})
        env = Ragged("real", same_step)
        agent = make_agent(config, env)
        before = {name: p.clone() for name, p in agent.named_parameters()}
        *_, report = itertools.islice(train(config, env, agent), 2)
        for name, parameter in agent.named_parameters():
            assert parameter.isfinite().all()
            assert not torch.equal(parameter, before[name]), name
        figures = report.metrics
        assert figures["optim/void_steps"] == 0
        assert figures["critic/loss_clipped"] <= figures["train/value_loss"] + 1e-6
        assert figures["critic/loss_unclipped"] <= figures["train/value_loss"] + 1e-6
        assert (figures["critic/clip_active"] > 0) == (clip != "off")
        assert math.isfinite(figures["critic/cvar_realised"])
        assert report.findings == ()


def test_a_critic_that_died_and_twins_that_parted_are_named():
    """By the rules of `monitor.looks`, from what a run logs."""
    nothing = looks.Past({}, ())
    config, env = settings("real", net={"activation": "relu"}), Ragged("real")
    agent = make_agent(config, env)
    with torch.no_grad():  # a bias so far below that no unit ever fires
        agent.critics[1][0].bias.fill_(-1e4)
    agent.values.heads[1].bias.requires_grad_(False)
    metrics = next(train(config, env, agent)).metrics
    assert looks.dead_critic(metrics, nothing) == "the gradient norm of critic 1 is 0"
    config = settings("real", {"twin_reduce": "min"})
    agent = make_agent(config, env)
    with torch.no_grad():  # targets follow the lower critic: under the mean both would be wrong alike
        agent.values.heads[1].bias += 1e4
    metrics = next(train(config, Ragged("real"), agent)).metrics
    assert "more than 100 times apart" in looks.twins(metrics, nothing)
    sound = next(train(settings("real"), Ragged("real"))).metrics
    assert looks.dead_critic(sound, nothing) == looks.twins(sound, nothing) == ""
