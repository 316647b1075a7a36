"""A trained agent as an ONNX graph: one row in, one row out, its memory carried by the caller.

    observation, start, memory_i  ->  action, the law of the action, the law of the return, memory_i_after

Standardisation of observations is inside. The graph is written node by node as the formulas of `nets` and `kernels` say: no
tracer guesses, and the file depends on no version of torch's exporter. Weights are float32; rows are free in number.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from quantail.checkpoint import Checkpoint, atomic, restore_agent
from quantail.config import Config
from quantail.errors import ConfigError
from quantail.estimate import distribution
from quantail.intake import ObservationMoments, standardize_observation
from quantail.nets.agent import Agent, Memory, Trunk
from quantail.nets.heads import ChoiceHead, GaussianHead
from quantail.trees import tree_map
from quantail.types import Box, Discrete, Group, MultiDiscrete, Observation, Scale, Space
from quantail.version import version

try:
    import onnx
    from onnx import helper

    from quantail.export import heads, nets
    from quantail.export.graph import Graph
except ImportError as error:
    raise ConfigError(f"{error.name} is not installed; pip install 'quantail[export]'") from error

OPSET, IR = 17, 8  # old enough for the runtimes of 2022
TOLERANCE = 1e-5  # what sums of float32 in another order may differ by


class Trained(NamedTuple):
    """All that a graph is made of."""

    agent: Agent
    space: Space  # of observations
    moments: ObservationMoments
    scale: Scale  # in which the critics speak
    config: Config
    masked: bool = False  # whether the environment says which choices are allowed


def trained(checkpoint: Checkpoint) -> Trained:
    """What a checkpoint holds of it."""
    carry = checkpoint.state["carry"]
    seen = (checkpoint.observation_space, checkpoint.observation_moments)
    masked = carry["action_mask"] is not None
    return Trained(restore_agent(checkpoint), *seen, Scale(**carry["scale"]), checkpoint.config, masked)


def save(path: Path | str, model: onnx.ModelProto) -> None:
    """Into a file, whole or not at all."""
    atomic.replace(Path(path), model.SerializeToString(deterministic=True))


def to_onnx(what: Trained) -> onnx.ModelProto:
    """The graph of an agent, checked against the standard; its metadata say what the outputs mean."""
    agent, write = _single(what.agent), Graph()
    seen = nets.observed(write, what.space, what.moments, what.config.input)
    start = write.input("start", "bool", ["batch"]) if agent.initial_memory(1) else ""
    latents: dict[str, str] = {}
    at = 0
    for name in agent.trunks:
        trunk = cast(Trunk, agent.trunks[name])
        latents[name] = nets.remembered(write, trunk, nets.encoded(write, trunk, seen, what.space), start, at)
        at += trunk.memory.states
    latent = write.layers(agent.actor, latents[agent.actor_trunk])
    if isinstance(agent.policy, GaussianHead):
        heads.gaussian(write, agent.policy, latent)
    else:
        heads.choices(write, cast(ChoiceHead, agent.policy), latent, what.masked)
    own = [write.layers(net, latents[name]) for net, name in zip(agent.critics, agent.critic_trunks, strict=True)]
    heads.values(write, agent.values, own, raw_scale(what), what.config.critic)
    graph = helper.make_graph(write.nodes, "quantail", write.inputs, write.outputs, write.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="quantail")
    helper.set_model_props(model, {name: json.dumps(value) for name, value in _told(what).items()})
    onnx.checker.check_model(model, full_check=True)
    return model


def described(value: onnx.ValueInfoProto) -> str:
    """An input or output in a few words: name, type and shape."""
    kind = value.type.tensor_type
    shape = ", ".join(axis.dim_param or str(axis.dim_value) for axis in kind.shape.dim)
    return f"{value.name:<16} {onnx.TensorProto.DataType.Name(kind.elem_type).lower():<6} [{shape}]"


def raw_scale(what: Trained) -> Scale:
    """From what critics say to the rewards that the environment gives."""
    factor = what.config.input.reward_scale
    return Scale(what.scale.mean / factor, what.scale.std / factor)


def _single(agent: Agent) -> Agent:
    """The same agent with float32 weights."""
    return agent if next(agent.parameters()).dtype == torch.float32 else deepcopy(agent).float()


def _told(what: Trained) -> dict[str, Any]:
    """What a reader of the file has to know beside the names of inputs and outputs."""
    critics, kind = what.agent.values, what.config.critic.kind
    told: dict[str, Any] = {"quantail": version(), "config": what.config.to_dict()}
    if kind == "quantile":
        told |= {"levels": critics.levels.tolist(), "masses": cast(Tensor, critics.exact_masses).tolist()}
    if kind == "categorical":
        scale = raw_scale(what)
        told["atoms"] = (cast(Tensor, critics.exact_atoms) * scale.std + scale.mean).tolist()
    return told


# --- is it the same agent? --------------------------------------------------------------------------------------------


@torch.no_grad()
def difference(model: onnx.ModelProto, what: Trained, rows: int = 64, lanes: int = 7, seed: int = 0) -> float:
    """The largest |onnx − torch|/max(1, |torch|) of all outputs over random episodes, each side with a memory of its own."""
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError as error:
        raise ConfigError("onnxruntime is not installed; pip install 'quantail[export]'") from error
    options = SessionOptions()
    options.intra_op_num_threads = 1  # beside torch's, more of them wait for each other
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    source = torch.Generator().manual_seed(seed)
    memory = what.agent.initial_memory(lanes)
    carried = {f"memory_{i}": part.float().numpy() for i, part in enumerate(memory)}
    largest = 0.0
    for row in range(rows):
        obs = drawn(what, lanes, source)
        start = torch.rand(lanes, generator=source) < (1.0 if row == 0 else 0.1)
        given = {nets.input_name(name): np.asarray(part) for name, part in _by_part(obs).items()}
        given |= {"start": start.numpy(), **carried} if memory else {}
        mask = (
            torch.rand(lanes, sum(cast(ChoiceHead, what.agent.policy).sizes), generator=source) < 0.6 if what.masked else None
        )
        given |= {} if mask is None else {"action_mask": mask.numpy()}
        found = dict(zip(names, session.run(names, given), strict=True))
        wanted, memory = said(what, obs, memory, start, mask)
        carried = {name.removesuffix("_after"): part for name, part in found.items() if name.endswith("_after")}
        for name, tensor in wanted.items():
            right = tensor.double().numpy()
            with np.errstate(invalid="ignore"):  # -inf of what is forbidden
                gap = np.where(found[name] == right, 0.0, np.abs(found[name] - right)) / np.maximum(1.0, np.abs(right))
            largest = max(largest, float(gap.max()))
    return largest


def said(
    what: Trained, obs: Observation, memory: Memory, start: Tensor, mask: Tensor | None = None
) -> tuple[dict[str, Tensor], Memory]:
    """The real numbers among the outputs of a row, by their names in the graph, as torch has them; and the memory after."""
    agent, config = what.agent, what.config
    row = tree_map(lambda x: x[None], standardize_observation(obs, what.moments, config.input))
    outputs, after = agent.unroll(row, memory, start[None], None if mask is None else mask[None])
    policy = tree_map(lambda x: x[0], outputs.policy)
    law = distribution(agent, outputs.critics[:, 0], raw_scale(what), config.critic)
    found = {**policy._asdict(), "value": law.mean, **{f"memory_{i}_after": part for i, part in enumerate(after)}}
    if isinstance(agent.policy, GaussianHead):
        found["action"] = agent.policy.to_env(agent.policy.mode(policy))
    kind = config.critic.kind
    if kind != "scalar":
        found |= {"probabilities": law.masses} if kind == "categorical" else {"quantiles": law.locations}
    return found, after


def drawn(what: Trained, lanes: int, source: torch.Generator) -> Observation:
    """Random observations, real ones as they were seen in training."""

    def part(name: str, space: Space) -> Tensor:
        match space:
            case Discrete(n):
                return torch.randint(n, (lanes,), generator=source)
            case MultiDiscrete(sizes):
                return torch.stack([torch.randint(n, (lanes,), generator=source) for n in sizes], -1)
            case Box(shape, dtype="uint8"):
                return torch.randint(256, (lanes, *shape), generator=source, dtype=torch.uint8)
        noise = torch.randn(lanes, *cast(Box, space).shape, generator=source)
        seen = what.moments.get(name)
        return noise if seen is None else (noise * seen.variance.sqrt() + seen.mean).float()

    parts = {name: part(name, space) for name, space in nets.parts_of(what.space).items()}
    return parts if isinstance(what.space, Group) else parts[""]


def _by_part(obs: Observation) -> dict[str, Tensor]:
    return {"": obs} if isinstance(obs, Tensor) else dict(obs)
