"""Presets are settings that exist, in environments that can be made, and those of the benchmark that measured them."""

import dataclasses

import pytest

import learning
from quantail import presets
from quantail.config import Config, EnvConfig
from quantail.errors import ConfigError
from quantail.loop import train
from quantail.registry import make

MARKETS = [name for name, make in presets.PRESETS.items() if make().env.id == "quantail/Market"]


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
def test_a_preset_of_a_market_takes_a_step(name):
    config = presets.preset(name)
    short = dataclasses.replace(config, total_timesteps=1)
    report = next(iter(train(short, make(short.env, num_envs=4, risk=short.risk))))
    assert report.env_steps > 4 * (config.ppo.n_steps - 3)
    assert not report.findings


def test_names_take_hyphens_and_unknown_ones_a_hint():
    assert presets.preset("cartpole-positions") == presets.cartpole_positions()
    with pytest.raises(ConfigError, match="did you mean cartpole"):
        presets.preset("cartpol")
    assert Config.from_dict(presets.hidden_regime().to_dict()) == presets.hidden_regime()
