"""Findings: each fires on a series made for it, on real runs that were broken on purpose, and never on a run that learns."""

import itertools
import math
import re
from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from architecture.rules import ROOT
from quantail.config import Config, OptimConfig
from quantail.envs.oracles import CartPole
from quantail.loop import make_agent, train
from quantail.monitor.health import LATELY, Health, as_text, examine, key_of, replay
from quantail.monitor.rules import GRAVITIES, RULES
from rivers import Ragged, settings

# What a run that is all right logs, iteration after iteration.
FINE = {
    "train/explained_variance": 0.4,
    "train/approx_kl": 0.01,
    "train/clip_fraction": 0.1,
    "train/learning_rate": 3e-4,
    "train/std": 0.8,
    "policy/entropy_mean": 0.6,
    "policy/action_top_share": 0.7,
    "policy/action_at_bound": 0.1,
    "policy/log_ratio_clamped": 0.0,
    "policy/advantage_normalised_std": 1.0,
    "optim/grad_norm": 0.4,
    "optim/grad_norm_clipped": 0.4,
    "optim/grad_norm/critic_0": 0.02,
    "optim/grad_norm/critic_1": 0.03,
    "optim/steps": 16.0,
    "optim/void_steps": 0.0,
    "critic/loss_0": 0.1,
    "critic/loss_1": 0.2,
    "critic/twin_gap": 0.1,
    "critic/outside_support": 0.001,
    "memory/full": 0.1,
    "norm/return_std": 2.0,
    "norm/obs_drift": 0.2,
    "health/not_finite_reward": 0.0,
    "health/not_finite_pnl": 0.0,
    "health/not_finite_obs": 0.0,
    "health/not_finite_info": 0.0,
    "rollout/ep_rew_mean": 3.0,
    "risk/tail_samples": 40.0,
    "risk/violation": -0.1,
    "risk/cvar": -1.0,
    "risk/outcome_std": 1.0,
}
DISCRETE = {"train/std": math.nan}
PATIENT = {name: rule.patience for name, rule in RULES.items()}

# For each rule that looks: what differs from FINE, how often it is seen before it is said.
CASES = [
    ("no step", {"optim/steps": 0.0, "optim/void_steps": 8.0}),
    ("broken input", {"health/not_finite_pnl": 1.0}),
    ("odd figures", {"health/not_finite_info": 2.0}),
    ("blind critic", {"train/explained_variance": -0.1}),
    ("wild critic", {"train/explained_variance": -7.0}),
    ("dead critic", {"optim/grad_norm/critic_1": 1e-9, "optim/grad_norm/critic_0": 1e-9}),
    ("dead critic", {"optim/grad_norm/critic_0": 0.0}),
    ("parted twins", {"optim/grad_norm/critic_0": 3.1}),
    ("parted twins", {"optim/grad_norm/critic_1": 1.9e-4}),
    ("parted twins", {"critic/loss_1": 10.1}),
    ("parted twins", {"critic/loss_0": 1.9e-3}),
    ("quarrelling twins", {"critic/twin_gap": 2.1}),
    ("no gradient", {"optim/grad_norm": 0.0, "optim/grad_norm_clipped": 0.0}),
    ("clipped away", {"optim/grad_norm": 51.0, "optim/grad_norm_clipped": 0.5}),
    ("no advantage", {"policy/advantage_normalised_std": 0.0}),
    ("runaway policy", {"train/approx_kl": 0.11}),
    ("clipped policy", {"train/clip_fraction": 0.51}),
    ("clamped ratios", {"policy/log_ratio_clamped": 0.011}),
    ("still policy", {"train/approx_kl": 1e-9}),
    ("entropy collapse", {"train/std": 0.07}),
    ("entropy collapse", {"policy/entropy_mean": 0.05} | DISCRETE),
    ("no exploration", {"train/std": 0.015}),
    ("no exploration", {"policy/entropy_mean": 0.011} | DISCRETE),
    ("one action", {"policy/action_top_share": 0.995}),
    ("at the bounds", {"policy/action_at_bound": 0.96}),
    ("drifting scale", {"norm/return_std": 21.0}),
    ("drifting scale", {"norm/return_std": 0.19}),
    ("drifting observations", {"norm/obs_drift": 3.1}),
    ("drifting observations", {"norm/obs_drift_prices": 4.0}),
    ("outgrown atoms", {"critic/outside_support": 0.06}),
    ("full memory", {"memory/full": 0.6}),
    ("few tail samples", {"risk/tail_samples": 9.0}),
    ("missed limit", {"risk/violation": 0.06}),
    ("no episode", {"rollout/ep_rew_mean": math.nan}),
]
# What the loop says by itself, and the rule it belongs to.
TOLD = {
    "reward was not finite in environments [0, 3]: zeroed, and they weigh nothing until their next start": "odd input",
    "3 optimizer steps changed nothing: the first tensor that is not finite is the surrogate loss": "void steps",
    "12 log-ratios were not finite: lower the learning rate, or look at the policy's deviation": "odd ratios",
    "no episode ended in 1000 rows of evaluation, so nothing was judged": "nothing judged",
    "3.1% of the log-ratios were clamped: the policy moves too far; set kl.target or fewer epochs": "clamped ratios",
}


