"""From keywords, policy and environment to a `Config`."""

from typing import Any

from quantail.config import Config, InputConfig
from quantail.errors import ConfigError
from quantail.face import policies, sources
from quantail.face.arguments import Arguments, any_seed, configured, settings_of
from quantail.types import Box


def config_of(arguments: Arguments, source: sources.Source, config: Config | None) -> Config:
    """The config that the keywords mean, on top of the one given."""
    kind, space = policies.kind_of(arguments.policy), source.env.observation_space
    policies.check_space(kind, space)
    settings: dict[str, Any] = {}
    if config is None:
        normalize = not sources.normalised_outside(source.vec)
        config = Config(seed=any_seed(), input=InputConfig(normalize_observations=normalize))
        settings = policies.defaults(kind, space)
        values = arguments.everything()
    else:
        policies.check_memory(kind, config.net)
        values = arguments.changed()
    settings |= settings_of(values, source.env.num_envs, config.ppo.n_steps)
    settings |= policies.settings_of(kind, space, arguments.policy_kwargs, arguments.use_sde)
    found = configured(config, settings)
    if found.net.gsde and not isinstance(source.env.action_space, Box):
        raise ConfigError("generalized State-Dependent Exploration (gSDE) can only be used with continuous actions.")
    return found
