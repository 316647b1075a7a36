import subprocess
import sys
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from market.scenes import actions_of, bars_of, features_of
from quantail.config import EnvConfig
from quantail.envs.gymnasium import ToEnv, make_env
from quantail.errors import ConfigError, InputError
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.series import Bars
from quantail.market.single import SingleMarket
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded, Synthetic
from quantail.registry import make

NAME = "quantail.market.ids:quantail/Market-v0"
SHORT = Episode(length=9)
CLOSED = Recorded(bars_of(), features_of(bars_of()), (torch.arange(40) % 5 != 0)[:, None])
CASES = {
    "grid": ({"source": bars_of(), "features": features_of(bars_of())}, {}),
    "closed": ({"source": CLOSED}, {"rules": Rules(cooldown=2)}),
    "margin": (
        {"source": bars_of(1, sd=0.2), "features": features_of(bars_of(1))},
        {"rules": Rules(actions="long_short", leverage=2.0, maintenance=0.3, sizing="exact"), "reward": Reward("sharpe")},
    ),
    "simplex": ({"source": bars_of(2), "features": features_of(bars_of(2))}, {"rules": Rules(actions="simplex")}),
    "three": (
        {"source": bars_of(3, assets=3, gaps=0.2), "features": features_of(bars_of(3, assets=3))},
        {"costs": Costs(borrow_per_year=0.3, credit_per_year=0.1, funding_bps=2.0), "reward": Reward("excess")},
    ),
    "three shares": (
        {"source": bars_of(3, assets=3, volume=True), "features": features_of(bars_of(3, assets=3))},
        {"rules": Rules(actions="simplex", fill="next_close"), "costs": Costs(impact_y=1.0), "reward": Reward("downside")},
    ),
    "tanh": (
        {"source": bars_of(4, assets=2), "features": features_of(bars_of(4, assets=2))},
        {"rules": Rules(actions="tanh", cooldown=1, maintenance=0.2)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_plain_numbers_live_through_the_same_episodes_as_tensors(name):
    """Same seed, same actions: the observation, reward, flags and figures of `ToEnv(MarketEnv)`, to rounding."""
    source, options = CASES[name]
    options = {**source, **options, "episode": Episode(length=9, random_position=True), "dtype": torch.float64}
    plain, tensors = SingleMarket(**options), ToEnv(MarketEnv(1, **options))
    ended = 0
    for seed in range(4):
        (seen, told), (truth, figures) = plain.reset(seed=seed), tensors.reset(seed=seed)
        np.testing.assert_allclose(seen, truth, rtol=1e-12, atol=1e-13)
        assert sorted(told) == sorted(figures)
        for action in actions_of(tensors.env, 9, seed)[:, 0].numpy():
            row, other = plain.step(action), tensors.step(action)
            np.testing.assert_allclose(row[0], other[0], rtol=1e-11, atol=1e-12)
            assert row[1] == pytest.approx(other[1], rel=1e-9, abs=1e-11)
            assert row[2:4] == other[2:4]
            assert sorted(row[4]) == sorted(other[4])
            for key, value in other[4].items():
                np.testing.assert_allclose(row[4][key], value, rtol=1e-10, atol=1e-12, err_msg=key)
            if row[2] or row[3]:
                ended += 1
                break
    assert ended == 4


RUINS = {  # fill, price at the open and at the close, fee in bp, equity at the end
    "a gap": ("next_open", 330.0, 330.0, 5.0, 99_950 - 230_000 - 165),
    "a gap to nothing": ("next_open", 200.0, 200.0, 0.0, 0.0),
    "a bar to nothing": ("next_open", 100.0, 200.0, 0.0, 0.0),
    "a bar before the trade": ("next_close", 100.0, 300.0, 5.0, 99_950 - 200_000 - 150),
    "a bar to nothing before the trade": ("next_close", 100.0, 200.0, 0.0, 0.0),
}


@pytest.mark.parametrize("assets", [1, 2])
@pytest.mark.parametrize("name", RUINS)
def test_a_ruin_is_the_floor_and_every_figure_is_finite(name, assets):
    """100,000 short at 100, by hand: the fee of 50, the loss, the fee of closing; beside an asset that stands still."""
    fill, opened, closed, fee, equity = RUINS[name]
    price = torch.full((4, assets), 100.0, dtype=torch.float64)
    begin, end = price.clone(), price.clone()
    begin[2, 0], begin[3, 0], end[2:, 0] = opened, closed, closed
    bars = replace(bars_of(0, bars=4, assets=assets), open=begin, high=begin.maximum(end), low=begin.minimum(end), close=end)
    options = {
        "source": bars,
        "features": features_of(bars, warmup=0),
        "rules": Rules(fill),
        "costs": Costs(fee, 0.0),
        "episode": Episode(length=3, starts="fixed"),
    }
    short = 0 if assets == 1 else np.array([0, 3])
    for env in (SingleMarket(**options), ToEnv(MarketEnv(1, **options))):
        env.reset(seed=0)
        env.step(short)
        obs, reward, terminated, truncated, infos = env.step(short)
        assert (reward, terminated, truncated) == (-10.0, True, False)
        assert infos["equity"] == pytest.approx(equity, abs=1e-6)
        assert {name: infos[name] for name in ("fee", "spread", "turnover", "leverage")} == dict.fromkeys(
            ("fee", "spread", "turnover", "leverage"), 0.0
        )
        assert all(np.isfinite(value).all() for value in infos.values())
        assert infos["gap"] * infos["cost"] * infos["intrabar"] * (1e5 - fee * 10) == pytest.approx(equity, abs=1e-6)
        assert np.isfinite(obs).all()
        assert (obs[2 * assets : 3 * assets] == 0).all()  # weights, behind two features of each


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"source": "sp500", "rules": Rules(actions="long_short"), "costs": Costs(slippage_bps=3.0)},
        {"source": Synthetic(MARKETS["signal"](), assets=2, paths=20)},
    ],
)
def test_gymnasium_makes_it_and_finds_nothing_wrong(options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(-infinity|infinity).*")
        env = gymnasium.make(NAME, **options)
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=3)
        assert np.isfinite(env.step(env.action_space.sample())[0]).all()


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import gymnasium, quantail", "quantail/Market-v0"),
        ("import quantail, gymnasium", "quantail.market.ids:quantail/Market-v0"),
        ("import gymnasium", "quantail.market.ids:quantail/Market-v0"),
        ("import quantail, gymnasium, quantail.market.ids", "quantail/Market-v0"),
        ("import quantail.market.ids, gymnasium", "quantail/Market-v0"),
    ],
)
def test_gymnasium_knows_it_and_loads_nothing_before_it_is_made(imports, name):
    program = f"""
{imports}
import sys
print("torch" in sys.modules)
print(gymnasium.make("{name}", source="gbm").reset(seed=0)[0].shape)
"""
    command = [sys.executable, "-W", "error::UserWarning", "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.splitlines() == ["False", "(8,)"], answer.stderr


def test_gymnasium_makes_a_vector_of_tensors():
    env = gymnasium.make_vec(NAME, num_envs=3, vectorization_mode="vector_entry_point", source="gbm")
    obs, _ = env.reset(seed=1)
    assert obs.shape == (3, 8)
    assert env.step(np.array([0, 2, 3]))[1].shape == (3,)


def test_a_seed_brings_everything_back_also_after_new_paths():
    """Twelve paths of one start each: after twelve episodes come fresh ones, and a seed goes back to the first."""
    env = SingleMarket(Synthetic(MARKETS["gbm"](), paths=3, bars=71, seed=5), episode=Episode(length=10))
    first = [env.reset(seed=7)[0], *(env.reset()[0] for _ in range(8))]
    again = [env.reset(seed=7)[0], *(env.reset()[0] for _ in range(8))]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({obs[:4].tobytes() for obs in first}) > 3  # more than three paths have


def test_what_is_no_action_is_refused():
    env = SingleMarket("gbm")
    with pytest.raises(InputError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    for action in (4, -1, 1.5, None, "x", np.nan, np.array([2])):
        with pytest.raises(InputError, match="from 0 to 3"):
            env.step(action)
    env = SingleMarket(Synthetic(MARKETS["gbm"](), paths=3, bars=71, assets=2), episode=Episode(length=10))
    env.reset(seed=0)
    for several in ([0, 4], [0], None, [0.5, 1.0], [np.nan, 1.0]):
        with pytest.raises(InputError, match="2 indices from 0 to 3"):
            env.step(several)
    env = SingleMarket("gbm", rules=Rules(actions="tanh"))
    env.reset(seed=0)
    for numbers in (np.array([np.nan]), np.zeros(2), None, "x"):
        with pytest.raises(InputError, match="finite numbers"):
            env.step(numbers)


def test_it_is_one_of_the_environments_by_name():
    env = make(EnvConfig(id="quantail/Market", num_envs=6, options={"source": "bull_bear", "leverage": 2.0, "length": 50}))
    assert isinstance(env, MarketEnv)
    assert (env.num_envs, env.rules.levels, env.ground.longest) == (6, (-2.0, 0.0, 2.0), 50)
    with pytest.raises(ConfigError, match="did you mean source"):
        make(EnvConfig(id="quantail/Market", options={"sorce": "gbm"}))


def test_it_comes_back_in_through_gymnasium():
    """Our own single environment as a source of training: the road of any foreign one."""
    env = make_env(NAME, num_envs=2, pnl="pnl")
    state, obs = env.reset(torch.zeros(2, env.noise_dim))
    _, step = env.step(state, torch.tensor([0, 2]), torch.zeros(2, env.noise_dim))
    assert obs.shape == step.obs.shape == (2, 8)
    assert step.pnl is not None
    assert isinstance(CASES["grid"][0]["source"], Bars)
