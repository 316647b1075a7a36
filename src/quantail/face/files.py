"""Agents in files: a checkpoint, and beside it what the face was asked for. Nothing in such a file can be executed."""

import io
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from quantail import checkpoint
from quantail.checkpoint import Checkpoint, atomic, store
from quantail.config import Config
from quantail.envs.gymnasium import gymnasium_space
from quantail.errors import CheckpointError, ConfigError
from quantail.face.arguments import NAMES, Arguments, configured, settings_of
from quantail.face.policies import OPTIMIZERS, alias_of, kind_of
from quantail.face.sources import Source, check_spaces, chosen, source_of, source_without
from quantail.loop import Progress
from quantail.nets.encoder import ACTIVATIONS
from quantail.registry import OURS

SUFFIX = ".zip"  # as stable-baselines3 names its files, where the caller gives no suffix
SCHEDULES = ("learning_rate", "clip_range")
CLASSES: Mapping[str, type] = {kind.__name__: kind for kind in (*ACTIVATIONS.values(), *OPTIMIZERS)}


class Loaded(NamedTuple):
    """What a model is made of again."""

    checkpoint: Checkpoint
    arguments: Arguments
    config: Config
    source: Source
    num_timesteps: int
    missing: tuple[str, ...]  # schedules that were functions, and have not been given again


def save(path: Any, progress: Progress, config: Config, source: Source, arguments: Arguments, num_timesteps: int) -> None:
    """Into a file, whole or not at all, or into a file object."""
    face = {
        "arguments": arguments_to(arguments, kind_of(arguments.policy).name),
        "spaces": [space_to(space) for space in source.spaces],
        "native": source.native,
        "num_timesteps": num_timesteps,
        "n_envs": source.env.num_envs,
    }
    data = checkpoint.to_bytes(progress, config, source.env, {"face": face})
    if hasattr(path, "write"):
        path.write(data)
        return
    target = named(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"the folder {target.parent} could not be made ({error.strerror}); choose another") from error
    atomic.replace(target, data)


def load(path: Any, env: Any, device: Any, asked: Mapping[str, Any]) -> Loaded:
    """A file, verified, with an environment of the same spaces, or none; `asked` stands above the keywords of the file."""
    found = read(path)
    face = found.extra.get("face") or face_of_run(found, env is not None)
    saved, functions = arguments_from(face["arguments"])
    changes = changes_of(asked, saved)
    seen, taken = (space_from(plain) for plain in face["spaces"])
    if env is None:
        own = found.observation_space, found.action_space
        source = source_without((seen, taken), own, face["n_envs"], face["native"], chosen(device))
        source.env.fitted = found.fitted
    else:
        source = source_of(env, device)
        if "face" in found.extra:  # else only our own spaces are known, which `restore` compares
            check_spaces((seen, taken), source.spaces)
    config = configured(found.config, settings_of(changes, source.env.num_envs, found.config.ppo.n_steps))
    missing = tuple(name for name in functions if name not in changes)
    return Loaded(found, replace(saved, **changes), config, source, face["num_timesteps"], missing)


def read(path: Any) -> Checkpoint:
    """A checkpoint, verified."""
    if isinstance(path, io.IOBase) or hasattr(path, "read"):
        return checkpoint.from_bytes(path.read(), getattr(path, "name", "the file object"))
    target = Path(path) if Path(path).is_file() else named(path)
    return checkpoint.from_tree(store.read(target), str(target))


def face_of_run(found: Checkpoint, env_given: bool) -> Mapping[str, Any]:
    """What lies beside a checkpoint of `save`, for one of a run: nothing was asked for but its config."""
    native = found.config.env.id.startswith(OURS)
    if not native and not env_given:
        where = found.config.env.id or "an environment that was handed over"
        raise CheckpointError(
            f"{found.name} is a checkpoint of a run in {where}, which alone knows its spaces as Gymnasium has them; give it: "
            "load(path, env=...)"
        )
    both = (found.observation_space, found.action_space)
    return {
        "arguments": arguments_to(Arguments(policy=(alias := alias_of(found.observation_space, found.config.net))), alias),
        "spaces": [space_to(gymnasium_space(space)) for space in both],
        "native": native,
        "num_timesteps": found.env_steps,
        "n_envs": found.num_envs,
    }


