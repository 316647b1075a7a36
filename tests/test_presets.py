"""Presets are settings that exist, in environments that can be made, and those of the benchmark that measured them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import learning
from quantail import presets
from quantail.config import Config, EnvConfig
from quantail.errors import ConfigError, InputError
from quantail.loop import train
from quantail.registry import make

MARKETS = [name for name, made in presets.PRESETS.items() if made().env.id == "quantail/Market"]
RECORDED = ("daily", "hourly")  # they need bars of the user's own


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name not in MARKETS])
def test_a_preset_can_be_made_and_is_what_was_measured(name):
    config = presets.preset(name)
    case = learning.CASES[name.replace("_", "-")]
    assert dataclasses.replace(config, env=EnvConfig()) == case.config
    ours, theirs = make(config.env), case.env(case.copies)
    assert type(ours) is type(theirs)
    assert {key: value for key, value in vars(ours).items() if isinstance(value, int | float | str)} == {
        key: value for key, value in vars(theirs).items() if isinstance(value, int | float | str)
    }


@pytest.mark.parametrize("name", MARKETS)
def test_a_preset_of_a_market_takes_a_step(name, tmp_path):
    config = dataclasses.replace(presets.preset(name), total_timesteps=1)
    if name in RECORDED:
        with pytest.raises(InputError, match=r"prices\.csv"):
            make(config.env)
        options = {**config.env.options, "data": str(bars_in(tmp_path / "prices.csv", 2000))}
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, options=options))
    report = next(iter(train(config, make(config.env, num_envs=4, risk=config.risk))))
    assert report.env_steps > 4 * (config.ppo.n_steps - 3)
    assert not report.findings


def bars_in(path, count):
    """Bars of a random walk as a file of days."""
    close = 100 * np.exp(0.01 * np.random.default_rng(5).standard_normal(count).cumsum())
    opened = np.append(100.0, close[:-1])
    days = pd.date_range("2010-01-01", periods=count)
    prices = {"open": opened, "high": np.maximum(opened, close), "low": np.minimum(opened, close), "close": close}
    pd.DataFrame({"time": days, **prices, "volume": 1e6}).to_csv(path, index=False)
    return path


def test_names_take_hyphens_and_unknown_ones_a_hint():
    assert presets.preset("cartpole-positions") == presets.cartpole_positions()
    with pytest.raises(ConfigError, match="did you mean cartpole"):
        presets.preset("cartpol")
    assert Config.from_dict(presets.hidden_regime().to_dict()) == presets.hidden_regime()