def watch(*parts):
    """The health after (count, what differs from FINE) one after the other."""
    health, i = Health(), 0
    for count, changed in parts:
        for _ in range(count):
            health = examine(health, i, 100 * (i + 1), FINE | changed)
            i += 1
    return health


def names(findings):
    return {finding.name for finding in findings}


# --- each rule on a series made for it --------------------------------------------------------------------------------


def test_every_rule_is_tried():
    assert {name for name, _ in CASES} | set(TOLD.values()) == set(RULES)


def test_a_run_that_is_all_right_has_no_findings():
    for changed in ({}, DISCRETE, {"optim/grad_norm/critic_1": math.nan, "critic/loss_1": math.nan}):
        assert watch((80, changed)).findings == {}
    assert watch((80, dict.fromkeys(FINE, math.nan) | {"rollout/ep_rew_mean": 0.0})).findings == {}


@pytest.mark.parametrize(("name", "changed"), CASES)
def test_a_rule_fires_when_its_patience_is_over_and_not_before(name, changed):
    before = {key: value for key, value in changed.items() if math.isnan(value) and key in DISCRETE}
    patience = PATIENT[name]
    assert name not in names(watch((25, before), (patience - 1, changed)).now())
    finding = watch((25, before), (patience, changed)).findings[name]
    assert finding.since == 2600
    assert (finding.until, finding.iterations, finding.last) == (2500 + 100 * patience, patience, 24 + patience)
    assert finding.gravity in GRAVITIES
    assert finding.seen
    assert finding.means
    assert finding.advice


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("blind critic", {"train/explained_variance": -0.01}),  # returns that nobody can foresee
        ("parted twins", {"critic/loss_1": 9.9}),
        ("parted twins", {"optim/grad_norm/critic_0": 2.9}),
        ("dead critic", {"optim/grad_norm/critic_0": 1.1e-8, "optim/grad_norm/critic_1": 1.1e-8}),
        ("clipped away", {"optim/grad_norm": 49.0, "optim/grad_norm_clipped": 0.5}),
        ("still policy", {"train/approx_kl": 1e-9, "train/learning_rate": 1e-6}),  # its schedule has run out
        ("missed limit", {"risk/violation": 0.04}),
        ("clamped ratios", {"policy/log_ratio_clamped": 0.01}),
    ],
)
def test_a_rule_is_silent_short_of_its_limit(name, changed):
    assert name not in watch((25, {}), (60, changed)).findings


@pytest.mark.parametrize(
    ("name", "figure", "fast", "slow"),
    [
        ("entropy collapse", "policy/entropy_mean", 0.78, 0.81),  # to a tenth in 10 iterations is 0.794
        ("drifting scale", "norm/return_std", 1.13, 1.11),  # ten times in 20 is 1.122
    ],
)
def test_how_fast_something_moves_decides(name, figure, fast, slow):
    for factor, expected in ((fast, True), (slow, False)):
        health = Health()
        for i in range(60):
            health = examine(health, i, i, FINE | DISCRETE | {figure: 0.6 * factor**i})
        assert (name in health.findings) is expected


# --- counts -----------------------------------------------------------------------------------------------------------