def named(path: Any) -> Path:
    """The path, with a suffix if it has none."""
    target = Path(path)
    return target if target.suffix else target.with_name(target.name + SUFFIX)


# --- keywords ---------------------------------------------------------------------------------------------------------


def arguments_to(arguments: Arguments, policy: str) -> dict[str, Any]:
    """The keywords as plain values; functions are named, not kept: no file can hold them safely."""
    plain = {name: _plain(value) for name, value in arguments.everything().items() if name not in SCHEDULES}
    rates = {name: getattr(arguments, name) for name in SCHEDULES}
    functions = [name for name, value in rates.items() if callable(value)]
    plain |= {name: _plain(value) for name, value in rates.items() if name not in functions}
    return plain | {"policy": policy, "functions": functions}


def arguments_from(plain: Mapping[str, Any]) -> tuple[Arguments, tuple[str, ...]]:
    """The keywords of a file, and those that were functions."""
    values = {name: _value(plain[name]) for name in NAMES if name in plain}
    return Arguments(**values), tuple(plain["functions"])


def changes_of(asked: Mapping[str, Any], saved: Arguments) -> dict[str, Any]:
    """Keywords that stand above those of a file; the networks stay those of the file."""
    changes = dict(asked)
    if callable(changes.pop("lr_schedule", None)) and "learning_rate" not in changes:
        raise ConfigError("lr_schedule is made from learning_rate; give learning_rate=..., which may be a function")
    for name in changes:
        if name not in NAMES or name == "policy":
            close = get_close_matches(name, NAMES, n=1)
            raise ConfigError(f"load takes no {name!r}; {f'did you mean {close[0]!r}?' if close else f'it takes {NAMES[1:]}'}")
    if "policy_kwargs" in changes and changes["policy_kwargs"] != saved.policy_kwargs:
        raise ConfigError(
            f"The specified policy kwargs do not equal the stored policy kwargs. Stored kwargs: {saved.policy_kwargs}, "
            f"specified kwargs: {changes['policy_kwargs']}"
        )
    return changes


def _plain(value: Any) -> Any:
    if isinstance(value, type):
        return {"class": value.__name__}
    if isinstance(value, Mapping):
        return {"entries": {name: _plain(inner) for name, inner in value.items()}}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else str(value) if isinstance(value, Path) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        if "class" in plain:
            return CLASSES[plain["class"]]
        return {name: _value(inner) for name, inner in plain["entries"].items()}
    return [_value(inner) for inner in plain] if isinstance(plain, list) else plain


# --- spaces -----------------------------------------------------------------------------------------------------------


def space_to(space: Any) -> dict[str, Any]:
    """A Gymnasium space as plain values."""
    match space:
        case spaces.Box():
            sides = {name: _side(getattr(space, name)) for name in ("low", "high")}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **sides}
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "sizes": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": int(space.shape[0])}
        case spaces.Dict():
            return {"kind": "Dict", "parts": {name: space_to(part) for name, part in space.items()}}
    raise ConfigError(f"the space {space} cannot be saved; use Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these")


def space_from(plain: Mapping[str, Any]) -> Any:
    """The inverse of `space_to`."""
    kind = plain["kind"]
    if kind == "Dict":
        return spaces.Dict({name: space_from(part) for name, part in plain["parts"].items()})
    if kind == "Box":
        dtype, shape = np.dtype(plain["dtype"]), tuple(plain["shape"])
        low, high = (_filled(plain[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(plain["n"], start=plain["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(plain["sizes"], start=plain["start"])
    return spaces.MultiBinary(plain["n"])


def _filled(side: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    values = np.array(side, dtype=dtype).reshape(-1)
    return np.broadcast_to(values, (int(np.prod(shape)),)).reshape(shape).copy()


def _side(bound: Any) -> Any:
    """One number where all entries share it, else one for each."""
    flat = np.asarray(bound).reshape(-1)
    return flat[0].item() if len(flat) and (flat == flat[0]).all() else flat.tolist()
