"""Policies by the names of stable-baselines3, and their `policy_kwargs`, as settings of the nets and of the optimizer."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import nn

from quantail.config import NetConfig
from quantail.errors import ConfigError
from quantail.face.arguments import Settings
from quantail.nets.encoder import ACTIVATIONS
from quantail.optim import UPGD, UPGDW, AdaptiveUPGD
from quantail.types import Box, Group, Space


class Kind(NamedTuple):
    """What a policy's name says."""

    name: str
    input: str  # Mlp | Cnn | MultiInput
    recurrent: bool


KINDS = {
    f"{seen}{memory}Policy": Kind(f"{seen}{memory}Policy", seen, bool(memory))
    for seen in ("Mlp", "Cnn", "MultiInput")
    for memory in ("", "Lstm")
}
CLASSES = {  # the classes of stable-baselines3 and sb3-contrib behind their names
    "ActorCriticPolicy": "MlpPolicy",
    "ActorCriticCnnPolicy": "CnnPolicy",
    "MultiInputActorCriticPolicy": "MultiInputPolicy",
    "RecurrentActorCriticPolicy": "MlpLstmPolicy",
    "RecurrentActorCriticCnnPolicy": "CnnLstmPolicy",
    "RecurrentMultiInputActorCriticPolicy": "MultiInputLstmPolicy",
}
EXTRACTORS = {"FlattenExtractor": "Mlp", "NatureCNN": "Cnn", "CombinedExtractor": "MultiInput"}
OPTIMIZERS: Mapping[type, str] = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.SGD: "sgd",
    UPGD: "upgd",
    UPGDW: "upgdw",
    AdaptiveUPGD: "adaptive_upgd",
}
HONOURED = ("eps", "weight_decay", "betas")  # of `optimizer_kwargs`, as far as the class has them
FEATURES = {"Cnn": ("features_dim", 512), "MultiInput": ("cnn_output_dim", 256)}  # behind the convolutions of an image
FIXED = {  # what is so here and cannot be otherwise
    "full_std": (True, "held exploration has a deviation for each feature and action"),
    "use_expln": (False, "deviations are exponentials"),
    "normalize_images": (True, "images of bytes are divided by 255"),
}


def kind_of(policy: Any) -> Kind:
    """The policy by its alias, or by the class of stable-baselines3 or sb3-contrib that the alias stands for."""
    if isinstance(policy, str):
        if policy not in KINDS:
            close = get_close_matches(policy, KINDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(KINDS)}"
            raise ConfigError(f"Policy {policy} unknown; {hint}")
        return KINDS[policy]
    name = getattr(policy, "__name__", type(policy).__name__)
    if name not in CLASSES or not str(getattr(policy, "__module__", "")).startswith(("stable_baselines3.", "sb3_contrib.")):
        raise ConfigError(f"policy is {name}; a network of your own cannot be used: give one of the names {', '.join(KINDS)}")
    return KINDS[CLASSES[name]]


def alias_of(space: Space, net: NetConfig) -> str:
    """The name of the policy that has such nets."""
    image = isinstance(space, Box) and space.dtype == "uint8" and len(space.shape) == 3
    seen = "MultiInput" if isinstance(space, Group) else "Cnn" if image else "Mlp"
    return f"{seen}{'Lstm' if net.memory != 'none' else ''}Policy"


def check_space(kind: Kind, space: Space) -> None:
    """Whether a policy can see such observations."""
    if isinstance(space, Group) and kind.input != "MultiInput":
        multi = "MultiInputLstmPolicy" if kind.recurrent else "MultiInputPolicy"
        raise ConfigError(f"You must use `{multi}` when working with dict observation space, not {kind.name}")
    if kind.input == "MultiInput" and not isinstance(space, Group):
        plain = kind.name.replace("MultiInput", "Mlp")
        raise ConfigError(f"{kind.name} needs a dict observation space, not {space}; use {plain}")
    image = isinstance(space, Box) and space.dtype == "uint8" and len(space.shape) == 3
    assert image or kind.input != "Cnn", (
        f"{kind.name} needs images: a Box of uint8 with three sides, not {space}; use {kind.name.replace('Cnn', 'Mlp')}"
    )


