"""Risk that reaches the policy: from outcomes X to the charge for a bad one, and to the price that keeps a limit.

An outcome is a sum of raw gains over a step, a window of rows or an episode. The latest outcomes are the sample; ν, the
average of its α-quantile, says where the tail begins, and an outcome below it is charged (ν − x)⁺/α where it completes. The
charges have a critic of their own, and its advantages are taken from the reward's. What the reward critic predicts of the tail
drives nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, RiskConfig
from quantail.functional.moments import no_moments
from quantail.functional.risk import (
    PidGains,
    PidState,
    blend_advantages,
    cvar_of_samples,
    penalize_advantages,
    pid_start,
    pid_step,
    ru_cost,
    var_of_samples,
)
from quantail.types import Moments, Scale

TELLING = 10  # outcomes in the tail, below which its mean is mostly luck
SETTLED = 9  # the iteration after which a sample that is still so small is told of, once
KEPT = 2**14  # outcomes, the latest; the tail of more is not known better than anything else is
WILD = 5.0  # deviations beyond which a violation counts no more: a price that leaps teaches nothing


class Running(NamedTuple):
    """Sums of raw gains that are under way."""

    total: Tensor  # [B] float64 of the running episode
    window: Tensor  # [W, B] float64 the latest gains, newest last; no rows where no window is asked for


class RiskState(NamedTuple):
    """What is known of the outcomes, and what their tail costs at present."""

    alpha: float  # of the objective at present
    unit: float  # reward per unit of gain
    outcomes: Tensor  # [K] float64, newest last; NaN where none has been yet
    recent: Tensor  # [K] float64, 1 for those that are the sample
    nu: Tensor  # scalar: the α-quantile, averaged; NaN before the first outcome
    shortfall: Tensor  # scalar: the sample's mean (ν − x)⁺/α
    pid: PidState
    multiplier: Tensor  # scalar: the price of risk that keeps the limit
    moments: Moments  # of the charges' sums, as the cost critic learns them
    scale: Scale  # in which the cost critic speaks


class Figures(NamedTuple):
    """The sample in numbers, all scalars; NaN where there is no outcome."""

    cvar: Tensor  # the mean of the worst α
    mean: Tensor
    std: Tensor
    tail_samples: Tensor  # so many outcomes carry `cvar`


def start_running(risk: RiskConfig, num_envs: int, device: torch.device) -> Running:
    """Nothing gained yet."""
    rows = risk.window if risk.horizon == "window" else 0
    zero = torch.zeros(rows + 1, num_envs, dtype=torch.float64, device=device)
    return Running(zero[0], zero[1:].clone())


def start_risk(risk: RiskConfig, device: torch.device, unit: float = 1.0) -> RiskState:
    """Nothing seen yet. `unit`: how much reward a unit of gain is."""
    kept = max(risk.memory or risk.least, KEPT)
    zero, nothing = torch.zeros((), dtype=torch.float64, device=device), no_moments(device=device)
    return RiskState(
        alpha=risk.alpha,
        unit=unit,
        outcomes=torch.full((kept,), torch.nan, dtype=torch.float64, device=device),
        recent=zero.expand(kept).clone(),
        nu=torch.full_like(zero, torch.nan),
        shortfall=zero,
        pid=pid_start(risk.delay, device=device),
        multiplier=zero.clone(),
        moments=nothing,
        scale=Scale(nothing.mean, nothing.variance.sqrt()),
    )


def advance(
    running: Running, gain: Tensor, length: Tensor, done: Tensor, counts: Tensor, risk: RiskConfig
) -> tuple[Tensor, Running]:
    """The outcomes that complete in a row, [B], NaN where none does; and the sums after it.

    gain [B] (0 in a row without effect), length [B] rows of the episode with this one, done [B] whether it ends here, counts
    [B] whether the row weighs anything: an episode in which a number was not finite has no outcome.
    """
    gain = gain.double()
    total = running.total + gain
    window = torch.cat([running.window, gain[None]])[-len(running.window) :] if len(running.window) else running.window
    outcome, complete = {
        "step": (gain, counts),
        "window": (window.sum(0), counts & (length >= risk.window)),
        "episode": (total, counts & done),
    }[risk.horizon]
    return torch.where(complete, outcome, torch.nan), Running(torch.where(done, 0.0, total), window)


def tail_share(done: float, risk: RiskConfig) -> float:
    """The α of the objective after a share of training: from 1 linearly to `alpha` (Greenberg et al. 2022), or that at once."""
    return 1 - (1 - risk.alpha) * (min(done / risk.alpha_decay, 1.0) if risk.alpha_decay else 1.0)


def assessed(state: RiskState, outcome: Tensor, risk: RiskConfig, done: float = 1.0) -> RiskState:
    """What is known after one more rollout's outcomes [T, B], at a share of training: the sample, ν, and the price.

    The sample is what completed in this rollout, and older outcomes as far as those are fewer than `memory`. A limit is judged
    at the config's own α, also while that of the objective still shrinks.
    """
    alpha = tail_share(done, risk)
    state = remembered(state, outcome.flatten().double(), risk)
    x, weight = state.outcomes, state.recent
    quantile = var_of_samples(x, alpha, weight)
    nu = torch.where(state.nu.isnan(), quantile, torch.lerp(state.nu, quantile, risk.nu_rate))
    nu = torch.where(quantile.isnan(), state.nu, nu)
    known = weight > 0
    short = torch.where(known, ru_cost(torch.where(known, x, nu), nu, alpha), 0.0)
    shortfall = short.sum() / known.sum().clamp_min(1)
    state = state._replace(alpha=alpha, nu=nu, shortfall=shortfall)
    return state if risk.limit is None else priced(state, risk, risk.limit)


def remembered(state: RiskState, new: Tensor, risk: RiskConfig) -> RiskState:
    """The latest outcomes with these [n] (NaN: none), oldest first, and which of them are the sample."""
    new = thinned(new, len(state.outcomes))
    every = torch.cat([state.outcomes, new])
    order = (~every.isnan()).to(torch.int8).argsort(stable=True)  # what is none comes first, the rest stays in order
    kept = every[order][-len(state.outcomes) :]
    sample = (~new.isnan()).sum().clamp_min(risk.memory or risk.least)
    age = torch.arange(len(kept), device=kept.device).flip(0)
    return state._replace(outcomes=kept, recent=((age < sample) & ~kept.isnan()).double())


def thinned(new: Tensor, most: int) -> Tensor:
    """At most so many of these [n], evenly over those that are there: the last rows alone may be those of one phase."""
    if len(new) <= most:
        return new
    there = ~new.isnan()
    kept = new[there.to(torch.int8).argsort(stable=True)]
    pace = (there.sum().double() / most).clamp_min(1.0)
    steps = (torch.arange(most, device=new.device).flip(0) * pace).floor().long()
    return kept[len(kept) - 1 - steps]


def figures(state: RiskState, risk: RiskConfig) -> Figures:
    """The sample in numbers."""
    x, weight = state.outcomes, state.recent
    count = weight.sum()
    x = torch.where(weight > 0, x, 0.0)
    mean = (x * weight).sum() / count
    std = ((x - mean).square() * weight).sum().div(count).sqrt()
    apart = count / risk.window if risk.horizon == "window" else count  # windows that overlap tell the same twice
    return Figures(cvar_of_samples(state.outcomes, risk.alpha, weight), mean, std, risk.alpha * apart)


def violation(seen: Figures, limit: float) -> Tensor:
    """How far the CVaR falls short of the limit, in deviations of X; > 0 when it is broken."""
    unit = torch.maximum(seen.std, torch.full_like(seen.std, 1e-6 * max(abs(limit), 1e-6)))
    return ((limit - seen.cvar) / unit).clamp(-WILD, WILD)


def priced(state: RiskState, risk: RiskConfig, limit: float) -> RiskState:
    """The price after one more look at the violation; it rests until one outcome at least lies in the tail."""
    seen = figures(state, risk)
    gains = PidGains(risk.kp, risk.ki, risk.kd, risk.smoothing, risk.cap)
    ready = seen.tail_samples >= 1
    pid, price = pid_step(state.pid, torch.where(ready, violation(seen, limit), 0.0), gains)
    kept = (torch.where(ready, new, old) for new, old in zip(pid, state.pid, strict=True))
    return state._replace(pid=PidState(*kept), multiplier=torch.where(ready, price, state.multiplier))


def charges(state: RiskState, outcome: Tensor, risk: RiskConfig) -> Tensor:
    """What the outcomes [T, B] cost where they complete, 0 elsewhere:  c = (ν − x)⁺/α − c̄   (Rockafellar & Uryasev 2000).

    Signed, for a charge that is only ever positive would reward ending before it is due. For an episode c̄ = ν − ℓ: it has one
    charge however long it lasts, with the mean ℓ − CVaR. Of a step or a window an episode has the more the longer it lasts:
    c̄ is the sample's mean, so that a row more or less changes nothing, which is the gradient of the ratio E[Σc]/E[Σ1].
    A row lies in as many windows as these are long, and its reward is learned from once: they are charged by that part.
    """
    centre = state.shortfall if risk.ratio else state.nu - (risk.limit or 0.0)
    charged = ~outcome.isnan() & ~state.nu.isnan()
    x = torch.where(charged, outcome.double(), 0.0)
    share = 1 / risk.window if risk.horizon == "window" else 1.0
    return torch.where(charged, share * (ru_cost(x, state.nu, state.alpha) - centre), 0.0)


def minding(reward_advantages: Tensor, cost_advantages: Tensor, state: RiskState, config: Config) -> Tensor:
    """The advantages of all that is wanted, raw: the tail as a part of the objective, and as a limit with its price."""
    risk = config.risk
    cost = config.input.reward_scale * state.unit * cost_advantages  # in the reward's units
    whole = blend_advantages(reward_advantages, cost, risk.weight) if risk.weight else reward_advantages
    if risk.limit is None:
        return whole
    return penalize_advantages(whole, cost, state.multiplier.to(whole.dtype))


def risk_figures(state: RiskState, risk: RiskConfig) -> dict[str, Tensor]:
    """What a run says of its tail."""
    seen = figures(state, risk)
    found = {
        "risk/cvar": seen.cvar,
        "risk/outcome_mean": seen.mean,
        "risk/outcome_std": seen.std,
        "risk/nu": state.nu,
        "risk/alpha": torch.full_like(seen.cvar, state.alpha),
    }
    if risk.used:  # of what drives nothing, a rough figure is no cause for alarm
        found["risk/tail_samples"] = seen.tail_samples
    if risk.limit is None:
        return found
    limit = torch.full_like(seen.cvar, risk.limit)
    return found | {"risk/limit": limit, "risk/violation": limit - seen.cvar, "risk/multiplier": state.multiplier}


def risk_findings(metrics: Mapping[str, float], risk: RiskConfig, iteration: int, seen: bool) -> tuple[str, ...]:
    """What is wrong with how risk is minded, in words. `seen`: whether the agent sees what has been gained so far."""
    found = []
    if iteration == 0 and risk.observe and not seen:
        what = f"the sum of the last {risk.window} rows" if risk.horizon == "window" else "what the episode has gained so far"
        found.append(
            f"the agent does not see {what}, on which the best action for the tail depends: wrap the environment in "
            "quantail.envs.running.ObserveGained, or set risk.observe=false"
        )
    if iteration == SETTLED and (carried := metrics.get("risk/tail_samples", TELLING)) < TELLING:
        found.append(
            f"{carried:.2g} outcomes carry the worst {risk.alpha:g}: their mean is mostly luck; use more environments, a "
            "larger risk.memory or risk.alpha, or a shorter risk.horizon"
        )
    if metrics.get("risk/multiplier", 0.0) >= risk.cap and metrics["risk/violation"] > 0:
        found.append(
            f"the limit of {metrics['risk/limit']:g} on CVaR is out of reach: it is {metrics['risk/cvar']:.4g}, and the price "
            f"of risk stands at its cap of {risk.cap:g}"
        )
    return tuple(found)
