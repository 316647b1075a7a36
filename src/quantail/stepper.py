"""One optimizer step: the sequences of a mini-batch in, weights moved, statistics out, and no look at the device on the way."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantail import ranks
from quantail.config import Config, PpoConfig
from quantail.estimate import Batch
from quantail.losses import Knobs, LossTerm, Part, batch_loss
from quantail.nets.agent import Agent, Memory
from quantail.optim.gated import step_if
from quantail.optim.joint import scaler_of
from quantail.stops import GOES_ON, Stops, after_step, before_step
from quantail.trees import tree_map

Loss = Callable[[Part, Knobs], tuple[Tensor, dict[str, Tensor]]]  # of a part, with its statistics

# What a step that changed nothing is blamed on: the losses, in the order in which they are computed.
LOSSES = {
    "policy_gradient_loss": "the surrogate loss",
    "entropy": "the policy's entropy",
    "kl": "the policy's KL",
    "clone_loss": "the cloning loss",
    "value_loss_0": "the loss of critic 0",
    "value_loss_1": "the loss of critic 1",
    "cost_loss": "the loss of the cost critic",
}
THE_SUM = "the loss"


class Sequences(NamedTuple):
    """Sequences of one shape to learn from: L rows of time, S of them, and what was drawn for the whole iteration."""

    rows: Batch  # [L, S, ...]
    memory: Memory  # before the first row
    burn_in: int  # so many first rows only warm up the memory
    envs: int  # S is a multiple of it: sequences of one span of time after those of another
    dropout: Tensor | None  # [R, S, H]


class Pick(NamedTuple):
    """The sequences of one optimizer step."""

    group: Sequences
    chosen: Tensor  # [n] int64, which of them
    entropy_noise: Tensor | None  # [1, L, n, A] of the rows after the burn-in


class Stepped(NamedTuple):
    """What a step did."""

    names: tuple[str, ...]
    values: Tensor  # [names] float64, its statistics
    finite: Tensor  # [suspects] bool, which of those were
    stops: Stops  # what the rules have seen


class Owners(NamedTuple):
    """Who owns which parameters: each layer, and all that belongs to one trunk, memory or head together."""

    names: tuple[str, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    labels: tuple[str, ...]  # of the parameters
    shares: Tensor  # [names, parameters] 1 where it is theirs


class Stepper:
    """One optimizer step: the loss of a mini-batch, its gradient, and a step if nothing is broken and no rule says stop.

    It waits for no device, so that a captured graph can do it; what it learned is in weights and moments alone.
    """

    def __init__(
        self, agent: Agent, optimizer: torch.optim.Optimizer, config: Config, loss_terms: Sequence[LossTerm] = ()
    ) -> None:
        self.agent, self.optimizer, self.config, self.owners = agent, optimizer, config, owners_of(agent)
        self.loss_of: Loss = lambda part, knobs: batch_loss(agent, part, knobs, config, loss_terms)

    def __call__(self, pick: Pick, knobs: Knobs, stops: Stops) -> Stepped:
        """Take the step, if it may be taken."""
        config, scaler = self.config, scaler_of(self.optimizer)
        runs = stops.rule == GOES_ON
        after = None if scaler is None else scaler.parts_of_a_batch()
        stats = accumulate(self.agent, parts_of(pick, config.ppo), knobs, self.loss_of, after)
        stats = of_all_ranks(stats, self.owners)
        norms = gradient_norms(self.owners)
        finite = torch.cat([torch.stack([stats[name].isfinite() for name in losses_of(stats)]), norms.isfinite()])
        fine = stats["loss"].isfinite() & norms.isfinite().all()
        stops, go = before_step(stops, stats["kl"], fine, config.kl)
        stats |= {"void": (runs & ~fine).to(stats["loss"]), "counted": runs.to(stats["loss"])}
        stats |= {"kl_smooth": stops.smooth.to(stats["kl"])}
        stats |= apply_gradients(self.optimizer, self.owners, norms, config, go)
        values = torch.stack([value.detach().double() for value in stats.values()])
        return Stepped(tuple(stats), values, finite, after_step(stops, fine, config.kl, config.optim.patience))

    def suspects(self, stats: Iterable[str]) -> tuple[str, ...]:
        """What the flags of a step stand for, losses before gradients."""
        losses = [LOSSES.get(name, f"loss {name.replace('_', ' ')}") for name in losses_of(stats)[:-1]]
        return (*losses, THE_SUM, *(f"the gradient of {label}" for label in self.owners.labels))


def losses_of(stats: Iterable[str]) -> list[str]:
    """Which statistics are losses, in the order in which they are computed, the sum of all last."""
    known = list(stats)
    return [*(name for name in LOSSES if name in known), *(name for name in known if name.startswith("term_")), "loss"]


def parts_of(pick: Pick, ppo: PpoConfig) -> list[Part]:
    """The chosen sequences as the parts of one optimizer step, each knowing the weight of them all."""
    group, index, noise = pick
    weights = (group.rows.policy_weight, group.rows.value_weight)
    sums = (ranks.total(weight[group.burn_in :, index].sum()) for weight in weights)
    totals = [torch.clamp_min(weight, torch.finfo(weight.dtype).tiny) for weight in sums]
    count = min(ppo.micro_batches, len(index))
    places = torch.arange(len(index), device=index.device).tensor_split(count)
    return [
        Part(
            rows=tree_map(lambda x, some=some: x.index_select(1, some), group.rows),
            memory=tree_map(lambda x, some=some: x.index_select(1, some), group.memory),
            burn_in=group.burn_in,
            policy_total=totals[0],
            value_total=totals[1],
            dropout=None if group.dropout is None else group.dropout[:, some],
            entropy_noise=None if noise is None else noise[:, :, place],
        )
        for some, place in zip(index.tensor_split(count), places, strict=True)
    ]


def accumulate(
    agent: Agent, parts: Sequence[Part], knobs: Knobs, loss_of: Loss, after_part: Callable[[Tensor], None] | None = None
) -> dict[str, Tensor]:
    """Gradients of one optimizer step, part by part: equal to those of all rows at once. Returns the statistics.

    `after_part` is told each part's share of the step's rows, as the critics weigh them, when its gradient has been added.
    """
    agent.zero_grad(set_to_none=True)
    totals: dict[str, Tensor] = {}
    for part in parts:
        loss, stats = loss_of(part, knobs)
        loss.backward()  # type: ignore[no-untyped-call]
        if after_part is not None:
            after_part(part.rows.value_weight[part.burn_in :].sum() / part.value_total)
        stats["loss"] = loss.detach()
        for name, value in stats.items():
            join = torch.maximum if name.endswith("_max") else torch.minimum if name.endswith("_min") else torch.add
            totals[name] = join(totals[name], value) if name in totals else value
    return totals


def of_all_ranks(stats: dict[str, Tensor], owners: Owners) -> dict[str, Tensor]:
    """The statistics of all processes together, and their gradients summed, in place."""
    if ranks.count() == 1:
        return stats
    gradients = [p.grad for p in owners.parameters if p.grad is not None]
    summed = ranks.total(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = torch.split(summed, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return dict(zip(stats, ranks.joint(tuple(stats), torch.stack([value.double() for value in stats.values()])), strict=True))


def owners_of(agent: Agent) -> Owners:
    """The agent's `parameter_groups`, and "critic_0" for all of "critic_0/…", "actor/memory" for all of "actor/memory_…"."""
    label = {parameter: name for name, parameter in agent.named_parameters()}
    place = {parameter: i for i, parameter in enumerate(label)}
    shares: dict[str, Tensor] = {}
    for group, members in agent.parameter_groups().items():
        owner, _, part = group.partition("/")
        for name in dict.fromkeys((owner, f"{owner}/memory" if part.startswith("memory_") else group, group)):
            mine = shares.setdefault(name, torch.zeros(len(place), dtype=torch.float64, device=members[0].device))
            mine[[place[parameter] for parameter in members]] = 1.0
    return Owners(tuple(shares), tuple(label), tuple(label.values()), torch.stack(list(shares.values())))


