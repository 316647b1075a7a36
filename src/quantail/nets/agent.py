"""The agent: encoder -> memory -> hidden layers -> heads, wired; its state is an argument and a result."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from quantail.config import CriticConfig, NetConfig
from quantail.errors import InputError
from quantail.functional.checks import bad_shape, check_count
from quantail.nets.encoder import Encoder, mlp
from quantail.nets.heads import policy_head
from quantail.nets.memory import Memory, MemoryNet, select_envs
from quantail.nets.values import CostHead, ValueHeads
from quantail.types import Observation, Space

__all__ = ["Agent", "Memory", "Outputs", "Trunk", "select_envs"]


class Outputs(NamedTuple):
    """What the agent says about T rows of B environments."""

    policy: Any  # the policy head's record, [T, B, ...] each
    critics: Tensor  # [C, T, B, N] in normalised units
    costs: Tensor  # [K, T, B] the charges to come, in units of their own; K = 0 where nothing is charged


class Trunk(nn.Module):
    """An encoder and the memory after it."""

    def __init__(self, space: Space, net: NetConfig) -> None:
        super().__init__()
        self.encoder = Encoder(space, net.encoder_sizes, net.activation, net.ortho_init)
        self.memory = MemoryNet(net.memory, self.encoder.width, net.hidden, net.layers, net.ortho_init)
        self.width = self.memory.width
        self.rounded = False  # whether the factors of its products are rounded to bfloat16 on a CUDA device

    def forward(self, obs: Observation, memory: Memory, start: Tensor, dropout: Tensor | None) -> tuple[Tensor, Memory]:
        if not self.rounded:
            latent, after = self.memory(self.encoder(obs), memory, start, dropout)
            return latent, after
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a graph would keep what is cached
            latent, after = self.memory(self.encoder(obs), memory, start, dropout)
        return latent.float(), after


class Agent(nn.Module):
    """Actor and critics of a space.

    `trunks` says who has an encoder and a memory of its own: "shared", all together; "actor_critic", the actor one and the
    critics one; "each", every one of them. The hidden layers after the memory are never shared. `cost` adds a critic of the
    charges for risk.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetConfig | None = None,
        critic: CriticConfig | None = None,
        cost: bool = False,
    ) -> None:
        super().__init__()
        net, critic = net or NetConfig(), critic or CriticConfig()
        self.dropout = net.dropout
        self.critic_trunks = _critic_trunks(net.trunks, 2 if critic.twin else 1)
        self.actor_trunk = "shared" if net.trunks == "shared" else "actor"
        self.cost_trunk = {"shared": "shared", "actor_critic": "critic", "each": "cost"}[net.trunks] if cost else None
        judging = [*self.critic_trunks, *([self.cost_trunk] if self.cost_trunk else [])]
        names = dict.fromkeys([self.actor_trunk, *judging])
        self.critics_move_trunk = net.critic_moves_trunk
        remembers = {self.actor_trunk, *(judging if net.critic_memory else ())}
        forgetful = replace(net, memory="none", critic_memory=True)
        self.trunks = nn.ModuleDict({name: Trunk(observation_space, net if name in remembers else forgetful) for name in names})
        widths = {name: self._trunk(name).width for name in names}
        self.actor = mlp(widths[self.actor_trunk], net.actor_sizes, net.activation, net.ortho_init)
        self.policy = policy_head(action_space, [widths[self.actor_trunk], *net.actor_sizes][-1], net)
        self.critics = nn.ModuleList(
            mlp(widths[name], net.critic_sizes, net.activation, net.ortho_init) for name in self.critic_trunks
        )
        latents = [[widths[name], *net.critic_sizes][-1] for name in self.critic_trunks]
        self.values = ValueHeads(latents, critic, net.ortho_init)
        self.costs = nn.ModuleList([CostHead(widths[self.cost_trunk], net)] if self.cost_trunk else [])

    def initial_memory(self, batch: int) -> Memory:
        """The empty memory of so many environments: one flat tuple for all trunks, environments on axis 1 everywhere."""
        check_count("batch", batch)
        return tuple(state for name in self.trunks for state in self._trunk(name).memory.initial(batch))

    def unroll(
        self,
        obs: Observation,
        memory: Memory,
        start: Tensor,
        action_mask: Tensor | None = None,
        dropout: Tensor | None = None,
        explore: Tensor | None = None,
    ) -> tuple[Outputs, Memory]:
        """What the agent says about T rows, one after the other, and the memory after them.

        obs [T, B, ...], memory as `initial_memory` or an unroll gave it, start [T, B] bool: the memory is emptied before
        the row. action_mask [T, B, ΣK] bool; dropout [R, B, hidden] from `dropout_mask`; explore [B, D, A] standard normal.
        """
        self._check(obs, memory, start, dropout)
        latents: dict[str, Tensor] = {}
        after: Memory = ()
        at = layer = 0
        for name in self.trunks:
            trunk = self._trunk(name)
            states, depth = trunk.memory.states, trunk.memory.depth
            mask = None if dropout is None else dropout[layer : layer + depth]
            latents[name], own = trunk(obs, memory[at : at + states], start, mask)
            after, at, layer = after + own, at + states, layer + depth
        policy = self.policy(self.actor(latents[self.actor_trunk]), action_mask, explore)
        read = latents if self.critics_move_trunk else {name: latent.detach() for name, latent in latents.items()}
        own_latents = [net(read[name]) for net, name in zip(self.critics, self.critic_trunks, strict=True)]
        critics = self.values(own_latents)
        costs = [head(read[self.cost_trunk]) for head in self.costs] if self.cost_trunk else []
        return Outputs(policy, critics, torch.stack(costs) if costs else critics.new_zeros(0, *start.shape)), after

    forward = unroll

    def dropout_shape(self, batch: int) -> tuple[int, int, int] | None:
        """[R, B, hidden], R all recurrent layers of all trunks: the noise of `dropout_mask`; None without dropout."""
        nets = [self._trunk(name).memory for name in self.trunks]
        depth = sum(net.depth for net in nets)
        return (depth, batch, nets[0].width) if self.dropout and depth else None

    def dropout_mask(self, noise: Tensor) -> Tensor:
        """Uniform noise on [0, 1) as 0 or 1/(1 − p), to be held for an iteration (Gal & Ghahramani 2016)."""
        shape = self.dropout_shape(noise.shape[1])
        if shape is None or tuple(noise.shape) != shape:
            bad_shape("noise", noise, f"{list(shape) if shape else 'no noise at all'}: there is {self.dropout} dropout")
        return (noise >= self.dropout).to(noise.dtype) / (1 - self.dropout)

    def explore_shape(self, batch: int) -> tuple[int, int, int] | None:
        """[B, D, A]: the normal noise of held exploration; None where there is none."""
        return self.policy.explore_shape(batch)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once, by its owner: "critic/encoder", "critic/memory_0", "actor/head", "critic_0/head" …"""
        groups: dict[str, list[nn.Parameter]] = {}
        for name in self.trunks:
            trunk = self._trunk(name)
            groups[f"{name}/encoder"] = list(trunk.encoder.parameters())
            groups |= {f"{name}/memory_{i}": list(layer.parameters()) for i, layer in enumerate(trunk.memory.layers)}
        groups["actor/head"] = [*self.actor.parameters(), *self.policy.parameters()]
        for i, (net, head) in enumerate(zip(self.critics, self.values.heads, strict=True)):
            groups[f"critic_{i}/head"] = [*net.parameters(), *head.parameters()]
        groups["cost/head"] = list(self.costs.parameters())
        return {name: parameters for name, parameters in groups.items() if parameters}

    def _trunk(self, name: str) -> Trunk:
        return cast(Trunk, self.trunks[name])

    def _check(self, obs: Observation, memory: Memory, start: Tensor, dropout: Tensor | None) -> None:
        first = next(iter(obs.values())) if isinstance(obs, Mapping) else obs
        if not isinstance(start, Tensor) or start.dtype != torch.bool:
            kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
            raise InputError(f"start is {kind}; needs a bool tensor, true where the memory is empty before the row")
        if isinstance(first, Tensor) and start.shape != first.shape[:2]:
            bad_shape("start", start, f"{list(first.shape[:2])} (time and environments of obs)")
        states = sum(self._trunk(name).memory.states for name in self.trunks)
        if len(memory) != states:
            raise InputError(f"memory has {len(memory)} tensors; needs {states}: start from agent.initial_memory(batch)")
        if dropout is not None and tuple(dropout.shape) != (shape := self.dropout_shape(start.shape[1])):
            bad_shape("dropout", dropout, f"{list(shape) if shape else 'None: the agent has no dropout'}")


def _critic_trunks(kind: str, count: int) -> list[str]:
    """The trunk of each critic."""
    return [{"shared": "shared", "actor_critic": "critic", "each": f"critic_{i}"}[kind] for i in range(count)]
