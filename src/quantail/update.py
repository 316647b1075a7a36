"""Learning: sequences in, gradient steps, statistics out. Only weights and optimizer moments change, and only here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantail import ranks
from quantail.config import Config, PpoConfig
from quantail.errors import ConfigError
from quantail.estimate import Batch
from quantail.functional.checks import free_to_look
from quantail.losses import Knobs
from quantail.nets.agent import Memory
from quantail.optim.schedule import set_rates
from quantail.rollout import chunks
from quantail.stepper import Pick, Sequences, Stepper
from quantail.stops import PATIENCE, RULES, Stops, after_epoch, start_stops
from quantail.streams import normal
from quantail.trees import tree_map


class Learned(NamedTuple):
    """What an update did. The properties read the device."""

    names: tuple[str, ...]
    values: Tensor  # [steps, names] float64: statistics of each optimizer step, also of one that was not taken
    finite: Tensor  # [steps, suspects] bool
    suspects: tuple[str, ...]  # what a step that changed nothing is blamed on
    stops: Stops
    batches: int  # of an epoch
    note: str = ""  # where the fault came from, if that is known

    @property
    def rows(self) -> tuple[tuple[str, ...], Tensor]:
        """Names and values of the statistics."""
        return self.names, self.values

    @property
    def steps(self) -> list[dict[str, Tensor]]:
        """The statistics, step by step."""
        return [dict(zip(self.names, row.unbind(), strict=True)) for row in self.values]

    @property
    def stopped(self) -> str:
        """ "", or the rule of the KL that ended it early: absolute, consecutive, fraction."""
        rule = RULES[int(self.stops.rule)]
        return "" if rule == RULES[PATIENCE] else rule

    @property
    def void_steps(self) -> int:
        """Optimizer steps in a row, up to the last, that changed nothing."""
        return int(self.stops.void_steps)

    @property
    def epochs(self) -> int:
        """Passes over the rollout that were begun."""
        return -(-int(self._column("counted").sum()) // self.batches)

    @property
    def culprit(self) -> str:
        """The first tensor of the first void step that was not finite; or nothing."""
        void = self._column("void")
        if not bool(void.any()):
            return ""
        broken = ~self.finite[int(void.argmax())]
        return self.suspects[int(broken.to(torch.int8).argmax())] + self.note

    def _column(self, name: str) -> Tensor:
        return self.values[:, self.names.index(name)]


def sequences(batch: Batch, memory: Mapping[int, Memory], dropout: Tensor | None, ppo: PpoConfig) -> list[Sequences]:
    """The rollout as training sequences, those of equal shape together; a single chunk is the rollout itself, not a copy."""
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for begin, learn_from, end in chunks(len(batch.advantage), ppo):
        alike.setdefault((learn_from - begin, end - begin), []).append((begin, end))
    found = []
    for (burn_in, _), spans in alike.items():
        rows = tree_map(lambda x, spans=spans: torch.cat([x[begin:end] for begin, end in spans], 1), batch)
        before = tree_map(lambda *parts: torch.cat(parts, 1), *(memory[begin] for begin, _ in spans))
        masks = None if dropout is None else torch.cat([dropout] * len(spans), 1)
        found.append(Sequences(rows, before, burn_in, batch.advantage.shape[1], masks))
    return found


def update(
    step: Stepper, groups: Sequence[Sequences], order: torch.Generator, knobs: Knobs, *, epochs: int, void_steps: int = 0
) -> Learned:
    """Passes over the sequences in random mini-batches, until done, stopped by the KL, or out of patience.

    Where looking at the device would mean to wait for it, a stop is not seen: the steps that follow it move nothing.
    """
    agent, config = step.agent, step.config
    set_rates(step.optimizer, knobs.learning_rate, config.optim)
    check_parts(groups, config)
    stops, done, batches = start_stops(order.device, void_steps), [], 0
    names: tuple[str, ...] = ()
    for _ in range(epochs):
        chosen = list(picks(groups, order, config.ppo, entropy_noise=agent.policy.needs_entropy_noise))
        batches = len(chosen)
        for pick in chosen:
            names, values, finite, stops = step(pick, knobs, stops)
            done.append((values, finite))
            if seen(stops):
                break
        stops = after_epoch(stops, config.kl)
        if seen(stops):
            break
    values, finite = (torch.stack(rows) for rows in zip(*done, strict=True))
    return Learned(names, values, finite, step.suspects(names), stops, batches)


def seen(stops: Stops) -> bool:
    """Whether a rule has spoken, as far as that can be known for nothing."""
    return free_to_look(stops.rule) and bool(stops.rule)


def picks(
    groups: Sequence[Sequences], order: torch.Generator, ppo: PpoConfig, *, entropy_noise: bool = False
) -> Iterator[Pick]:
    """Every sequence once, in random order, for successive optimizer steps; a remainder is a smaller one."""
    chosen: list[tuple[Sequences, Tensor]] = []
    for group in groups:
        length, count = len(group.rows.advantage), group.rows.advantage.shape[1] * ranks.count()
        size = max(1, min(ppo.batch_size // (length - group.burn_in), count))
        shuffled = torch.randperm(count, generator=order, device=order.device)
        chosen += [(group, index) for index in torch.split(shuffled, size)]
    for i in (
        torch.randperm(len(chosen), generator=order, device=order.device).tolist() if len(groups) > 1 else range(len(chosen))
    ):
        group, index = chosen[i]
        action, noise = group.rows.action, None
        if entropy_noise:  # for the whole step at once: its parts see what they would have seen together
            rows = (1, len(action) - group.burn_in, len(index), *action.shape[2:])
            noise = normal(rows, order, action.dtype)
        mine, kept = ranks.chosen(index, group.envs)
        noise = noise if noise is None or kept is None else noise[:, :, kept]
        yield Pick(group, mine, noise) if len(mine) else idle(group, noise)


def idle(group: Sequences, noise: Tensor | None) -> Pick:
    """Where none of a batch's sequences is this process's own: one that weighs nothing, for all take every step together."""
    nothing = torch.zeros_like(group.rows.policy_weight)
    weightless = group._replace(rows=group.rows._replace(policy_weight=nothing, value_weight=nothing))
    first = torch.zeros(1, dtype=torch.int64, device=nothing.device)
    return Pick(weightless, first, None if noise is None else noise.new_zeros(*noise.shape[:2], 1, *noise.shape[3:]))


def check_parts(groups: Sequence[Sequences], config: Config) -> None:
    """Two micro-batches are compared only where a batch holds two sequences, and where one process has them all."""
    if config.optim.variance.estimator == "two_batch" and ranks.count() > 1:
        raise ConfigError(
            f"optim.variance.estimator=two_batch compares the parts of a batch, of which {ranks.count()} processes have some "
            "each; use elementwise, or one process"
        )
    most = max(min(config.ppo.batch_size // (len(g.rows.advantage) - g.burn_in), g.rows.advantage.shape[1]) for g in groups)
    if config.optim.variance.estimator == "two_batch" and most < 2:
        raise ConfigError(
            "optim.variance.estimator=two_batch compares the parts of a batch, and ppo.batch_size="
            f"{config.ppo.batch_size} holds one sequence; raise it to two sequences or more, or use elementwise"
        )