def check_memory(kind: Kind, net: NetConfig) -> None:
    """Refuse a config whose memory is not what the policy's name says."""
    if kind.recurrent == (net.memory == "none"):
        other = kind.name.replace("Lstm", "") if kind.recurrent else kind.name.replace("Policy", "LstmPolicy")
        raise ConfigError(f"{kind.name} and config.net.memory={net.memory!r} disagree; use {other!r}, or change the memory")


def defaults(kind: Kind, space: Space) -> Settings:
    """The nets of a policy without `policy_kwargs`: sizes and arrangement as there."""
    layers = () if kind.input == "Cnn" else (64, 64)
    one_encoder = kind.input == "Cnn" and not kind.recurrent  # the features extractor is shared there
    return {
        "net.encoder_sizes": (FEATURES[kind.input][1],) if _has_images(space) and kind.input in FEATURES else (),
        "net.memory": "lstm" if kind.recurrent else "none",
        "net.hidden": 256,
        "net.trunks": "shared" if one_encoder else "actor_critic",
        "net.actor_sizes": layers,
        "net.critic_sizes": layers,
    }


def settings_of(kind: Kind, space: Space, given: Mapping[str, Any] | None, use_sde: bool) -> Settings:
    """`policy_kwargs` as settings; what cannot be honoured is refused."""
    given = dict(given or {})
    found: Settings = _arrangement(kind, space, given)
    found |= _optimizer(given) | _features(kind, space, given)
    for name, (value, why) in FIXED.items():
        if given.pop(name, value) != value:
            raise ConfigError(f"policy_kwargs {name}={not value} cannot be honoured: {why}; leave it out")
    if "squash_output" in given:
        squashed = bool(given.pop("squash_output"))
        assert use_sde or not squashed, "squash_output=True is only available when using gSDE (use_sde=True)"
        found["net.squash"] = "tanh" if squashed else "none"
    for name, read in READ.items():
        if name in given:
            found |= read(given.pop(name))
    known = (*READ, *FIXED, *MEMORY, "squash_output", "optimizer_class", "optimizer_kwargs", "features_extractor_kwargs")
    for name in given:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise ConfigError(f"policy_kwargs has {name!r}, which {kind.name} does not take; {hint}")
    return found


MEMORY = ("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm", "lstm_kwargs", "share_features_extractor")


def _arrangement(kind: Kind, space: Space, given: dict[str, Any]) -> Settings:
    """Who has an encoder and a memory of its own, and how large the memory is."""
    asked = {name: given.pop(name) for name in MEMORY if name in given}
    share = asked.pop("share_features_extractor", None)
    if not kind.recurrent:
        for name in asked:
            raise ConfigError(f"policy_kwargs has {name!r}, but {kind.name} has no memory; use {kind.name[:-6]}LstmPolicy")
        return {} if share is None or not _has_images(space) else {"net.trunks": "shared" if share else "actor_critic"}
    shared, own = bool(asked.get("shared_lstm", False)), bool(asked.get("enable_critic_lstm", True))
    assert not (shared and own), "You must choose between shared LSTM, seperate or no LSTM for the critic."
    assert not (shared and share is False), "If the features extractor is not shared, the LSTM cannot be shared."
    if share and not shared and _has_images(space):
        raise ConfigError(
            "policy_kwargs share_features_extractor=True with memories of their own cannot be honoured: actor and critic each "
            "have an encoder before their memory; leave it out, or set shared_lstm=True with enable_critic_lstm=False"
        )
    found: Settings = {}
    if "shared_lstm" in asked or "enable_critic_lstm" in asked:
        found = {
            "net.trunks": "shared" if shared else "actor_critic",
            "net.critic_memory": shared or own,
            "net.critic_moves_trunk": not shared,
        }
    for name, path in (("lstm_hidden_size", "net.hidden"), ("n_lstm_layers", "net.layers")):
        if name in asked:
            found[path] = int(asked[name])
    return found | _lstm(asked.get("lstm_kwargs"))


