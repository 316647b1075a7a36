"""Learning: sequences in, gradient steps, statistics out. Only weights and optimizer moments change, and only here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, KlConfig, PpoConfig
from quantail.estimate import Batch
from quantail.losses import Knobs, LossTerm, Part, batch_loss
from quantail.nets.agent import Agent, Memory
from quantail.rollout import Noise, chunks
from quantail.streams import normal
from quantail.trees import tree_map


class Sequences(NamedTuple):
    """Sequences of one shape to learn from: L rows of time, S of them, and what was drawn for the whole iteration."""

    rows: Batch  # [L, S, ...]
    memory: Memory  # before the first row
    burn_in: int  # so many first rows only warm up the memory
    dropout: Tensor | None  # [R, S, H]


class Learned(NamedTuple):
    """What an update did."""

    steps: list[dict[str, Tensor]]  # statistics of each optimizer step: 0-d tensors
    stopped: str  # "", or the rule that ended it early: absolute, consecutive, fraction
    void_steps: int  # optimizer steps in a row, up to the last, that changed nothing
    culprit: str  # the first non-finite tensor of the first void step


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
    for group in optimizer.param_groups:
        group["lr"] = float(knobs.learning_rate)
    steps: list[dict[str, Tensor]] = []
    watch, culprit = KlWatch(config.kl), ""
    for _ in range(epochs):
        for parts in minibatches(groups, order, config.ppo):
            stats = accumulate(agent, parts, order, knobs, config, loss_terms)
            bad = first_not_finite(agent, stats["loss"])
            if not bad and watch.too_far(stats["kl"]):
                return Learned(steps, "absolute", void_steps, culprit)
            steps.append(stats | apply_gradients(agent, optimizer, config, skip=bool(bad)))
            void_steps, culprit = (void_steps + 1, culprit or bad) if bad else (0, culprit)
            if void_steps >= config.optim.patience:
                return Learned(steps, "", void_steps, culprit)
            if watch.too_long():
                return Learned(steps, "consecutive", void_steps, culprit)
        if watch.too_often():
            return Learned(steps, "fraction", void_steps, culprit)
    return Learned(steps, "", void_steps, culprit)


class KlWatch:
    """The three stop rules on the KL of successive batches; absolute, consecutive, share of an epoch."""

    def __init__(self, config: KlConfig) -> None:
        self.config = config
        self.smooth: float | None = None
        self.streak = 0
        self.exceeded: list[bool] = []

    def too_far(self, kl: Tensor) -> bool:
        """Look at one batch's KL, before its step; whether it alone is reason to stop."""
        target = self.config.target
        if target is None:
            return False
        raw, keep = float(kl), self.config.smoothing
        self.smooth = raw if self.smooth is None else keep * self.smooth + (1 - keep) * raw
        exceeds = self.smooth > target
        self.streak = self.streak + 1 if exceeds else 0
        self.exceeded.append(exceeds)
        return raw > self.config.absolute_factor * target

    def too_long(self) -> bool:
        """Whether too many batches in a row were above the target."""
        return 0 < self.config.consecutive <= self.streak

    def too_often(self) -> bool:
        """Whether too large a share of the epoch was; begins the next epoch's count."""
        share = sum(self.exceeded) / len(self.exceeded) if self.exceeded else 0.0
        self.exceeded = []
        return share > self.config.fraction


def minibatches(groups: Sequence[Sequences], order: torch.Generator, ppo: PpoConfig) -> Iterator[list[Part]]:
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
        yield _parts(group, index, ppo.micro_batches)


def accumulate(
    agent: Agent,
    parts: Sequence[Part],
    order: torch.Generator,
    knobs: Knobs,
    config: Config,
    loss_terms: Sequence[LossTerm],
) -> dict[str, Tensor]:
    """Gradients of one optimizer step, part by part: equal to those of all rows at once. Returns the statistics."""
    agent.zero_grad(set_to_none=True)
    totals: dict[str, Tensor] = {}
    for part in parts:
        learned = part.rows.action[part.burn_in :]
        noise = normal(learned.shape, order, learned.dtype)[None] if agent.policy.needs_entropy_noise else None
        loss, stats = batch_loss(agent, part, noise, knobs, config)
        share = (part.rows.policy_weight[part.burn_in :].sum() / part.policy_total).detach()
        for term in loss_terms:
            loss = loss + share * term(agent, part.rows, knobs)
        loss.backward()  # type: ignore[no-untyped-call]
        stats["loss"] = loss.detach()
        for name, value in stats.items():
            seen = totals.get(name, torch.zeros_like(value))
            totals[name] = torch.maximum(seen, value) if name.endswith("_max") else seen + value
    return totals


def first_not_finite(agent: Agent, loss: Tensor) -> str:
    """The name of the first tensor of a step that is not finite, or nothing."""
    gradients = [(name, p.grad) for name, p in agent.named_parameters() if p.grad is not None]
    if bool(torch.stack([loss.isfinite(), *(gradient.isfinite().all() for _, gradient in gradients)]).all()):
        return ""
    return next((f"the gradient of {name}" for name, g in gradients if not bool(g.isfinite().all())), "the loss")


def apply_gradients(agent: Agent, optimizer: torch.optim.Optimizer, config: Config, *, skip: bool) -> dict[str, Tensor]:
    """Clip and step, unless the gradients are not finite: then nothing moves, neither weights nor moments."""
    gradients = [p.grad for p in agent.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    limit = config.optim.max_grad_norm
    clipped = norm
    if limit is not None and limit > 0:
        torch.nn.utils.clip_grads_with_norm_(agent.parameters(), limit, norm)
        clipped = norm.clamp_max(limit)
    if not skip:
        optimizer.step()
    return {"grad_norm": norm, "grad_norm_clipped": clipped, "void": torch.full_like(norm, float(skip))}


def _parts(group: Sequences, index: Tensor, micro_batches: int) -> list[Part]:
    """The chosen sequences in so many parts, each knowing the weight of them all."""
    weights = (group.rows.policy_weight, group.rows.value_weight)
    totals = [torch.clamp_min(weight[group.burn_in :, index].sum(), torch.finfo(weight.dtype).tiny) for weight in weights]
    return [
        Part(
            rows=tree_map(lambda x, some=some: x[:, some], group.rows),
            memory=tree_map(lambda x, some=some: x[:, some], group.memory),
            burn_in=group.burn_in,
            policy_total=totals[0],
            value_total=totals[1],
            dropout=None if group.dropout is None else group.dropout[:, some],
        )
        for some in index.tensor_split(min(micro_batches, len(index)))
    ]
