"""Settings as YAML: there and back without loss, and every slip is named."""

import pytest
import yaml

from quantail.config import Config, CriticConfig, EnvConfig, PpoConfig
from quantail.errors import ConfigError
from quantail.presets import PRESETS
from quantail.run.configfile import from_yaml, read, to_yaml
from test_config import EVERY


@pytest.mark.parametrize("config", [Config(), EVERY, *(preset() for preset in PRESETS.values())])
def test_there_and_back(config):
    assert from_yaml(to_yaml(config)) == config
    assert Config.from_dict(yaml.safe_load(to_yaml(config))) == config  # any reader of YAML reads it


def test_words_are_words_and_numbers_are_numbers():
    config = from_yaml("optim: {learning_rate: 3e-4}\nppo: {gamma: 1, normalize_advantage: off}\ncritic: {clip: off}")
    assert config.optim.learning_rate == 3e-4
    assert config.ppo == PpoConfig(gamma=1.0, normalize_advantage="off")
    assert config.critic == CriticConfig(clip="off")
    for word in ("yes", "no", "on", "off", "y", "2026-01-01", "1:30", "0x", "null_"):
        assert from_yaml(f"env: {{options: {{a: {word}}}}}").env.options == {"a": word}
    plain = from_yaml("env: {options: {a: true, b: -2, c: 1e6, d: .5, e: 7., f: '3'}}").env.options
    assert [*plain.values()] == [True, -2, 1e6, 0.5, 7.0, "3"]
    assert [type(value) for value in plain.values()] == [bool, int, float, float, float, str]


def test_a_file_goes_over_what_it_starts_from():
    base = Config(seed=5, ppo=PpoConfig(n_steps=7, gamma=0.5), env=EnvConfig(id="a", options={"x": 1}))
    config = from_yaml("ppo: {gamma: 0.25}\nenv: {options: {y: 2}}", base)
    assert config == Config(seed=5, ppo=PpoConfig(n_steps=7, gamma=0.25), env=EnvConfig(id="a", options={"y": 2}))
    assert from_yaml("", base) == base
    assert from_yaml("# nothing but words", base) == base


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ppo:\n  gama: 0.9", r"ppo\.gama is no setting; did you mean ppo\.gamma\?"),
        ("ppo:\n  gamma: high", r"ppo\.gamma='high' is str; needs float"),
        ("ppo: 3", "ppo is 3; needs a mapping of PpoConfig's fields"),
        ("seed: 1.5", "seed=1.5 is float; needs int"),
        ("seed: 1\nppo: {gamma: 0.9}\nseed: 2", "line 3: the key 'seed' comes twice"),
        ("ppo:\n  gamma: 0.9\n  gamma: 0.8", "line 3: the key 'gamma' comes twice"),
        ("? [a, b]\n: 1", "comes twice, or is no plain word"),
        ("- 1\n- 2", "it holds list; needs settings by name"),
        ("just words", "it holds str; needs settings by name"),
        ("a: [1", "it is no YAML: while parsing"),
        ("a: !!python/object/apply:os.system ['true']", "it is no YAML: could not determine a constructor"),
        ("ppo: {gamma: 1.5}", r"gamma=1\.5 is outside \[0, 1\]"),
    ],
)
def test_slips_are_named(text, words):
    with pytest.raises(ConfigError, match=words):
        from_yaml(text)


def test_the_file_is_named_too(tmp_path):
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match=r"mine\.yaml could not be read \(No such file or directory\)"):
        read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.yaml could not be read \(it is no text\)"):
        read(path)
    path.write_text("sede: 1")
    with pytest.raises(ConfigError, match=r"mine\.yaml: sede is no setting; did you mean seed\?"):
        read(path)