def gradient_norms(owners: Owners) -> Tensor:
    """The norm of each parameter's gradient, 0 where there is none: [parameters]."""
    gradients = [p.new_zeros(()) if p.grad is None else p.grad for p in owners.parameters]
    return torch.stack(list(torch._foreach_norm(gradients)))


def apply_gradients(
    optimizer: torch.optim.Optimizer, owners: Owners, norms: Tensor, config: Config, go: Tensor
) -> dict[str, Tensor]:
    """Clip and step; or, without `go`, nothing moves, neither weights nor moments nor counters. Norms before and after.

    The noise is measured in the gradient as it came; a factor that applies to the gradient comes before the clip.
    """
    total, limit, scaler = torch.linalg.vector_norm(norms.double()), config.optim.max_grad_norm, scaler_of(optimizer)
    kept = torch.ones_like(total)

    bound = limit if limit is not None and limit > 0 else None

    def shorten() -> None:
        nonlocal kept
        if scaler is not None:
            scaler.observe()
            kept = scaler.scale_gradients()
        if bound is not None:
            torch.nn.utils.clip_grads_with_norm_(owners.parameters, bound, total * kept)

    step_if(go, optimizer, owners.parameters, shorten)
    if bound is not None:
        kept = kept * (bound / (total * kept + 1e-6)).clamp_max(1.0)
    each = (owners.shares @ norms.double().square()).sqrt()
    return {
        "grad_norm": total,
        "grad_norm_clipped": total * kept,
        "taken": go.to(total),
        **{f"grad_norm/{name}": norm for name, norm in zip(owners.names, each, strict=True)},
        **{f"grad_norm_clipped/{name}": norm for name, norm in zip(owners.names, each * kept, strict=True)},
    }
