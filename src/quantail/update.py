"""Learning: sequences in, gradient steps, statistics out. Only weights and optimizer moments change, and only here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, KlConfig, PpoConfig
from quantail.errors import ConfigError
from quantail.estimate import Batch
from quantail.losses import Knobs, LossTerm, Part, batch_loss
from quantail.nets.agent import Agent, Memory
from quantail.optim.joint import scaler_of
from quantail.optim.schedule import set_rates
from quantail.rollout import Noise, chunks
from quantail.streams import normal
from quantail.trees import tree_map

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


class Sequences(NamedTuple):
    """Sequences of one shape to learn from: L rows of time, S of them, and what was drawn for the whole iteration."""

    rows: Batch  # [L, S, ...]
    memory: Memory  # before the first row
    burn_in: int  # so many first rows only warm up the memory
    dropout: Tensor | None  # [R, S, H]


class Learned(NamedTuple):
    """What an update did."""

    steps: list[dict[str, Tensor]]  # statistics of each optimizer step, also of one that was not taken: 0-d tensors
    stopped: str  # "", or the rule that ended it early: absolute, consecutive, fraction
    void_steps: int  # optimizer steps in a row, up to the last, that changed nothing
    culprit: str  # the first non-finite tensor of the first void step
    epochs: int  # passes over the rollout that were begun


class Owners(NamedTuple):
    """Who owns which parameters: each layer, and all that belongs to one trunk, memory or head together."""

    names: tuple[str, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    labels: tuple[str, ...]  # of the parameters
    shares: Tensor  # [names, parameters] 1 where it is theirs


def sequences(batch: Batch, memory: Mapping[int, Memory], noise: Noise, ppo: PpoConfig) -> list[Sequences]:
    """The rollout as training sequences, those of equal shape together; a single chunk is the rollout itself, not a copy."""
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for begin, learn_from, end in chunks(len(batch.advantage), ppo):
        alike.setdefault((learn_from - begin, end - begin), []).append((begin, end))
    found = []
    for (burn_in, _), spans in alike.items():
        rows = tree_map(lambda x, spans=spans: torch.cat([x[begin:end] for begin, end in spans], 1), batch)
        before = tree_map(lambda *parts: torch.cat(parts, 1), *(memory[begin] for begin, _ in spans))
        dropout = None if noise.dropout is None else torch.cat([noise.dropout] * len(spans), 1)
        found.append(Sequences(rows, before, burn_in, dropout))
    return found


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequences],
    order: torch.Generator,
    knobs: Knobs,
    config: Config,
    loss_terms: Sequence[LossTerm] = (),
    *,
    epochs: int,
    void_steps: int = 0,
) -> Learned:
    """Passes over the sequences in random mini-batches, until done, stopped by the KL, or out of patience."""
    set_rates(optimizer, float(knobs.learning_rate), config.optim)
    scaler = scaler_of(optimizer)
    check_parts(groups, config)
    steps: list[dict[str, Tensor]] = []
    watch, owners, culprit = KlWatch(config.kl), owners_of(agent), ""
    for epoch in range(1, epochs + 1):
        for parts in minibatches(groups, order, config.ppo, entropy_noise=agent.policy.needs_entropy_noise):
            after = None if scaler is None else scaler.parts_of_a_batch()
            stats = accumulate(agent, parts, knobs, config, loss_terms, after)
            norms = gradient_norms(owners)
            bad = first_not_finite(stats, owners, norms)
            far = not bad and watch.too_far(stats["kl"])
            stats |= {"void": torch.full_like(stats["loss"], float(bool(bad)))} | watch.statistics(bad)
            steps.append(stats | apply_gradients(optimizer, owners, norms, config, go=not (bad or far)))
            if far:
                return Learned(steps, "absolute", void_steps, culprit, epoch)
            void_steps, culprit = (void_steps + 1, culprit or bad) if bad else (0, culprit)
            if void_steps >= config.optim.patience:
                return Learned(steps, "", void_steps, culprit, epoch)
            if watch.too_long():
                return Learned(steps, "consecutive", void_steps, culprit, epoch)
        if watch.too_often():
            return Learned(steps, "fraction", void_steps, culprit, epoch)
    return Learned(steps, "", void_steps, culprit, epochs)


class KlWatch:
    """The three stop rules on the KL of successive batches; absolute, consecutive, share of an epoch."""

    def __init__(self, config: KlConfig) -> None:
        self.config = config
        self.smooth: Tensor | None = None
        self.streak = 0
        self.exceeded: list[bool] = []

    def too_far(self, kl: Tensor) -> bool:
        """Look at one batch's KL, before its step; whether it alone is reason to stop."""
        target, keep = self.config.target, self.config.smoothing
        self.smooth = kl if self.smooth is None else keep * self.smooth + (1 - keep) * kl
        if target is None:
            return False
        exceeds = float(self.smooth) > target
        self.streak = self.streak + 1 if exceeds else 0
        self.exceeded.append(exceeds)
        return float(kl) > self.config.absolute_factor * target

    def statistics(self, bad: str) -> dict[str, Tensor]:
        """The smoothed KL, unless this step's was of no use."""
        return {} if bad or self.smooth is None else {"kl_smooth": self.smooth}

    def too_long(self) -> bool:
        """Whether too many batches in a row were above the target."""
        return 0 < self.config.consecutive <= self.streak

    def too_often(self) -> bool:
        """Whether too large a share of the epoch was; begins the next epoch's count."""
        share = sum(self.exceeded) / len(self.exceeded) if self.exceeded else 0.0
        self.exceeded = []
        return share > self.config.fraction


