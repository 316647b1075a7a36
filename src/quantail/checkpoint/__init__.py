"""All that a bit-for-bit resume needs in one file: atomic, verified, no pickle.

    save(path, progress, config, env)         # whole or not at all
    checkpoint = read(path)                   # verified; nothing is built yet
    progress = restore(checkpoint, env)       # hand it to `train(config, env, progress=...)`
    agent = restore_agent(checkpoint)         # to play with: no environment needed

Whatever is in `Progress` is saved, however new: records, mappings and tuples of tensors and plain numbers, and what has a
`state_dict`. It comes back onto the templates that `begin(config, env)` makes, so a tensor keeps its shape over a run.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail import ranks
from quantail.checkpoint import atomic, store
from quantail.checkpoint.spaces import described, space_from, space_to
from quantail.checkpoint.tree import rebuilt
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import CheckpointError, ConfigError
from quantail.intake import ObservationMoments
from quantail.loop import Progress, Spaces, begin, make_agent
from quantail.nets.agent import Agent
from quantail.optim.joint import load_moments
from quantail.rollout import Carry
from quantail.types import Moments, Space

# What belongs to the running episodes. Where an environment cannot be put back, these begin anew with it.
RUNNING = (
    *("env_state", "obs", "start", "ended", "muted", "action_mask", "memory"),
    *("episode_return", "episode_length", "running"),
)


class Checkpoint(NamedTuple):
    """What a file holds: verified values, of which nothing is built yet."""

    name: str  # of the file, for messages
    config: Config
    observation_space: Space
    action_space: Space
    num_envs: int
    threads: int  # of the process that saved: sums depend on it
    state: Mapping[str, Any]  # of each part of `Progress`
    extra: Mapping[str, Any]  # what the caller of `save` put in beside it
    fitted: Mapping[str, Any] = MappingProxyType({})  # `TensorEnv.fitted`: play in what is measured by it
    ranks: int = 1  # processes that trained together; of several, running episodes are not kept

    @property
    def env_steps(self) -> int:
        """Valid rows until it was saved."""
        return int(self.state["env_steps"])

    @property
    def iteration(self) -> int:
        """Iterations until it was saved."""
        return int(self.state["carry"]["iteration"])

    @property
    def observation_moments(self) -> ObservationMoments:
        """What `evaluation.play` standardises observations by."""
        return {name: Moments(**moments) for name, moments in self.state["carry"]["obs_moments"].items()}


# --- out --------------------------------------------------------------------------------------------------------------


def save(path: Path | str, progress: Progress, config: Config, env: TensorEnv, extra: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint whole or not at all; `extra` may hold text, numbers and tensors, nested."""
    atomic.replace(Path(path), to_bytes(progress, config, env, extra))


