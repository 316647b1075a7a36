"""Weights that stable-baselines3 or sb3-contrib saved, into an agent of ours.

    weights = read_weights("ppo_recurrent.zip")     # tensors by name; nothing in the file is executed
    left = import_weights(weights, agent)           # in place; the names of what has no place here

Only `policy.pth` is read, and as tensors alone (`weights_only`): settings, spaces and schedules of such a file are pickles.
"""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from quantail.errors import CheckpointError
from quantail.nets.agent import Agent

POLICY = "policy.pth"
WIDEST = 64  # times its size on the disk: what unpacks to more is no file of weights
HEAD_SHARE = 0.01  # of a new head that is left in an imported one, so that quantiles and twins can part
Weights = Mapping[str, Tensor]


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a policy: from the zip that `save` wrote there, or from a `policy.pth` alone."""
    path = Path(path)
    try:
        data = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(part.file_size for part in archive.infolist()) > WIDEST * len(data):
                raise CheckpointError(f"{path} unpacks to far more than its {len(data)} bytes; it is no file of weights")
            if POLICY in archive.namelist():
                data = archive.read(POLICY)
        weights = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}; give the zip that stable-baselines3 saved") from error
    except OSError as error:
        raise CheckpointError(f"{path} could not be read ({error.strerror}); it has to be a file that you may read") from error
    except (zipfile.BadZipFile, UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, NotImplementedError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path} holds no weights that can be read without running code ({type(error).__name__}); give the zip that "
            "stable-baselines3 saved"
        ) from error
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no tensors by name; give the zip that stable-baselines3 saved, or its {POLICY}")
    return {str(name): value for name, value in weights.items()}


@torch.no_grad()
def import_weights(weights: Weights, agent: Agent) -> tuple[str, ...]:
    """Put the weights into an agent of the same shape; the names of those for which it has no place.

    The actor then does exactly what it did there, on the same observations. The critics get the value as the mean of their
    law, in the rewards' own units, and nearly no spread: that they learn. A categorical critic, or one that cannot cross, has
    no such layer and keeps its own.
    """
    for name in weights:
        if "features_extractor." in name:
            raise CheckpointError(
                f"the weights hold {name}: images are seen by other convolutions here, so such a policy cannot come in; "
                "train anew, or clone it"
            )
    own = agent.state_dict(keep_vars=True)
    try:
        found = dict(_translated(weights, agent))
    except KeyError as error:
        raise CheckpointError(
            f"the weights hold no {error.args[0]}; give those of a policy with an actor and a critic"
        ) from error
    wrong = [name for name, value in found.items() if name not in own or own[name].shape != value.shape]
    missing = [name for name in own if name not in found and not name.startswith("values.")]
    for name in (*wrong, *missing):
        here, there = (list(side[name].shape) if name in side else "nothing" for side in (own, found))
        raise CheckpointError(
            f"{name} would be {there} by the weights and is {here} in this agent; make it with the same policy and "
            "policy_kwargs: lstm_hidden_size, n_lstm_layers, net_arch, shared_lstm, enable_critic_lstm"
        )
    alike = agent.values.count > 1 or agent.values.kind == "quantile"  # heads that must not stay so
    for name, value in found.items():
        rest = HEAD_SHARE * own[name] if alike and name.startswith("values.") else 0.0
        own[name].copy_(value.to(own[name]) + rest)
    heads = any(name.startswith("values.") for name in found)
    return () if heads else ("value_net.weight", "value_net.bias")


def _translated(weights: Weights, agent: Agent) -> Iterator[tuple[str, Tensor]]:
    """Our names, and the tensors that belong there."""
    yield from _memory(weights, "lstm_actor", f"trunks.{agent.actor_trunk}")
    yield from _linears(weights, "mlp_extractor.policy_net", "actor")
    head = "policy.logits" if hasattr(agent.policy, "logits") else "policy.mean"
    yield from _linear(weights, "action_net", head)
    if "log_std" in weights:
        yield "policy.log_std", weights["log_std"]
    for trunk in dict.fromkeys(agent.critic_trunks):
        if trunk != agent.actor_trunk:
            yield from _memory(weights, "lstm_critic", f"trunks.{trunk}")
    seen = _without_projection(weights)
    plain = agent.values.kind == "scalar" or (agent.values.kind == "quantile" and not agent.values.noncrossing)
    for i in range(len(agent.critic_trunks)):
        yield from _linears(seen, "mlp_extractor.value_net", f"critics.{i}")
        for name, value in _linear(seen, "value_net", f"values.heads.{i}") if plain else ():
            yield name, value.expand(agent.values.masses.numel(), *value.shape[1:])  # every quantile is the value


def _memory(weights: Weights, theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """The layers of an LSTM; torch keeps two biases, of which only the sum counts."""
    layer = 0
    while f"{theirs}.weight_ih_l{layer}" in weights:
        part = {kind: weights[f"{theirs}.{kind}_l{layer}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        yield f"{ours}.memory.layers.{layer}.w_x", part["weight_ih"]
        yield f"{ours}.memory.layers.{layer}.w_h", part["weight_hh"]
        yield f"{ours}.memory.layers.{layer}.b", part["bias_ih"] + part["bias_hh"]
        layer += 1


def _linears(weights: Weights, theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """Hidden layers, which have the same numbers here and there."""
    for name, value in weights.items():
        if name.startswith(f"{theirs}."):
            yield f"{ours}{name.removeprefix(theirs)}", value


def _linear(weights: Weights, theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", weights[f"{theirs}.{kind}"]


def _without_projection(weights: Weights) -> dict[str, Any]:
    """A critic without memory has a linear layer there that widens what it sees, with nothing between it and the next layer:
    the two are one, W₁(W₀x + b₀) + b₁ = (W₁W₀)x + (W₁b₀ + b₁).
    """
    merged = dict(weights)
    if "critic.weight" in weights:
        first = "mlp_extractor.value_net.0" if "mlp_extractor.value_net.0.weight" in weights else "value_net"
        weight, bias = weights[f"{first}.weight"], weights[f"{first}.bias"]
        merged[f"{first}.weight"] = weight @ weights["critic.weight"]
        merged[f"{first}.bias"] = weight @ weights["critic.bias"] + bias
    return merged
