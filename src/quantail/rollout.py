"""Collecting: environments + agent + carry -> rollout + carry.

Row t holds what the agent saw and did at time t. Row T serves the bootstrap and becomes row 0 of the next rollout, so the
carry is the state *before* it: memory, observation and flags of a row that has not been acted on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, PpoConfig
from quantail.envs.base import TensorEnv
from quantail.envs.contract import started, stepped
from quantail.functional.checks import free_to_look
from quantail.functional.moments import batch_moments, no_moments
from quantail.intake import ObservationMoments, bad_final, finite, real_parts, standardize_observation, zero_bad
from quantail.nets.agent import Agent, Memory, Outputs
from quantail.nets.memory import memory_sums
from quantail.risk import RiskState, Running, advance, start_risk, start_running
from quantail.trees import tree_map
from quantail.types import Moments, Observation, Scale, Step


class Carry(NamedTuple):
    """All that outlives an iteration besides weights, optimizer and knobs."""

    env_state: Any
    obs: Observation  # [B, ...] raw, the row that comes next
    start: Tensor  # [B] bool, whether that row starts an episode
    ended: Tensor  # [B] bool, whether the row before it ended one
    muted: Tensor  # [B] bool, whether the environment weighs nothing until its next start
    action_mask: Tensor | None  # [B, ΣK] bool
    memory: Memory
    episode_return: Tensor  # [B] of the running episode
    episode_length: Tensor  # [B]
    running: Running  # sums of raw gains that become outcomes
    obs_moments: ObservationMoments
    return_moments: Moments  # of the value targets, raw
    return_history: Moments  # [W] of the last iterations, newest last, where these are what is averaged
    scale: Scale  # in which the critics speak
    risk: RiskState
    iteration: int


class Rollout(NamedTuple):
    """T rows of B environments, and the row the bootstrap needs."""

    obs: Observation  # [T+1, B, ...] standardised once, so that replay sees what the actor saw
    start: Tensor  # [T+1, B] bool
    critics: Tensor  # [C, T+1, B, N] raw outputs, in the carry's scale
    costs: Tensor  # [K, T+1, B] what the cost critic says, in its own scale; K = 0 without one
    action: Tensor  # [T, B, ...] raw, before any squash
    log_prob: Tensor  # [T, B]
    policy: Any  # parameters of the action law, [T, B, ...] each
    action_mask: Tensor | None  # [T, B, ΣK] bool
    reward: Tensor  # [T, B] scaled
    pnl: Tensor  # [T, B] raw
    outcome: Tensor  # [T, B] float64, X of the risk horizon that completed in this row; NaN where none did
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    policy_weight: Tensor  # [T, B]
    value_weight: Tensor  # [T, B]
    final_critics: Tensor | None  # [C, T, B, N] of final observations, where the source gives them separately
    final_costs: Tensor | None  # [K, T, B] of the same
    memory: Mapping[int, Memory]  # before row t, for each t where a training chunk (or its burn-in) starts
    raw_moments: ObservationMoments  # of this rollout's raw observations, to merge after the update
    memory_sums: Tensor | None  # [T, 2, states, layers, B] Σ h and Σ h² over the memory after each row
    episode_return: Tensor  # [T, B] of the episode that ended in this row; NaN where none did, or where it was muted
    episode_length: Tensor  # [T, B]
    not_finite: Tensor  # [T, B, 3] bool: reward, pnl, next observation
    info: Mapping[str, Tensor]  # [T, B] each


class Noise(NamedTuple):
    """What one rollout draws."""

    act: Tensor  # [T, B, D] as the policy head asks: standard normal or uniform
    environment: Tensor  # [T, B, E] standard normal
    dropout: Tensor | None = None  # [R, B, H] masks, held over the iteration
    explore: Tensor | None = None  # [B, D, A] standard normal, held over the iteration


class Row(NamedTuple):
    """What is recorded at one time; the fields of `Rollout` without the time axis."""

    obs: Observation
    raw_obs: Observation
    start: Tensor
    critics: Tensor
    costs: Tensor
    action: Tensor
    log_prob: Tensor
    policy: Any
    action_mask: Tensor | None
    reward: Tensor
    pnl: Tensor
    outcome: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    policy_weight: Tensor
    value_weight: Tensor
    final_critics: Tensor | None
    final_costs: Tensor | None
    memory_sums: Tensor | None
    episode_return: Tensor
    episode_length: Tensor
    not_finite: Tensor
    info: Mapping[str, Tensor]


RowOf = Callable[[TensorEnv, Agent, Carry, Noise, Config], tuple[Row, Carry]]


def start_carry(env: TensorEnv, agent: Agent, noise: Tensor, config: Config) -> Carry:
    """The carry of environments just reset (noise [B, E]): memory zero, nothing seen, scale 1."""
    env_state, obs, first_mask = started(env, noise)
    obs, bad = zero_bad(obs)
    never, zero = torch.zeros_like(bad), torch.zeros(env.num_envs, device=bad.device)
    nothing = no_moments(device=bad.device)
    history = no_moments((config.critic.return_window,), device=bad.device)
    return Carry(
        env_state=env_state,
        obs=obs,
        start=~never,
        ended=never,
        muted=bad,
        action_mask=first_mask,
        memory=agent.initial_memory(env.num_envs),
        episode_return=zero,
        episode_length=zero,
        running=start_running(config.risk, env.num_envs, bad.device),
        obs_moments={name: no_moments(part.shape[1:], device=bad.device) for name, part in real_parts(obs).items()},
        return_moments=nothing,
        return_history=history,
        scale=Scale(nothing.mean, nothing.variance.sqrt()),
        risk=start_risk(config.risk, bad.device, env.reward_per_gain),
        iteration=0,
    )


@torch.no_grad()
def collect(
    env: TensorEnv, agent: Agent, carry: Carry, noise: Noise, config: Config, row_of: RowOf | None = None
) -> tuple[Rollout, Carry]:
    """As many rows as the noise has; agent and observation statistics stay as they are. `row_of`: another `collect_row`."""
    row_of = row_of or collect_row
    rows: list[Row] = []
    snapshots: dict[int, Memory] = {}
    starts = {begin for begin, _, _ in chunks(len(noise.act), config.ppo)}
    for t in range(len(noise.act)):
        if t in starts:
            snapshots[t] = carry.memory
        row, carry = row_of(env, agent, carry, noise._replace(act=noise.act[t], environment=noise.environment[t]), config)
        rows.append(row)
    last = standardize_observation(carry.obs, carry.obs_moments, config.input)
    bootstrap, _ = agent.unroll(_time_axis(last), carry.memory, carry.start[None], _mask_row(carry), dropout=noise.dropout)
    many = _stack(rows)
    parts = real_parts(many.raw_obs)
    rollout = Rollout(
        **{field: getattr(many, field) for field in Row._fields if field in Rollout._fields},
        memory=snapshots,
        raw_moments={name: batch_moments(part, (0, 1), many.value_weight) for name, part in parts.items()},
    )
    final = None if many.final_critics is None else many.final_critics.movedim(0, 1)
    return rollout._replace(
        obs=tree_map(lambda x, y: torch.cat([x, y[None]]), many.obs, last),
        start=torch.cat([many.start, carry.start[None]]),
        critics=torch.cat([many.critics.movedim(0, 1), bootstrap.critics], 1),
        costs=torch.cat([many.costs.movedim(0, 1), bootstrap.costs], 1),
        final_critics=final,
        final_costs=None if many.final_costs is None else many.final_costs.movedim(0, 1),
    ), carry._replace(iteration=carry.iteration + 1)


def chunks(steps: int, ppo: PpoConfig) -> list[tuple[int, int, int]]:
    """Training chunks of a rollout as (begin, learn_from, end): rows in front of `learn_from` only warm up the memory.

    A batch of at least n_steps rows takes whole environments, one chunk of all rows; a smaller one cuts time into pieces of
    batch_size rows, the last perhaps shorter.
    """
    length = min(ppo.batch_size, steps)
    return [(max(at - ppo.burn_in, 0), at, min(at + length, steps)) for at in range(0, steps, length)]


def collect_row(env: TensorEnv, agent: Agent, carry: Carry, noise: Noise, config: Config) -> tuple[Row, Carry]:
    """See, act, step: what is recorded at one time, and the carry of the next row. Noise act [B, D], environment [B, E]."""
    obs = standardize_observation(carry.obs, carry.obs_moments, config.input)
    outputs, memory = agent.unroll(
        _time_axis(obs), carry.memory, carry.start[None], _mask_row(carry), dropout=noise.dropout, explore=noise.explore
    )
    params = tree_map(lambda x: x[0], outputs.policy)
    action = agent.policy.sample(params, noise.act)
    env_state, step = stepped(env, carry.env_state, agent.policy.to_env(action), noise.environment)
    given = _weighed(step, carry, env.same_step)
    total, length = carry.episode_return + given.reward * given.valid, carry.episode_length + given.valid
    outcome, running = advance(carry.running, given.pnl * given.valid, length, given.done, given.weight > 0, config.risk)
    final = _final_outputs(agent, step, memory, carry, noise, config)
    row = Row(
        obs=obs,
        raw_obs=carry.obs,
        start=carry.start,
        critics=outputs.critics[:, 0],
        costs=outputs.costs[:, 0],
        action=action,
        log_prob=agent.policy.log_prob(params, action),
        policy=params,
        action_mask=_recorded_mask(carry, step),
        reward=given.reward * config.input.reward_scale,
        pnl=given.pnl,
        outcome=outcome,
        terminated=step.terminated,
        truncated=step.truncated,
        valid=given.valid,
        policy_weight=given.weight if step.policy_weight is None else given.weight * step.policy_weight,
        value_weight=given.weight,
        final_critics=None if final is None else final.critics[:, 0],
        final_costs=None if final is None else final.costs[:, 0],
        memory_sums=memory_sums(memory),
        episode_return=torch.where(given.done & ~given.bad, total, torch.nan),
        episode_length=length,
        not_finite=given.not_finite,
        info=step.info,
    )
    carry = carry._replace(env_state=env_state, obs=given.obs, action_mask=step.action_mask, memory=memory, running=running)
    return row, _next_flags(carry, given, (total, length), env.same_step)


class _Given(NamedTuple):
    """What a step gave, and what it weighs."""

    reward: Tensor  # [B] raw; 0 where it was not finite, as all that follows
    pnl: Tensor  # [B]
    obs: Observation  # [B, ...]
    not_finite: Tensor  # [B, 3] bool: reward, pnl, the observation reached
    done: Tensor  # [B] bool
    valid: Tensor  # [B] bool
    bad: Tensor  # [B] bool: weighs nothing until the environment's next start
    bad_obs: Tensor  # [B] bool: the row to come cannot be trusted
    weight: Tensor  # [B]


def _weighed(step: Step, carry: Carry, same_step: bool) -> _Given:
    """Numbers that are not finite made 0, and what of this row counts."""
    reward, pnl, obs, not_finite = finite(step)
    valid = torch.ones_like(carry.ended) if same_step else ~carry.ended
    bad, bad_obs, done = carry.muted, not_finite[:, 2], step.terminated | step.truncated
    if step.final_obs is not None or not free_to_look(not_finite) or bool(not_finite.any()):
        bad_end = bad_final(step, bad_obs)
        bad = bad | not_finite[:, :2].any(-1) | bad_end
        not_finite = torch.cat([not_finite[:, :2], (bad_obs | bad_end)[:, None]], 1)
    return _Given(reward, pnl, obs, not_finite, done, valid, bad, bad_obs, (valid & ~bad).to(reward.dtype))


def _next_flags(carry: Carry, given: _Given, running: tuple[Tensor, Tensor], same_step: bool) -> Carry:
    """What the next row is: the start of an episode, one without effect, one that weighs nothing."""
    done, start = given.done, given.done if same_step else carry.ended
    return carry._replace(
        start=start,
        ended=done,
        muted=(given.bad & ~start) | given.bad_obs,
        episode_return=torch.where(done, 0.0, running[0]),
        episode_length=torch.where(done, 0.0, running[1]),
    )


def _final_outputs(agent: Agent, step: Step, memory: Memory, carry: Carry, noise: Noise, config: Config) -> Outputs | None:
    """What is said at the final observation of a SAME_STEP source, from the memory after o_t: it is the next of its episode."""
    if step.final_obs is None:
        return None
    final = standardize_observation(zero_bad(step.final_obs)[0], carry.obs_moments, config.input)
    never = torch.zeros_like(carry.start)[None]
    return agent.unroll(_time_axis(final), memory, never, None, dropout=noise.dropout)[0]


def _stack(rows: Sequence[Row]) -> Row:
    """Rows over one another; a figure that a row does not report is NaN there."""
    known = {name: torch.full_like(value, torch.nan) for row in rows for name, value in row.info.items()}
    rows = [row._replace(info={**known, **row.info}) for row in rows]
    stacked: Row = tree_map(lambda *parts: torch.stack(parts), *rows)
    return stacked


def _time_axis(obs: Observation) -> Observation:
    row: Observation = tree_map(lambda x: x[None], obs)
    return row


def _mask_row(carry: Carry) -> Tensor | None:
    return None if carry.action_mask is None else carry.action_mask[None]


def _recorded_mask(carry: Carry, step: Step) -> Tensor | None:
    """Which choices this row allowed; where a reset said nothing about that, all are."""
    if carry.action_mask is None and step.action_mask is not None:
        return torch.ones_like(step.action_mask)
    return carry.action_mask