def _lstm(given: Mapping[str, Any] | None) -> Settings:
    found: Settings = {}
    for name, value in (given or {}).items():
        if name == "dropout":
            found["net.dropout"] = float(value)
        elif (name, value) not in (("bias", True), ("batch_first", False), ("bidirectional", False), ("proj_size", 0)):
            raise ConfigError(f"lstm_kwargs {name}={value!r} cannot be honoured; it may hold dropout, and nothing else")
    return found


def _optimizer(given: dict[str, Any]) -> Settings:
    """The optimizer's class by its name here; what it is not told is as in that class, but for the ε of a plain Adam."""
    if "optimizer_class" not in given and "optimizer_kwargs" not in given:
        return {}
    cls, options = given.pop("optimizer_class", torch.optim.Adam), given.pop("optimizer_kwargs", None)
    if cls not in OPTIMIZERS:
        raise ConfigError(f"optimizer_class is {cls}; it can be {', '.join(one.__name__ for one in OPTIMIZERS)}")
    known = {name: one.default for name, one in inspect.signature(cls).parameters.items() if name in HONOURED}
    if cls is torch.optim.Adam and options is None:
        known["eps"] = 1e-5  # as RecurrentPPO has it
    for name, value in (options or {}).items():
        if name not in known:
            raise ConfigError(f"optimizer_kwargs {name}={value!r} cannot be honoured; of {cls.__name__} {', '.join(known)} can")
        known[name] = value
    found: Settings = {"optim.name": OPTIMIZERS[cls]}
    for name, value in known.items():
        found |= (
            {"optim.beta1": float(value[0]), "optim.beta2": float(value[1])}
            if name == "betas"
            else {f"optim.{name}": float(value)}
        )
    return found


def _features(kind: Kind, space: Space, given: dict[str, Any]) -> Settings:
    """The features extractor: the policy's own, with a width of its own behind the images."""
    cls, options = given.pop("features_extractor_class", None), dict(given.pop("features_extractor_kwargs", None) or {})
    if cls is not None and EXTRACTORS.get(getattr(cls, "__name__", "")) != kind.input:
        raise ConfigError(f"features_extractor_class is {cls}; a network of your own cannot be used: leave it out")
    name, _ = FEATURES.get(kind.input, ("", 0))
    size = options.pop(name, None)
    if options:
        raise ConfigError(f"features_extractor_kwargs {sorted(options)} cannot be honoured; {kind.name} takes {name or 'none'}")
    return {} if size is None or not _has_images(space) else {"net.encoder_sizes": (int(size),)}


def _layers(value: Any) -> Settings:
    """`net_arch`: the hidden layers after the memory, alike for both or one list for each."""
    if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        warnings.warn("net_arch=[dict(pi=..., vf=...)] is the old way to write net_arch=dict(pi=..., vf=...)", stacklevel=2)
        value = value[0]
    sides = value if isinstance(value, Mapping) else {"pi": value, "vf": value}
    if unknown := set(sides) - {"pi", "vf"}:
        raise ConfigError(f"net_arch has {sorted(unknown)}; it may hold pi and vf")
    actor, critic = (tuple(int(size) for size in sides.get(side, ())) for side in ("pi", "vf"))
    return {"net.actor_sizes": actor, "net.critic_sizes": critic}


def _activation(cls: type[nn.Module]) -> Settings:
    names = {known: name for name, known in ACTIVATIONS.items()}
    if cls not in names:
        raise ConfigError(f"activation_fn is {cls}; it can be {', '.join(known.__name__ for known in names)}")
    return {"net.activation": names[cls]}


def _has_images(space: Space) -> bool:
    parts = [part for _, part in space.parts] if isinstance(space, Group) else [space]
    return any(isinstance(part, Box) and part.dtype == "uint8" and len(part.shape) == 3 for part in parts)


READ: Mapping[str, Callable[[Any], Settings]] = {
    "net_arch": lambda value: {} if value is None else _layers(value),
    "activation_fn": _activation,
    "ortho_init": lambda value: {"net.ortho_init": bool(value)},
    "log_std_init": lambda value: {"net.log_std_init": float(value)},
}