def minibatches(
    groups: Sequence[Sequences], order: torch.Generator, ppo: PpoConfig, *, entropy_noise: bool = False
) -> Iterator[list[Part]]:
    """Every sequence once, in random order, as the parts of successive optimizer steps; a remainder is a smaller one."""
    picks: list[tuple[Sequences, Tensor]] = []
    for group in groups:
        length, count = group.rows.advantage.shape
        size = max(1, min(ppo.batch_size // (length - group.burn_in), count))
        shuffled = torch.randperm(count, generator=order, device=order.device)
        picks += [(group, index) for index in torch.split(shuffled, size)]
    for i in (
        torch.randperm(len(picks), generator=order, device=order.device).tolist() if len(groups) > 1 else range(len(picks))
    ):
        group, index = picks[i]
        action, noise = group.rows.action, None
        if entropy_noise:  # for the whole step at once: its parts see what they would have seen together
            rows = (1, len(action) - group.burn_in, len(index), *action.shape[2:])
            noise = normal(rows, order, action.dtype)
        yield _parts(group, index, ppo.micro_batches, noise)


def accumulate(
    agent: Agent,
    parts: Sequence[Part],
    knobs: Knobs,
    config: Config,
    loss_terms: Sequence[LossTerm] = (),
    after_part: Callable[[Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """Gradients of one optimizer step, part by part: equal to those of all rows at once. Returns the statistics.

    `after_part` is told each part's share of the step's rows, as the critics weigh them, when its gradient has been added.
    """
    agent.zero_grad(set_to_none=True)
    totals: dict[str, Tensor] = {}
    for part in parts:
        loss, stats = batch_loss(agent, part, knobs, config, loss_terms)
        loss.backward()  # type: ignore[no-untyped-call]
        if after_part is not None:
            after_part(part.rows.value_weight[part.burn_in :].sum() / part.value_total)
        stats["loss"] = loss.detach()
        for name, value in stats.items():
            join = torch.maximum if name.endswith("_max") else torch.minimum if name.endswith("_min") else torch.add
            totals[name] = join(totals[name], value) if name in totals else value
    return totals


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


def first_not_finite(stats: Mapping[str, Tensor], owners: Owners, norms: Tensor) -> str:
    """The name of the first tensor of a step that is not finite, losses before gradients; or nothing."""
    if bool(stats["loss"].isfinite() & norms.isfinite().all()):
        return ""
    losses = {name: text for name, text in LOSSES.items() if name in stats}
    losses |= {name: f"loss {name.replace('_', ' ')}" for name in stats if name.startswith("term_")}
    named = ((text, stats[name]) for name, text in losses.items())
    gradients = ((f"the gradient of {label}", norm) for label, norm in zip(owners.labels, norms, strict=True))
    return next((text for text, value in (*named, *gradients) if not bool(value.isfinite())), "the loss")


def apply_gradients(
    optimizer: torch.optim.Optimizer, owners: Owners, norms: Tensor, config: Config, *, go: bool
) -> dict[str, Tensor]:
    """Clip and step; or, without `go`, nothing moves, neither weights nor moments nor counters. Norms before and after.

    The noise is measured in the gradient as it came; a factor that applies to the gradient comes before the clip.
    """
    total, limit, scaler = torch.linalg.vector_norm(norms.double()), config.optim.max_grad_norm, scaler_of(optimizer)
    kept = torch.ones_like(total)
    if go and scaler is not None:
        scaler.observe()
        kept = scaler.scale_gradients()
    scaled = total * kept
    if limit is not None and limit > 0:
        kept = kept * (limit / (scaled + 1e-6)).clamp_max(1.0)
    if go:
        if limit is not None and limit > 0:
            torch.nn.utils.clip_grads_with_norm_(owners.parameters, limit, scaled)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    each = (owners.shares @ norms.double().square()).sqrt()
    return {
        "grad_norm": total,
        "grad_norm_clipped": total * kept,
        "taken": torch.full_like(total, float(go)),
        **{f"grad_norm/{name}": norm for name, norm in zip(owners.names, each, strict=True)},
        **{f"grad_norm_clipped/{name}": norm for name, norm in zip(owners.names, each * kept, strict=True)},
    }


def check_parts(groups: Sequence[Sequences], config: Config) -> None:
    """Two micro-batches are compared only where a batch holds two sequences."""
    most = max(min(config.ppo.batch_size // (len(g.rows.advantage) - g.burn_in), g.rows.advantage.shape[1]) for g in groups)
    if config.optim.variance.estimator == "two_batch" and most < 2:
        raise ConfigError(
            "optim.variance.estimator=two_batch compares the parts of a batch, and ppo.batch_size="
            f"{config.ppo.batch_size} holds one sequence; raise it to two sequences or more, or use elementwise"
        )


def _parts(group: Sequences, index: Tensor, micro_batches: int, noise: Tensor | None) -> list[Part]:
    """The chosen sequences in so many parts, each knowing the weight of them all."""
    weights = (group.rows.policy_weight, group.rows.value_weight)
    totals = [torch.clamp_min(weight[group.burn_in :, index].sum(), torch.finfo(weight.dtype).tiny) for weight in weights]
    count = min(micro_batches, len(index))
    places = torch.arange(len(index), device=index.device).tensor_split(count)
    return [
        Part(
            rows=tree_map(lambda x, some=some: x[:, some], group.rows),
            memory=tree_map(lambda x, some=some: x[:, some], group.memory),
            burn_in=group.burn_in,
            policy_total=totals[0],
            value_total=totals[1],
            dropout=None if group.dropout is None else group.dropout[:, some],
            entropy_noise=None if noise is None else noise[:, :, place],
        )
        for some, place in zip(index.tensor_split(count), places, strict=True)
    ]
