"""Presets are settings that exist, in environments that can be made, and those of the benchmark that measured them."""

import dataclasses

import pytest

import learning
from quantail import presets
from quantail.config import Config, EnvConfig
from quantail.errors import ConfigError
from quantail.registry import make


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_can_be_made_and_is_what_was_measured(name):
    config = presets.preset(name)
    case = learning.CASES[name.replace("_", "-")]
    assert dataclasses.replace(config, env=EnvConfig()) == case.config
    ours, theirs = make(config.env), case.env(case.copies)
    assert type(ours) is type(theirs)
    assert {key: value for key, value in vars(ours).items() if isinstance(value, int | float | str)} == {
        key: value for key, value in vars(theirs).items() if isinstance(value, int | float | str)
    }


def test_names_take_hyphens_and_unknown_ones_a_hint():
    assert presets.preset("cartpole-positions") == presets.cartpole_positions()
    with pytest.raises(ConfigError, match="did you mean cartpole"):
        presets.preset("cartpol")
    assert Config.from_dict(presets.hidden_regime().to_dict()) == presets.hidden_regime()
