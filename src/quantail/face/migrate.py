"""The policy of a file of stable-baselines3 or sb3-contrib, as far as its tensors tell."""

from dataclasses import replace
from typing import Any

from quantail.checkpoint.sb3 import Weights
from quantail.config import Config


def described(weights: Weights) -> tuple[str, dict[str, Any]]:
    """The alias of the policy, and its `policy_kwargs`; no tensor tells its activation function, nor whether it squashes."""
    arch = {
        side: [
            len(value)
            for name, value in weights.items()
            if name.startswith(f"mlp_extractor.{net}_net.") and name.endswith(".weight")
        ]
        for side, net in (("pi", "policy"), ("vf", "value"))
    }
    found: dict[str, Any] = {"net_arch": arch}
    if "lstm_actor.weight_hh_l0" not in weights:
        return "MlpPolicy", found
    own = "lstm_critic.weight_hh_l0" in weights
    found["lstm_hidden_size"] = weights["lstm_actor.weight_hh_l0"].shape[1]
    found["n_lstm_layers"] = sum(name.startswith("lstm_actor.weight_hh_l") for name in weights)
    found |= {"enable_critic_lstm": own, "shared_lstm": not own and "critic.weight" not in weights}
    return "MlpLstmPolicy", found


def held_exploration(weights: Weights) -> bool:
    """Whether it explores by gSDE: then there is a deviation for each feature and action."""
    return "log_std" in weights and weights["log_std"].ndim > 1


def with_its_nets(config: Config | None, weights: Weights) -> Config | None:
    """A config whose nets are arranged as there; sizes follow from `policy_kwargs`."""
    if config is None:
        return None
    memory = "lstm" if "lstm_actor.weight_hh_l0" in weights else "none"
    return replace(config, net=replace(config.net, memory=memory, encoder_sizes=(), trunks="actor_critic"))
