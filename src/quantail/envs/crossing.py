"""Values that cross over between tensors and the numpy of environments outside: observations, actions, figures, masks.

Nothing here imports Gymnasium or Stable-Baselines3. Everything that comes in is checked against the space that promised it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantail.envs.base import State, TensorEnv
from quantail.errors import InputError
from quantail.types import Box, Discrete, Group, MultiDiscrete, Observation, Space, Step

Array = npt.NDArray[Any]

WITHOUT_A_WORD = "it gave no reason; a process of it that was killed gives none"
NO_FIGURES = ("final_obs", "final_info", "action_mask")  # what Gymnasium's infos hold besides figures
NUMBERS = (int, float, np.integer, np.floating)


class Port(NamedTuple):
    """How values of one foreign space cross over."""

    space: Space
    offsets: Mapping[str, Any]  # lowest index of each discrete part; "" where the space has no parts
    dtype: Any = np.float32  # of what goes out
    limits: tuple[Any, Any] = (-np.inf, np.inf)  # of a Box that goes out, in its dtype
    turned: frozenset[str] = frozenset()  # parts that are images with their channels in front


# --- in ---------------------------------------------------------------------------------------------------------------


def read(port: Port, value: Any, num_envs: int, dtype: torch.dtype, device: torch.device) -> Observation:
    """Numpy observations [B, ...] (or a mapping of them) as tensors of their own memory; real numbers in `dtype`."""
    if not isinstance(port.space, Group):
        return _read("observation", port.space, laid(port, "", value), port.offsets[""], num_envs, dtype).to(device)
    names = [name for name, _ in port.space.parts]
    if not isinstance(value, Mapping) or not set(names) <= set(value):
        came = sorted(value) if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise InputError(f"observation is {came}; the space promised a mapping with {names}")
    return {
        name: _read(f"observation {name!r}", part, laid(port, name, value[name]), port.offsets[name], num_envs, dtype).to(
            device
        )
        for name, part in port.space.parts
    }


def laid(port: Port, name: str, value: Any) -> Any:
    """Images [..., channels, height, width] as [..., height, width, channels], everything else as it is."""
    return np.moveaxis(np.asarray(value), -3, -1) if name in port.turned and np.ndim(value) >= 3 else value


def _read(name: str, space: Space, value: Any, offset: Any, num_envs: int, dtype: torch.dtype) -> Tensor:
    if isinstance(space, Box):
        real = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(array_of(name, value, (num_envs, *shape_of(space)), np.uint8 if is_image(space) else real))
    index = array_of(name, value, (num_envs, *shape_of(space)), np.int64) - offset
    outside = (index < 0) | (index >= sizes_of(space))
    if outside.any():
        at = np.argwhere(outside)[0]
        raise InputError(f"{name} is {(index + offset)[tuple(at)]} in environment {at[0]}; the space does not hold that")
    return torch.from_numpy(index)


def array_of(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """A copy in this dtype, or an error that says what came instead."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.array(value).astype(dtype)  # first as it is: the shape of something ragged or nameless cannot be told
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as {np.dtype(dtype).name} {list(shape)}: {error}") from error
    if array.shape != shape:
        raise InputError(f"{name} has shape {list(array.shape)}; needs {list(shape)}, as space and num_envs promise")
    return array


def read_rows(
    port: Port, observations: Mapping[int, Any], num_envs: int, dtype: torch.dtype, device: torch.device
) -> Observation:
    """The observations of some environments; zeros and lowest indices for the others."""

    def part(name: str, space: Space, rows: Mapping[int, Any]) -> Array:
        title = f"final observation {name!r}" if name else "final observation"
        return _stacked(title, space, {i: laid(port, name, row) for i, row in rows.items()}, port.offsets[name], num_envs)

    if isinstance(port.space, Group):
        batch: Any = {
            name: part(name, space, {i: row[name] for i, row in observations.items()}) for name, space in port.space.parts
        }
    else:
        batch = part("", port.space, observations)
    return read(port._replace(turned=frozenset()), batch, num_envs, dtype, device)  # they are laid out by now


def _stacked(name: str, space: Space, rows: Mapping[int, Any], offset: Any, num_envs: int) -> Array:
    kind = np.int64 if not isinstance(space, Box) else np.uint8 if is_image(space) else np.float64
    batch: Array = np.zeros((num_envs, *shape_of(space)), dtype=kind)
    batch[...] = offset
    for i, row in rows.items():
        batch[i] = array_of(f"{name} of environment {i}", row, shape_of(space), kind)
    return batch


# --- out --------------------------------------------------------------------------------------------------------------


def written(port: Port, action: Tensor) -> Array:
    """A checked action as numpy, in the foreign numbering and dtype; outside a Box, moved to its boundary."""
    array: Array = action.detach().cpu().numpy()
    if not isinstance(port.space, Box):
        counted: Array = array + port.offsets[""]
        return counted.astype(port.dtype)
    bad = ~np.isfinite(array).reshape(len(array), -1).all(-1)
    if bad.any():
        raise InputError(f"action of environment {np.flatnonzero(bad)[0]} is not finite; no environment outside is given that")
    inside: Array = array.astype(port.dtype).clip(*port.limits)
    return inside


def arrays(value: Observation) -> Any:
    """An observation or a tensor as numpy with memory of its own."""
    if isinstance(value, Mapping):
        return {name: arrays(part) for name, part in value.items()}
    return value.detach().cpu().numpy().copy()


def noise_from(env: TensorEnv, generator: np.random.Generator) -> Tensor:
    """One row of noise for a TensorEnv, from numpy's generator."""
    return torch.from_numpy(generator.standard_normal((env.num_envs, env.noise_dim))).to(env.device, dtype_of(env))


