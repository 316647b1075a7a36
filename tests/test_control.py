"""Schedules, and the controllers that answer the last iteration, against numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from quantail.config import CloneConfig, Config, CriticConfig, EntropyConfig, KlConfig, OptimConfig, PpoConfig, ScheduleConfig
from quantail.control import (
    Control,
    Schedules,
    clip_range,
    clone_coef,
    entropy_coef,
    epochs,
    knobs,
    scheduled,
    settled,
    slope,
    start_control,
    steer,
    tally,
    tally_metrics,
)
from quantail.errors import ConfigError

CPU = torch.device("cpu")


def metrics(entropy=1.0, explained=0.5, kl=0.01):
    return {"policy/entropy_mean": entropy, "train/explained_variance": explained, "train/approx_kl": kl}


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "floor", "expected"),
    [
        ("constant", 0.0, [8.0, 8.0, 8.0, 8.0]),
        ("linear", 0.0, [8.0, 6.0, 4.0, 0.0]),
        ("linear", 5.0, [8.0, 6.0, 5.0, 5.0]),
        ("cosine", 0.0, [8.0, 4 + 4 * math.sqrt(0.5), 4.0, 0.0]),
        ("cosine", 1.0, [8.0, 4 + 4 * math.sqrt(0.5), 4.0, 1.0]),
        ("linear", 9.0, [8.0, 8.0, 8.0, 8.0]),  # a floor above the start does not lift it
    ],
)
def test_schedules_fall_to_their_floor(kind, floor, expected):
    found = [scheduled(8.0, ScheduleConfig(kind, floor), done) for done in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_learning_rate_follows_the_steps_seen_and_ends_at_the_floor():
    config = Config(total_timesteps=1000, optim=OptimConfig(learning_rate=0.1, schedule=ScheduleConfig("linear", 0.02)))
    rates = [float(knobs(start_control(config), 7, steps, config, CPU).learning_rate) for steps in (0, 300, 1000, 5000)]
    assert rates == pytest.approx([0.1, 0.07, 0.02, 0.02])


def test_a_schedule_from_outside_is_asked_for_what_is_left_and_stands_above_the_config():
    optim = OptimConfig(learning_rate=0.1, schedule=ScheduleConfig("linear"))
    config = Config(total_timesteps=1000, optim=optim, ppo=PpoConfig(clip_range=0.2, clip_start=0.4, clip_warmup=9))
    given = Schedules(lambda left: 3 * left**2, lambda left: 0.1 + left / 10)
    for steps, left in ((0, 1.0), (250, 0.75), (1000, 0.0), (5000, 0.0)):
        found = knobs(start_control(config), 2, steps, config, CPU, given)
        assert float(found.learning_rate) == pytest.approx(3 * left**2, abs=1e-12)
        assert float(found.clip) == pytest.approx(0.1 + left / 10, abs=1e-12)
    half = knobs(start_control(config), 3, 250, config, CPU, Schedules(clip_range=lambda left: 0.5))
    assert float(half.learning_rate) == pytest.approx(0.075)
    assert float(half.clip) == 0.5


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_schedule_that_gives_nonsense_is_refused_by_name(value):
    config = Config(total_timesteps=1000)
    with pytest.raises(ConfigError, match=r"clip_range at 0\.75 of training left is"):
        knobs(start_control(config), 0, 250, config, CPU, Schedules(clip_range=lambda left: value))


def test_values_are_clipped_after_the_warm_up_and_where_the_critic_explains_enough():
    def gate(critic, iteration, explained=math.nan):
        config = Config(critic=CriticConfig(**critic))
        return float(knobs(Control(explained=explained), iteration, 0, config, torch.device("cpu")).value_clip)

    assert [gate({}, i) for i in range(3)] == [0, 0, 0]
    assert [gate({"clip": "mean_only"}, i) for i in range(3)] == [1, 1, 1]
    assert [gate({"clip": "mean_only", "clip_warmup": 2}, i) for i in range(4)] == [0, 0, 1, 1]
    strict = {"clip": "per_quantile", "clip_explained": 0.3}
    assert [gate(strict, 5, explained) for explained in (math.nan, -1.0, 0.29, 0.3, 0.9)] == [0, 0, 0, 1, 1]
    metrics = {"policy/entropy_mean": 1.0, "train/explained_variance": 0.25, "train/approx_kl": 0.0}
    assert steer(Control(), 0, metrics, False, Config()).explained == 0.25


def test_the_clip_range_warms_up_by_iterations():
    config = Config(ppo=PpoConfig(clip_range=0.2, clip_start=0.4, clip_warmup=4))
    assert [clip_range(i, config) for i in range(6)] == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2, 0.2])
    assert clip_range(0, Config(ppo=PpoConfig(clip_range=0.3))) == 0.3


def test_cloning_holds_then_falls_by_environment_steps():
    config = CloneConfig(coef=1.0, final=0.2, warmup_steps=100, decay_steps=400)
    found = [clone_coef(steps, config) for steps in (0, 100, 200, 300, 500, 9000)]
    assert found == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.2, 0.2])
    assert clone_coef(9000, CloneConfig(coef=0.4, final=0.1)) == 0.4


def test_knobs_are_scalars_on_the_device_in_the_order_of_their_names():
    config = Config(entropy=EntropyConfig(coef=0.3), clone=CloneConfig(coef=0.7), kl=KlConfig(penalty=0.9))
    found = knobs(start_control(config), 0, 0, config, CPU)
    assert [float(x) for x in found] == pytest.approx([3e-4, 0.2, 0.3, 0.7, 0.9, 0.0])
    assert all(x.shape == () for x in found)


# --- entropy ----------------------------------------------------------------------------------------------------------


def test_the_entropy_coefficient_falls_from_the_start_without_a_plateau():
    config = EntropyConfig(coef=0.1, final=0.02, decay_iterations=4)
    control = start_control(Config(entropy=config))
    assert [entropy_coef(control, i, config) for i in range(6)] == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02])


def test_the_floor_holds_and_at_the_floor_nothing_decays():
    config = EntropyConfig(coef=0.1, final=0.0, floor=0.05, decay_iterations=4)
    control = start_control(Config(entropy=config))
    assert [entropy_coef(control, i, config) for i in range(5)] == pytest.approx([0.1, 0.075, 0.05, 0.05, 0.05])
    there = replace(config, coef=0.05)
    assert {entropy_coef(control, i, there) for i in range(9)} == {0.05}


def test_without_a_final_value_nothing_decays():
    config = EntropyConfig(coef=0.1)
    assert entropy_coef(start_control(Config(entropy=config)), 10_000, config) == 0.1


def test_the_decay_starts_after_the_plateau_and_not_before():
    config = Config(entropy=EntropyConfig(coef=0.1, final=0.0, decay_iterations=2, plateau_window=3, plateau_tolerance=0.05))
    control, found = start_control(config), []
    for i, entropy in enumerate((3.0, 2.0, 1.0, 0.9, 0.92, 0.5, 0.1)):
        found.append(entropy_coef(control, i, config.entropy))
        control = steer(control, i, metrics(entropy), False, config)
    # Slopes over three: -1, -.55, -.04 after iteration 4, so the decay begins at 5 and goes on whatever follows.
    assert control.decay_start == 5
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05])
    assert control.entropies == (0.92, 0.5, 0.1)


def test_a_window_that_is_not_full_or_rises_has_not_settled():
    config = EntropyConfig(plateau_window=3, plateau_tolerance=0.1)
    assert not settled((1.0, 1.0), config)
    assert settled((1.0, 1.0, 1.0), config)
    assert not settled((1.0, 1.2, 1.4), config)
    assert not settled((1.4, 1.2, 1.0), config)


def test_an_iteration_without_an_entropy_leaves_no_mark():
    config = Config(entropy=EntropyConfig(plateau_window=3))
    control = steer(Control(entropies=(1.0, 2.0), decay_start=None), 0, metrics(math.nan), False, config)
    assert control.entropies == (1.0, 2.0)
    assert control.decay_start is None


def test_the_slope_is_that_of_least_squares():
    values = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0)
    assert slope(values) == pytest.approx(np.polyfit(np.arange(7), values, 1)[0], rel=1e-12)
    assert slope((2.0,)) == slope(()) == 0.0


def test_a_lost_critic_boosts_the_coefficient_up_to_the_cap():
    config = Config(entropy=EntropyConfig(coef=0.1, boost_factor=2.0, boost_patience=2, boost_cap=5.0))
    control, found = start_control(config), []
    for i, explained in enumerate((-0.1, -0.1, -0.1, -0.1, -0.1, -0.1, 0.0, -0.1)):
        control = steer(control, i, metrics(explained=explained), False, config)
        found.append(entropy_coef(control, i, config.entropy))
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.5, 0.5, 0.1, 0.1])


def test_the_boost_survives_a_thousand_lost_iterations():
    config = EntropyConfig(coef=0.1, final=0.0, decay_iterations=10, boost_factor=1.5)
    lost = Control(lost=100_000, decay_start=0)
    assert entropy_coef(lost, 5, config) == pytest.approx(0.5)
    assert entropy_coef(lost, 10, config) == 0.0  # nothing times anything
    assert entropy_coef(lost, 5, EntropyConfig(coef=0.0, final=0.1, decay_iterations=10, boost_factor=1.5)) == pytest.approx(
        0.05
    )


def test_an_unknown_explained_variance_is_not_a_lost_critic():
    config = Config()
    control = steer(Control(lost=3), 0, metrics(explained=math.nan), False, config)
    assert control.lost == 0


# --- KL ---------------------------------------------------------------------------------------------------------------


def test_epochs_shrink_when_stopped_and_recover_when_quiet():
    config = Config(ppo=PpoConfig(n_epochs=10), kl=KlConfig(target=0.01, epoch_decay=0.5))
    control, found = start_control(config), []
    for stopped in (True, True, True, True, True, False, False, False, False, False):
        found.append(epochs(control, config))
        control = steer(control, 0, metrics(), stopped, config)
    assert found == [10, 5, 2, 1, 1, 1, 2, 4, 8, 10]
    assert control.epoch_factor == 1.0
    assert epochs(control._replace(epoch_factor=1 / 40), config) == 1  # as a run of 40 epochs left it, gone on with 10


def test_without_a_decay_epochs_stay():
    config = Config(ppo=PpoConfig(n_epochs=7), kl=KlConfig(target=0.01))
    assert epochs(steer(start_control(config), 0, metrics(), True, config), config) == 7


def run_penalty(kls, **settings):
    config = Config(kl=KlConfig(target=0.1, **settings))
    control, found = start_control(config), [start_control(config).kl_penalty]
    for i, kl in enumerate(kls):
        control = steer(control, i, metrics(kl=kl), False, config)
        found.append(control.kl_penalty)
    return found


def test_the_penalty_answers_in_proportion():
    assert run_penalty([0.2, 0.1, 0.05], penalty=0.3, penalty_kp=2.0) == pytest.approx([0.3, 0.5, 0.3, 0.2])


def test_the_penalty_adds_up_the_error():
    assert run_penalty([0.2, 0.2, 0.1, 0.0], penalty_ki=2.0) == pytest.approx([0.0, 0.2, 0.4, 0.4, 0.2])


def test_the_penalty_answers_the_change_but_not_the_first_error():
    assert run_penalty([0.3, 0.4, 0.4, 0.2], penalty=0.5, penalty_kd=1.0) == pytest.approx([0.5, 0.5, 0.6, 0.5, 0.3])


def test_the_penalty_stays_between_its_bounds_and_does_not_wind_up():
    high = run_penalty([10.0] * 50 + [0.0], penalty_ki=0.1, penalty_max=0.5)
    assert max(high) == 0.5
    assert high[-1] == pytest.approx(0.49)  # it lets go at once
    low = run_penalty([0.0] * 50 + [0.2], penalty_ki=0.1, penalty=0.01)
    assert min(low) == 0.0
    assert low[-1] == pytest.approx(0.01)


def test_an_unknown_kl_or_no_gain_leaves_the_penalty():
    assert run_penalty([math.nan, math.inf], penalty=0.3, penalty_kp=2.0) == [0.3, 0.3, 0.3]
    assert run_penalty([5.0], penalty=0.3) == [0.3, 0.3]


# --- counts -----------------------------------------------------------------------------------------------------------


def test_episodes_are_averaged_over_the_last_hundred():
    control = Control()
    assert "rollout/ep_rew_mean" not in tally_metrics(control)
    for i in range(30):
        control = tally(control, [[math.nan] * 3, *((10.0 * i + j, float(j), math.nan) for j in range(5))], epochs=2)
    found = tally_metrics(control)
    kept = [10.0 * i + j for i in range(30) for j in range(5)][-100:]
    assert found["rollout/ep_rew_mean"] == pytest.approx(np.mean(kept))
    assert found["rollout/ep_len_mean"] == pytest.approx(2.0)
    assert found["train/n_updates"] == 60
    assert len(control.episodes) == 100


def test_success_is_a_rate_of_the_last_hundred_that_tell():
    control = tally(Control(), [(1.0, 2.0, math.nan)], epochs=1)
    assert "rollout/success_rate" not in tally_metrics(control)
    told = [float(i % 7 == 0) for i in range(240)]
    for i in range(0, 240, 3):
        control = tally(control, [(1.0, 2.0, success) for success in told[i : i + 3]], 1)
    assert tally_metrics(control)["rollout/success_rate"] == pytest.approx(np.mean(told[-100:]))


def test_the_entropys_slope_is_reported_over_ten_iterations():
    config, control = Config(), start_control(Config())
    for i, entropy in enumerate(values := [float(x) for x in np.random.default_rng(0).normal(size=14)]):
        control = steer(control, i, metrics(entropy), False, config)
    assert tally_metrics(control)["policy/entropy_slope"] == pytest.approx(np.polyfit(np.arange(10), values[-10:], 1)[0])