def test_a_finding_is_there_once_with_its_count_and_its_end():
    bad = {"train/clip_fraction": 0.7}
    health = watch((10, {}), (8, bad), (1, {}), (4, bad), (1, {}), (6, bad), (LATELY - 1, {}))
    (finding,) = health.now()
    assert (finding.since, finding.until, finding.iterations) == (1100, 3000, 8 + 6)  # four in a row are too few
    over = watch((10, {}), (8, bad), (LATELY, {}))
    assert over.now() == []
    assert [one.name for one in over.before()] == ["clipped policy"]


def test_findings_come_gravest_first():
    health = watch((30, {"optim/grad_norm": 0.0, "health/not_finite_info": 1.0, "train/clip_fraction": 0.9}))
    assert [one.gravity for one in health.now()] == ["broken", "warning", "note"]
    assert health.broken()
    assert not watch((30, {"train/clip_fraction": 0.9})).broken()
    assert not watch((30, {"optim/grad_norm": 0.0}), (LATELY, {})).broken()


@pytest.mark.parametrize(("sentence", "name"), TOLD.items())
def test_what_the_loop_says_belongs_to_a_rule(sentence, name):
    assert key_of(sentence) == name
    health = examine(Health(), 0, 100, FINE, (sentence,))
    (finding,) = health.now()
    assert (finding.name, finding.seen, finding.iterations) == (name, sentence, 1)


def test_what_the_loop_says_and_a_rule_sees_counts_once():
    sentence, health = "3.1% of the log-ratios were clamped: ...", Health()
    for i in range(5):
        health = examine(health, i, i, FINE | {"policy/log_ratio_clamped": 0.031}, (sentence,))
    (finding,) = health.now()
    assert (finding.iterations, finding.seen) == (5, sentence)


def test_other_numbers_are_the_same_finding_and_other_words_are_not():
    health = Health()
    for i, sentence in enumerate(["odd 3.5 of [1, 2]", "odd -4e-05 of []", "even 12% of [7]"]):
        health = examine(health, i, 10 * i, FINE, (sentence,))
    odd, even = health.now()
    assert (odd.seen, odd.iterations, odd.since, odd.until, odd.name) == ("odd -4e-05 of []", 2, 0, 10, "")
    assert (even.seen, even.iterations) == ("even 12% of [7]", 1)


def test_replaying_the_log_gives_the_same_health():
    health, rows = Health(), []
    for i in range(40):
        figures = FINE | {"train/explained_variance": math.nan if i < 5 else -2.0, "optim/grad_norm": math.inf}
        health = examine(health, i, 7 * i, figures, ("odd 3",) if i % 2 else ())
        rows.append({"iteration": i, "env_steps": 7 * i, **figures, "findings": ["odd 3"] if i % 2 else []})
    rows = [{name: math.nan if value in (math.inf, -math.inf) else value for name, value in row.items()} for row in rows]
    assert replay(rows).findings == health.findings
    assert len(health.findings) == 3
    assert replay([]).findings == {}


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_text_says_what_since_when_and_what_to_do():
    health = watch((10, {}), (6, {"train/clip_fraction": 0.7}), (1, {"health/not_finite_info": 3.0}))
    text = as_text(health, width=70)
    assert text.splitlines()[0] == "17 iterations, 1,700 environment steps: 0 broken, 1 warning, 1 note"
    assert "warning: clipped policy: 70% of the rows are clipped (6 iterations," in text
    assert "since step 1,100, last at step 1,600)" in " ".join(text.split())
    assert "(once, at step 1,700)" in " ".join(text.split())
    assert "  try: lower optim.learning_rate" in text
    assert max(map(len, text.splitlines())) <= 70
    assert as_text(watch((3, {}))).endswith("3 iterations, 300 environment steps: nothing is wrong")
    assert "over:" in as_text(watch((6, {"train/clip_fraction": 0.7}), (20, {})))


def settings_of(config, before=""):
    for one in fields(config):
        value = getattr(config, one.name)
        yield from settings_of(value, f"{before}{one.name}.") if is_dataclass(value) else [before + one.name]