def action_from(env: TensorEnv, actions: Any) -> Tensor:
    """Numpy actions [B, ...] as a TensorEnv takes them; their shape is checked there."""
    real, array = isinstance(env.action_space, Box), np.array(actions)
    if array.dtype.kind not in ("fiu" if real else "iu"):
        raise InputError(f"action is {array.dtype}; needs {'numbers' if real else 'whole numbers'} for {env.action_space}")
    return torch.from_numpy(array).to(env.device, dtype_of(env) if real else torch.int64)


def infos_of(step: Step) -> dict[str, Array]:
    """What a step says besides: its figures, and pnl, policy_weight and action_mask where it has them."""
    extra = {"pnl": step.pnl, "policy_weight": step.policy_weight, "action_mask": step.action_mask}
    present = {name: value for name, value in extra.items() if value is not None}
    return {name: arrays(value) for name, value in {**step.info, **present}.items()}


def first_infos(env: TensorEnv, state: State) -> dict[str, Array]:
    """What a reset says besides."""
    mask = env.first_mask(state)
    return {} if mask is None else {"action_mask": arrays(mask)}


def dtype_of(env: TensorEnv) -> torch.dtype:
    """float64 where the environment has it, else float32: numpy and Gymnasium know no shorter ones."""
    return torch.float64 if env.dtype == torch.float64 else torch.float32


# --- figures and masks ------------------------------------------------------------------------------------------------


def figures(infos: Mapping[str, Any], num_envs: int, within: str = "") -> dict[str, Array]:
    """The numbers of Gymnasium's vector infos, [B] float64 each, NaN where the mask `_key` says absent: `episode/r`, ..."""
    found: dict[str, Array] = {}
    for name, value in infos.items():
        if name.startswith("_") or name in NO_FIGURES:
            continue
        present = infos.get(f"_{name}", True)
        if isinstance(value, Mapping):
            parts = figures(value, num_envs, f"{within}{name}/")
        else:
            numbers = isinstance(value, np.ndarray) and value.shape == (num_envs,) and value.dtype.kind in "fiub"
            parts = {f"{within}{name}": value.astype(np.float64)} if numbers else {}
        found.update({key: np.where(present, column, np.nan) for key, column in parts.items()})
    return found


def listed_figures(infos: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The numbers of SB3's infos, one mapping per environment; `TimeLimit.truncated` is no figure."""
    rows = [{**info, **{f"episode/{key}": number for key, number in info.get("episode", {}).items()}} for info in infos]
    names = {
        name for row in rows for name, value in row.items() if isinstance(value, NUMBERS) and name != "TimeLimit.truncated"
    }
    return {
        name: np.array([row[name] if isinstance(row.get(name), NUMBERS) else np.nan for row in rows], dtype=np.float64)
        for name in sorted(names)
    }


def mask_of(space: Space, infos: Mapping[str, Any], num_envs: int) -> Array | None:
    """`action_mask` of Gymnasium's vector infos, [B, ΣK] bool; an environment that reports none allows all."""
    if isinstance(space, Box) or "action_mask" not in infos:
        return None
    present = np.broadcast_to(infos.get("_action_mask", True), num_envs)
    width = int(np.sum(sizes_of(space)))
    return mask_rows(space, [row if here else np.ones(width) for row, here in zip(infos["action_mask"], present, strict=True)])


def mask_rows(space: Space, rows: Sequence[Any]) -> Array:
    """One mask per environment, each flat or one part for each choice, as [B, ΣK] bool."""
    width = int(np.sum(sizes_of(space)))
    flat = [np.concatenate([np.ravel(part) for part in row]) if isinstance(row, tuple) else np.ravel(row) for row in rows]
    return np.stack([array_of(f"action mask of environment {i}", row, (width,), np.bool_) for i, row in enumerate(flat)])


# --- spaces -----------------------------------------------------------------------------------------------------------


def is_image(space: Box) -> bool:
    """Whether the entries are bytes and stay bytes."""
    return space.dtype == "uint8"


def shape_of(space: Space) -> tuple[int, ...]:
    """Shape of one value of a space without parts."""
    if isinstance(space, Box):
        return space.shape
    return (len(space.sizes),) if isinstance(space, MultiDiscrete) else ()


def sizes_of(space: Space) -> Any:
    """The number of choices: one number, or [D]; of a Box none."""
    if isinstance(space, Discrete):
        return space.n
    return np.array(space.sizes if isinstance(space, MultiDiscrete) else (), dtype=np.int64)


def row_of(batch: Any, i: int) -> Any:
    """Environment i of a batch: arrays, object arrays or a mapping of them."""
    return {name: part[i] for name, part in batch.items()} if isinstance(batch, Mapping) else batch[i]


def copied(value: Any) -> Any:
    """An observation with memory of its own."""
    return {name: np.array(part) for name, part in value.items()} if isinstance(value, Mapping) else np.array(value)


# --- the end ----------------------------------------------------------------------------------------------------------


def close_outside(env: Any) -> None:
    """Close an environment; where one of its processes has died, end the others: asked to close, they would wait for it.

    A call that broke off tells of a death before the process is found dead: Gymnasium still takes it for pending.
    """
    inner = getattr(env, "unwrapped", env)
    processes = getattr(inner, "processes", ())
    pending = getattr(getattr(inner, "_state", None), "value", "default") != "default"
    if not (processes and pending) and all(process.is_alive() for process in processes):
        env.close()
        return
    for process in processes:
        process.terminate()
        process.join()
    inner.closed = True
