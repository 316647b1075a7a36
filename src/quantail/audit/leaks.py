"""Does anything know what has not happened yet? The features, the environment, and what a decision earns one bar late."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantail.audit.subject import GRID, Subject, seen
from quantail.errors import InputError
from quantail.market.costs import free
from quantail.market.env import MarketEnv
from quantail.market.features import check_causal, evaluated
from quantail.market.series import Bars, Features
from quantail.market.terms import Episode, Rules
from quantail.monitor.install import Check
from quantail.streams import Stream, generator, uniform
from quantail.types import Discrete, MultiDiscrete

PLAYED = 300  # rows before the scrambled ones
LATER = 500  # rows that are scrambled
JUDGED = 4000  # rows of the test of lag, the last ones
SURE = 4.0  # standard errors
COLLAPSED = 0.25  # of what was earned, one bar later
RIDGE = 1e-3


def prefix(subject: Subject) -> Check:
    """Each feature at bar t is the same when computed on the bars up to t alone."""
    bars = subject.bars.to("cpu")
    try:
        raw = {name: evaluated(name, function, bars) for name, function in subject.functions.items()}
        check_causal(subject.functions, raw, bars)
    except InputError as error:
        return Check("prefix invariance", False, str(error), "the same values whatever comes later")
    return Check("prefix invariance", True, f"{len(raw)} features on prefixes of {len(bars):,} bars", "")


def scramble(subject: Subject) -> Check:
    """Observations and rewards up to t are the same, byte for byte, when the bars after t are put in another order."""
    features = seen(subject, subject.bars)
    rows = min(PLAYED, (len(subject.bars) - features.warmup) // 2)
    cut = features.warmup + rows
    bars = subject.bars.rows(0, min(len(subject.bars), cut + LATER)).to("cpu")
    played = []
    for market in (bars, shuffled(bars, cut + 1, subject.seed)):
        known = seen(subject, market)
        env = subject.env(market, Features(known.values, known.names, features.warmup), 1, rows)
        played.append(play(env, random_actions(env, rows, subject.seed), subject.noise(env, rows)))
    for what, (one, two) in zip(("observation", "reward"), zip(*played, strict=True), strict=True):
        differs = (one != two).reshape(len(one), -1).any(-1)
        if bool(differs.any()):
            at = int(differs.nonzero()[0]) + features.warmup + (what == "reward")
            said = f"the {what} at bar {at} changes when the bars after {cut} are put in another order"
            return Check("future scramble", False, said, "the same bytes up to there")
    return Check("future scramble", True, f"{rows} rows unchanged, to the byte, by what came after bar {cut}", "")


def shuffled(bars: Bars, start: int, seed: int) -> Bars:
    """The bars from `start` on in another order; the clock goes on as it was."""
    later = start + torch.randperm(len(bars) - start, generator=generator(seed, Stream.PLAY, 1))
    order = torch.cat([torch.arange(start), later])
    names = ("open", "high", "low", "close", "valid", "volume", "funding")
    moved: dict[str, Any] = {name: getattr(bars, name)[order] for name in names if getattr(bars, name) is not None}
    return replace(bars, **moved)


def random_actions(env: MarketEnv, rows: int, seed: int) -> Tensor:
    """Any actions: [rows, B, ...]."""
    source, space = generator(seed, Stream.PLAY_ACT, 0), env.action_space
    if isinstance(space, Discrete):
        return (uniform((rows, env.num_envs), source) * space.n).long().clamp(max=space.n - 1)
    if isinstance(space, MultiDiscrete):
        return (uniform((rows, env.num_envs, len(space.sizes)), source) * space.sizes[0]).long().clamp(max=space.sizes[0] - 1)
    return 2 * uniform((rows, env.num_envs, *space.shape), source) - 1  # type: ignore[union-attr]


def play(env: MarketEnv, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Observations [rows + 1, B, ...] and rewards [rows, B] of these actions."""
    state, obs = env.reset(noise[0])
    observations, rewards = [obs], []
    for action, luck in zip(actions, noise[1:], strict=True):
        state, step = env.step(state, action, luck)
        observations.append(step.obs)  # type: ignore[arg-type]
        rewards.append(step.reward)
    return torch.stack(observations), torch.stack(rewards)


# --- one bar late -----------------------------------------------------------------------------------------------------


def lag(subject: Subject) -> Check:
    """What a linear reader of the features earns, before costs, and what it earns one bar later.

    It learns on the first half of the bars which way the next one goes, and trades each asset's sign in the second half. A
    signal that is worth much now and nothing one bar later was most likely not there yet when it was used.
    """
    bars = subject.bars.rows(max(0, len(subject.bars) - JUDGED), len(subject.bars)).to("cpu")
    features = seen(subject, bars)
    half = (features.warmup + len(bars)) // 2
    weights = signs(bars, features, half)[half:]
    now, late = (earned(bars.rows(half, len(bars)), one, subject.seed) for one in (weights, weights.roll(1, 0)))
    score = float(now.mean() / now.std() * len(now) ** 0.5) if bool(now.std() > 0) else 0.0
    year = bars.bars_per_year**0.5
    sharpe, later = (float(x.mean() / x.std() * year) if bool(x.std() > 0) else 0.0 for x in (now, late))
    said = (
        f"a linear reader has a Sharpe ratio of {sharpe:.2f} before costs, {later:.2f} one bar late, {score:.1f} errors from 0"
    )
    if score > SURE and float(late.mean()) < COLLAPSED * float(now.mean()):
        return Check("one-bar lag", False, said, "most of it one bar later: see whether a feature knows the bar it is used in")
    return Check("one-bar lag", True, said, "")


def signs(bars: Bars, features: Features, half: int) -> Tensor:
    """Which way a ridge regression on the rows before `half` sees each asset go: [T, A] of −1 and 1."""
    moves = torch.zeros_like(bars.open)
    moves[:-2] = (bars.open[2:] / bars.open[1:-1]).log().nan_to_num()  # from the fill to the next one
    scale = features.values[features.warmup : half].double()
    mean, spread = scale.mean((0, 1)), scale.std((0, 1)).clamp(min=1e-12)
    x = ((features.values.double() - mean) / spread).clamp(-5, 5)
    known = bars.valid[features.warmup : half - 2]
    rows, goal = x[features.warmup : half - 2][known], moves[features.warmup : half - 2][known]
    square = rows.T @ rows + RIDGE * len(rows) * torch.eye(x.shape[-1], dtype=torch.float64)
    weights = torch.linalg.solve(square, rows.T @ (goal - goal.mean()))
    found: Tensor = (x @ weights).sign()
    return found


def earned(bars: Bars, weights: Tensor, seed: int) -> Tensor:
    """Mean growth of the assets per bar by these signs, through the environment without costs: [L]."""
    assets = len(bars.symbols)
    features = Features(torch.zeros(len(bars), assets, 1), ("nothing",), 0)
    rules = Rules(levels=GRID, leverage=1.0, ruin=0.0)
    env = MarketEnv(assets, bars, features, costs=free(), rules=rules, episode=Episode(0, starts="fixed"))
    choice = (weights[:-1] + 1).long()  # [L, A]: portfolio b trades asset b and nothing else
    actions = choice if assets == 1 else torch.where(torch.eye(assets, dtype=torch.bool), choice[:, None, :], 1)
    state, _ = env.reset(torch.zeros(assets, env.noise_dim))
    gains = []
    for action in actions:
        state, step = env.step(state, action, torch.zeros(assets, env.noise_dim))
        gains.append(step.pnl.double().mean())  # type: ignore[union-attr]
    return torch.stack(gains)