def to_bytes(progress: Progress, config: Config, env: TensorEnv, extra: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a checkpoint; equal progress gives equal bytes."""
    carry = progress.carry
    env_state = env.state_dict(carry.env_state) if env.exact_resume and ranks.count() == 1 else {}
    state = {name: _state_of(value) for name, value in progress._asdict().items()}
    state["carry"] = carry._replace(env_state=env_state)
    return store.pack(
        {
            "config": config.to_dict(),
            "observation_space": space_to(env.observation_space),
            "action_space": space_to(env.action_space),
            "num_envs": env.num_envs,
            "threads": torch.get_num_threads(),
            "state": state,
            "extra": dict(extra or {}),
            "fitted": dict(env.fitted),
            "ranks": ranks.count(),
        }
    )


# --- in ---------------------------------------------------------------------------------------------------------------


def read(path: Path | str) -> Checkpoint:
    """A checkpoint from a file, every byte of it verified."""
    return from_tree(store.read(Path(path)), str(path))


def from_bytes(data: bytes, name: str = "the checkpoint") -> Checkpoint:
    """A checkpoint from its bytes, every one of them verified."""
    return from_tree(store.unpack(data, name), name)


def from_tree(tree: dict[str, Any], name: str) -> Checkpoint:
    """A checkpoint from what a file holds."""
    try:
        config = Config.from_dict(tree.pop("config"))
        seen, taken = (space_from(tree.pop(f"{use}_space")) for use in ("observation", "action"))
        checkpoint = Checkpoint(name, config, seen, taken, **tree)
        _ = checkpoint.iteration, checkpoint.env_steps  # they must be there
        return checkpoint
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name} is no checkpoint of a training run ({error}); give one that `save` wrote") from error


def restore(checkpoint: Checkpoint, env: TensorEnv, config: Config | None = None, agent: Agent | None = None) -> Progress:
    """Where the run was when it was saved; `train(config, env, progress=...)` goes on from there.

    An environment that cannot be put back (`exact_resume` False, or several processes) has been reset: it starts new episodes,
    other ones than those the run began with. `config` is the checkpoint's own if none is given; `agent` takes the weights if
    one is given.
    """
    check_environment(checkpoint, env)
    config = config or checkpoint.config
    agent = _in_dtype(agent or make_agent(config, env), checkpoint)
    fresh = begin(config, env, agent, checkpoint.iteration)
    parts: dict[str, Any] = {}
    for name, template in fresh._asdict().items():
        saved = _part(checkpoint, name)
        if name == "carry":
            parts[name] = _carry(fresh.carry, saved, env, is_put_back(checkpoint, env))
        elif hasattr(template, "load_state_dict"):
            parts[name] = _loaded(template, saved, f"{name} of {checkpoint.name}")
        else:
            parts[name] = rebuilt(template, saved, env.device, name)
    return Progress(**parts)


def restore_agent(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Agent:
    """The agent alone, to play with: see `evaluation.play`."""
    spaces = Spaces(checkpoint.observation_space, checkpoint.action_space, torch.device(device))
    agent = _in_dtype(make_agent(checkpoint.config, spaces), checkpoint)
    loaded: Agent = _loaded(agent, _part(checkpoint, "agent"), f"agent of {checkpoint.name}")
    return loaded


def check_environment(checkpoint: Checkpoint, env: TensorEnv, any_number: bool = False) -> None:
    """Refuse an environment that is not like the one of the checkpoint; to play in, there may be another number of it."""
    for use in ("observation", "action"):
        there, here = getattr(checkpoint, f"{use}_space"), getattr(env, f"{use}_space")
        if space_to(there) != space_to(here):
            raise CheckpointError(
                f"{checkpoint.name} has the {use} space {described(there)}, {type(env).__name__} has {described(here)}; "
                "use the environment it was trained in"
            )
    if is_put_back(checkpoint, env) and not any_number and env.num_envs != checkpoint.num_envs:
        raise CheckpointError(
            f"{checkpoint.name} holds {checkpoint.num_envs} environments, {type(env).__name__} has {env.num_envs}; "
            f"make it with num_envs={checkpoint.num_envs}"
        )


def is_put_back(checkpoint: Checkpoint, env: TensorEnv) -> bool:
    """Whether episodes go on where they were: not where the environment cannot, nor after or in training by several."""
    return env.exact_resume and checkpoint.ranks == ranks.count() == 1


# --- parts ------------------------------------------------------------------------------------------------------------


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _part(checkpoint: Checkpoint, name: str) -> Any:
    if name not in checkpoint.state:
        raise CheckpointError(f"{checkpoint.name} holds no {name}; it is not from this version of Quantail")
    return checkpoint.state[name]


def _carry(fresh: Carry, saved: Mapping[str, Any], env: TensorEnv, exact: bool) -> Carry:
    """The carry of a file; where the environment cannot be put back, the running episodes are the fresh ones."""
    apart = ("env_state",) if exact else RUNNING
    templates = {name: value for name, value in fresh._asdict().items() if name not in apart}
    kept = rebuilt(templates, {name: value for name, value in saved.items() if name not in apart}, env.device, "carry")
    own = {name: env.load_state(saved[name]) if exact else getattr(fresh, name) for name in apart}
    return Carry(**kept, **own)


def _loaded(target: Any, saved: Any, what: str) -> Any:
    try:
        if isinstance(target, torch.optim.Optimizer):
            load_moments(target, saved)
        else:
            target.load_state_dict(saved)
    except ConfigError as error:
        raise CheckpointError(f"the {what} does not fit: {error}") from error
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(f"the {what} does not fit: {reason} Use the settings it was saved with") from error
    return target


def _in_dtype(agent: Agent, checkpoint: Checkpoint) -> Agent:
    """The agent with weights as fine as those in the file; PyTorch would round them without a word."""
    kinds = {value.dtype for value in _part(checkpoint, "agent").values() if isinstance(value, Tensor)}
    (kind,) = {kind for kind in kinds if kind.is_floating_point} or {torch.float32}
    # Not even `to` its own dtype: that would round the critics' levels, which are float64 beside weights of any kind.
    return agent if next(agent.parameters()).dtype == kind else agent.to(kind)