@pytest.mark.parametrize("name", RULES)
def test_advice_names_settings_and_figures_that_exist(name):
    known = set(settings_of(Config()))
    parts = {one.partition(".")[0] for one in known if "." in one}
    named = re.findall(r"\b([a-z_]+)\.([a-z_]+)", RULES[name].advice)
    unknown = [f"{part}.{field}" for part, field in named if f"{part}.{field}" not in known and part in {*parts, "config"}]
    assert unknown == []


# --- real runs --------------------------------------------------------------------------------------------------------


def train_and_watch(config, env, iterations, agent=None):
    health = Health()
    for report in itertools.islice(train(replace(config, total_timesteps=10**9), env, agent), iterations):
        health = examine(health, report.iteration, report.env_steps, report.metrics, report.findings)
    return health


def test_a_run_that_learns_has_no_findings():
    config = settings(
        "choice", net={"memory": "none", "actor_sizes": (16,), "critic_sizes": (16,)}, optim=OptimConfig(learning_rate=3e-3)
    )
    config = replace(
        config, ppo=replace(config.ppo, n_steps=64, batch_size=256, n_epochs=4, gamma=0.98), critic=Config().critic
    )
    health, returns = Health(), []
    for report in itertools.islice(train(replace(config, total_timesteps=10**9), CartPole(8)), 40):
        health = examine(health, report.iteration, report.env_steps, report.metrics, report.findings)
        returns.append(report.metrics["rollout/ep_rew_mean"])
    assert returns[-1] > 2 * returns[0]  # it does learn
    assert as_text(health).endswith("nothing is wrong")


def test_twins_are_seen_apart_in_a_real_run():
    config = settings("choice", {"normalize_returns": False})  # a scale that follows the worse twin would make up for it
    agent = make_agent(config, Ragged())
    with torch.no_grad():
        agent.values.heads[1].weight *= 1e5
    assert "parted twins" in train_and_watch(config, Ragged(), 4, agent).findings


def test_a_critic_that_no_gradient_reaches_is_seen_in_a_real_run():
    config = settings("choice")
    agent = make_agent(config, Ragged())
    for part in (agent.critics[1], agent.values.heads[1]):
        part.requires_grad_(False)
    health = train_and_watch(config, Ragged(), 4, agent)
    assert health.findings["dead critic"].seen == "the gradient norm of critic 1 is 0"
    assert "parted twins" in health.findings
    assert health.broken()


def test_a_learning_rate_far_too_high_is_seen_in_a_real_run():
    config = settings("real", optim=OptimConfig(learning_rate=0.3, max_grad_norm=None))
    assert "runaway policy" in train_and_watch(config, Ragged("real"), 6).findings


def test_an_agent_that_always_does_the_same_is_seen_in_a_real_run():
    config = settings("choice")
    agent = make_agent(config, Ragged())
    with torch.no_grad():
        agent.policy.logits.bias[1] += 30.0
    assert {"one action", "still policy"} <= set(train_and_watch(config, Ragged(), 12, agent).findings)


class Indifferent(Ragged):
    """Whatever is done is worth nothing."""

    def step(self, state, action, noise):
        state, step = super().step(state, action, noise)
        return state, step._replace(reward=torch.zeros_like(step.reward))


class Leaking(Ragged):
    """One environment whose reward is never a number."""

    def step(self, state, action, noise):
        state, step = super().step(state, action, noise)
        return state, step._replace(reward=torch.where(torch.arange(len(step.reward)) == 2, torch.nan, step.reward))


def test_rewards_that_are_never_numbers_are_seen_in_a_real_run():
    health = train_and_watch(settings("choice"), Leaking(), 12)
    assert {"broken input", "odd input"} <= names(health.now())
    assert health.findings["odd input"].iterations == 12
    assert health.broken()


def test_rewards_that_depend_on_nothing_are_seen_in_a_real_run():
    config = settings("choice", {"normalize_returns": False, "kind": "scalar"})
    agent = make_agent(config, Indifferent())
    with torch.no_grad():
        for head in agent.values.heads:
            head.weight.zero_()
            head.bias.zero_()
    found = train_and_watch(config, Indifferent(), 8, agent).findings
    assert {"no advantage", "no gradient"} <= set(found)


def test_the_page_lists_every_finding():
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([a-z ]+) \| (broken|warning|note) \| (\d+) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted((rule.name, rule.gravity, str(rule.patience)) for rule in RULES.values())
