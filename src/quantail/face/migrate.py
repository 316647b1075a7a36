"""The keywords of a policy in a file of stable-baselines3 or sb3-contrib, as far as its tensors tell."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantail.checkpoint.sb3 import Weights


def keywords_of(weights: Weights, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords given, and the nets that the weights are of; no tensor tells the `activation_fn`."""
    recurrent = "lstm_actor.weight_hh_l0" in weights
    shape = layers(weights) | (memory(weights) if recurrent else {}) | dict(given.get("policy_kwargs") or {})
    held = "log_std" in weights and weights["log_std"].ndim > 1  # gSDE has a deviation for each feature and action
    found = {"use_sde": held} | dict(given) | {"policy_kwargs": shape}
    found["policy"] = given["policy"] or ("MlpLstmPolicy" if recurrent else "MlpPolicy")
    if (config := given.get("config")) is not None:
        arranged = {"memory": "lstm" if recurrent else "none", "encoder_sizes": (), "trunks": "actor_critic"}
        found["config"] = replace(config, net=replace(config.net, **arranged))
    return found


def layers(weights: Weights) -> dict[str, Any]:
    """The hidden layers after the memory."""
    sizes = {
        side: [len(value) for name, value in weights.items() if name.startswith(f"mlp_extractor.{net}_net.") and value.ndim > 1]
        for side, net in (("pi", "policy"), ("vf", "value"))
    }
    return {"net_arch": sizes}


def memory(weights: Weights) -> dict[str, Any]:
    """Size, depth and owners of the memory."""
    own = "lstm_critic.weight_hh_l0" in weights
    return {
        "lstm_hidden_size": weights["lstm_actor.weight_hh_l0"].shape[1],
        "n_lstm_layers": sum(name.startswith("lstm_actor.weight_hh_l") for name in weights),
        "enable_critic_lstm": own,
        "shared_lstm": not own and "critic.weight" not in weights,
    }
