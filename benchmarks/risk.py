"""Does the tail reach the policy? `python benchmarks/risk.py [case ...] [--seeds 5] [--jobs 2] [--json FILE]`.

Every case is an environment whose best answer under a limit on CVaR, or for a weight on it, is known for any parameters. A run
is judged by that answer: positions by the policy's mean and by the exact CVaR of what it plays, games by what it does.
The case `prior` is the design that this library replaces: a penalty on what the reward critic itself predicts.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, CriticConfig, EntropyConfig, NetConfig, OptimConfig, PpoConfig, RiskConfig, ScheduleConfig
from quantail.envs.base import EpisodicEnv, Move
from quantail.envs.oracles import Corridor, CVaRBandit, CVaRPosition, StaticNested
from quantail.envs.oracles.oracle import Nothing
from quantail.estimate import Batch
from quantail.functional.risk import cvar_from_quantiles
from quantail.loop import Report, train
from quantail.losses import Knobs, LossTerm
from quantail.nets.agent import Agent
from quantail.types import Box, Discrete

Judged = dict[str, float]


class Leave(EpisodicEnv):
    """A fair gamble in every row, one in ten of them bad; action 1 ends the episode after its row, which is worth nothing."""

    def __init__(self, num_envs: int, bad: float = -3.0, p_bad: float = 0.1) -> None:
        super().__init__(num_envs, (Box((1,), 0.0, 1.0), Discrete(2)), 1, horizon=30)
        self.bad, self.good, self.p_bad = bad, -bad * p_bad / (1 - p_bad), p_bad

    def start(self, noise: Tensor) -> Nothing:
        return Nothing()

    def observe(self, core: Nothing, time: Tensor) -> Tensor:
        return torch.zeros_like(time, dtype=self.dtype)[:, None]

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        bad = torch.special.ndtr(noise[:, 0]) < self.p_bad
        return Move(core, torch.where(bad, self.bad, self.good).to(self.dtype), action == 1)


class Case(NamedTuple):
    """One thing that a risk-minding agent does."""

    env: Callable[[], EpisodicEnv]
    config: Config
    judge: Callable[[EpisodicEnv, Report], Judged]
    promise: Mapping[str, tuple[float, float]]  # of the mean over the seeds: lowest and highest
    terms: tuple[LossTerm, ...] = ()
    every_seed: bool = False  # whether the promise is each run's


def small(iterations: int, envs: int, risk: RiskConfig, steps: int = 2, **parts: float | int | str) -> Config:
    """A config for games of a few rows that show next to nothing."""
    values = {"rate": 1e-2, "std": 1.0, "entropy": 0.0, "kind": "scalar", "gamma": 1.0} | parts
    return Config(
        total_timesteps=iterations * envs * (steps // 2 if steps == 2 else steps),
        net=NetConfig(
            encoder_sizes=(16,), memory="none", actor_sizes=(), critic_sizes=(16,), log_std_init=math.log(float(values["std"]))
        ),
        critic=CriticConfig(kind=str(values["kind"]), twin=False),
        ppo=PpoConfig(n_steps=steps, batch_size=steps * envs, n_epochs=4, gamma=float(values["gamma"]), gae_lambda=1.0),
        entropy=EntropyConfig(coef=float(values["entropy"])),
        optim=OptimConfig(learning_rate=float(values["rate"]), schedule=ScheduleConfig("linear")),
        risk=risk,
    )


# --- positions --------------------------------------------------------------------------------------------------------


def policy_of(report: Report) -> tuple[float, float]:
    """Mean and deviation of a policy that sees nothing."""
    agent = report.agent
    with torch.no_grad():
        outputs, _ = agent.unroll(torch.zeros(1, 1, 1), agent.initial_memory(1), torch.ones(1, 1, dtype=torch.bool))
        return float(agent.policy.mode(outputs.policy)), report.metrics["train/std"]


def judge_limit(env: EpisodicEnv, report: Report) -> Judged:
    """Against the best position of a policy with the same deviation: position, exact CVaR, price."""
    assert isinstance(env, CVaRPosition)
    mean, sd = policy_of(report)
    best = env.optimal_position(sd)
    return {
        "position / best": mean / best,
        "CVaR / limit": env.tail_loss(mean, sd) / env.limit,
        "best price": env.multiplier(sd),
        "position": mean,
        "deviation": sd,
    }


def best_weighted(env: CVaRPosition, weight: float, sd: float) -> float:
    """The position with the most (1 − w)·mean − w·tail loss, by golden section: both parts are concave."""
    low, high, ratio = -env.max_position, env.max_position, (math.sqrt(5) - 1) / 2
    while high - low > 1e-7:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        worth = [(1 - weight) * env.reward(m, sd) - weight * env.tail_loss(m, sd) for m in (a, b)]
        low, high = (low, b) if worth[0] > worth[1] else (a, high)
    return (low + high) / 2


def judge_weight(weight: float) -> Callable[[EpisodicEnv, Report], Judged]:
    def judge(env: EpisodicEnv, report: Report) -> Judged:
        assert isinstance(env, CVaRPosition)
        mean, sd = policy_of(report)
        best = best_weighted(env, weight, sd)
        return {"position / best": mean / best, "position": mean, "best": best, "deviation": sd}

    return judge


def critic_penalty(limit: float, alpha: float, price: float) -> LossTerm:
    """The prior design: λ·(ℓ − CVaR_α of the critic's own quantiles)⁺ as a loss. Its gradient ends in the critic."""

    def term(agent: Agent, batch: Batch, knobs: Knobs) -> Tensor:
        outputs, _ = agent.unroll(batch.obs, batch.memory, batch.start)
        law = outputs.critics[0] * 0.05  # about the outcome's deviation, to be read in raw units
        short = (limit - cvar_from_quantiles(law, alpha, agent.values.levels)).clamp_min(0.0)
        return price * (short * batch.policy_weight).sum() / batch.policy_weight.sum()

    return term


# --- games ------------------------------------------------------------------------------------------------------------


def chance(report: Report, obs: tuple[float, ...], choice: int) -> float:
    """The probability of a choice at an observation."""
    agent, moments = report.agent, report.carry.obs_moments[""]
    seen = (torch.tensor(obs, dtype=torch.float64) - moments.mean) / moments.variance.sqrt().clamp_min(1e-8)
    with torch.no_grad():
        row = torch.where(moments.variance > 1e-12, seen, 0.0).float()[None, None]
        outputs, _ = agent.unroll(row, agent.initial_memory(1), torch.ones(1, 1, dtype=torch.bool))
        return float(outputs.policy.logits[0, 0].softmax(-1)[choice])


def judge_choice(obs: tuple[float, ...] = (0.0,), choice: int = 1) -> Callable[[EpisodicEnv, Report], Judged]:
    return lambda env, report: {"chance": chance(report, obs, choice)}


def judge_nested(env: EpisodicEnv, report: Report) -> Judged:
    assert isinstance(env, StaticNested)
    return {
        "gambles after loss": chance(report, (1.0, -env.stake), 1),
        "gambles after win": chance(report, (1.0, env.stake), 1),
        "CVaR": report.metrics["risk/cvar"],
        "best CVaR": env.optimum(0.5),
    }


def judge_infeasible(env: EpisodicEnv, report: Report) -> Judged:
    weights = torch.cat([p.detach().flatten() for p in report.agent.parameters()])
    return {
        "last price": report.metrics["risk/multiplier"],
        "finite": float(weights.isfinite().all()),
        "told": float(any("out of reach" in one for one in report.findings)),
        "CVaR": report.metrics["risk/cvar"],
    }


NEAR = (0.98, 1.02)
MORE, LESS = (0.9, 1.0), (0.0, 0.1)


def position(iterations: int, risk: RiskConfig, kind: str = "scalar", std: float = 0.05, entropy: float = 0.004) -> Config:
    """A config for positions of order 0.1: fast to the limit, then slow enough to average the outcomes' noise out."""
    config = small(iterations, 4096, risk, std=std, entropy=entropy, kind=kind)
    rates = OptimConfig(learning_rate=3e-3, schedule=ScheduleConfig("linear", floor=2e-4))
    return replace(config, optim=rates, ppo=replace(config.ppo, n_epochs=2))


def limited(mu: float, s: float, cost: float, alpha: float, limit: float) -> Case:
    """A position under a limit."""
    config = position(600, RiskConfig(alpha=alpha, limit=-limit))
    env = lambda: CVaRPosition(4096, mu=mu, s=s, cost=cost, alpha=alpha, limit=limit)  # noqa: E731
    return Case(env, config, judge_limit, {"position / best": NEAR, "CVaR / limit": NEAR})


def weighted(weight: float) -> Case:
    config = position(600, RiskConfig(weight=weight), std=0.15, entropy=0.05)  # the optimum is flat: it takes wide steps to see
    return Case(lambda: CVaRPosition(4096, cost=0.02), config, judge_weight(weight), {"position / best": NEAR})


def priced_gamble(weight: float) -> Case:
    """The price of risk against an entropy bonus: an inner optimum, which has to move."""
    config = small(60, 1024, RiskConfig(alpha=0.1, weight=weight), entropy=1.0)
    return Case(
        lambda: CVaRBandit(1024), replace(config, ppo=replace(config.ppo, normalize_advantage="off")), judge_choice(), {}
    )


def game(
    env: Callable[[int], EpisodicEnv], risk: RiskConfig, judge: Callable[..., Judged], **promise: tuple[float, float]
) -> Case:
    config = small(80, 512, risk, steps=13 if env is Corridor else 3, entropy=0.003)
    return Case(lambda: env(512), config, judge, {name.replace("_", " "): value for name, value in promise.items()}, (), True)


WHOLE = {"weight": 1.0}
START = (0.0, 0.0)
CASES = {
    "limit": limited(0.02, 0.1, 0.02, 0.05, 0.05),
    "limit, tighter": limited(0.02, 0.1, 0.02, 0.05, 0.03),
    "limit, other market": limited(0.05, 0.2, 0.1, 0.1, 0.06),
    "weight 0.03": weighted(0.03),
    "weight 0.06": weighted(0.06),
    "prior": Case(
        lambda: CVaRPosition(4096, cost=0.02, limit=0.05),
        position(300, RiskConfig(), "quantile"),
        judge_limit,
        {},
        (critic_penalty(-0.05, 0.05, 4.0),),
    ),
    "bandit, CVaR 5 %": game(CVaRBandit, RiskConfig(alpha=0.05, **WHOLE), judge_choice(), chance=LESS),
    "bandit, CVaR 10 %": game(CVaRBandit, RiskConfig(alpha=0.1, **WHOLE), judge_choice(), chance=LESS),
    "bandit, CVaR 80 %": game(CVaRBandit, RiskConfig(alpha=0.8, **WHOLE), judge_choice(), chance=MORE),
    "bandit, mean": game(CVaRBandit, RiskConfig(), judge_choice(), chance=MORE),
    "corridor, CVaR 5 %": game(Corridor, RiskConfig(alpha=0.05, **WHOLE), judge_choice(START), chance=MORE),
    "corridor, CVaR 10 %": game(Corridor, RiskConfig(alpha=0.1, **WHOLE), judge_choice(START), chance=MORE),
    "corridor, CVaR 25 %": game(Corridor, RiskConfig(alpha=0.25, alpha_decay=0.5, **WHOLE), judge_choice(START), chance=LESS),
    "corridor, mean": game(Corridor, RiskConfig(), judge_choice(START), chance=LESS),
    "nested, CVaR 50 %": game(
        StaticNested, RiskConfig(alpha=0.5, **WHOLE), judge_nested, gambles_after_loss=MORE, gambles_after_win=LESS
    ),
    "nested, mean": game(StaticNested, RiskConfig(alpha=0.5), judge_nested, gambles_after_loss=MORE, gambles_after_win=MORE),
    **{f"price {w:g}": priced_gamble(w) for w in (0.0, 0.05, 0.1, 0.2, 0.4)},
    "leave, step": Case(
        lambda: Leave(256),
        small(60, 256, RiskConfig(horizon="step", alpha=0.2, weight=1.0), steps=32),
        judge_choice(),
        {"chance": (0.2, 0.8)},
    ),
    "leave, window": Case(
        lambda: Leave(256),
        small(60, 256, RiskConfig(horizon="window", window=3, alpha=0.2, weight=1.0), steps=32),
        judge_choice(),
        {"chance": (0.2, 0.8)},
    ),
    "infeasible": Case(
        lambda: CVaRPosition(512, cost=0.02),
        small(400, 512, RiskConfig(limit=0.01, cap=5.0), rate=3e-3, std=0.05),
        judge_infeasible,
        {"last price": (0.0, 5.0), "finite": (1.0, 1.0), "told": (1.0, 1.0)},
        (),
        True,
    ),
}


class Result(NamedTuple):
    """One run."""

    case: str
    seed: int
    judged: Judged
    seconds: float


def run(name: str, seed: int) -> Result:
    """Train and judge one seed."""
    torch.set_num_threads(1)
    case, began = CASES[name], time.perf_counter()
    env, config = case.env(), replace(case.config, seed=seed)
    prices = []
    for report in train(config, env, loss_terms=case.terms):
        if report.env_steps > 0.75 * config.total_timesteps and "risk/multiplier" in report.metrics:
            prices.append(report.metrics["risk/multiplier"])
    judged = case.judge(env, report) | ({"mean price": statistics.fmean(prices)} if prices else {})
    return Result(name, seed, judged, time.perf_counter() - began)


def kept(case: Case, results: list[Result]) -> bool:
    """Whether the promise holds: of the mean, or of every run."""
    for name, (low, high) in case.promise.items():
        values = [result.judged[name] for result in results]
        judged = values if case.every_seed else [statistics.fmean(values)]
        if not all(low <= value <= high for value in judged):
            return False
    return True


def line(name: str, results: list[Result]) -> str:
    """A case as a row of text."""
    parts = []
    for figure in results[0].judged:
        values = [result.judged[figure] for result in results]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        parts.append(f"{figure} {statistics.fmean(values):.4g} ± {spread:.2g}")
    verdict = "" if not CASES[name].promise else "kept" if kept(CASES[name], results) else "MISSED"
    return f"{name:<22}{len(results):>3} seeds {verdict:<7}{', '.join(parts)}"


def main() -> int:
    """Run the cases and print a table; fails if a promise is missed, or a higher price does not lower the risky choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"which of: {'; '.join(CASES)} (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="runs side by side")
    parser.add_argument("--json", type=Path, help="also write every run here")
    options = parser.parse_args()
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"{', '.join(unknown)}: no such case; choose from {'; '.join(CASES)}")
    names, runs, missed = options.cases or list(CASES), [], []
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = {name: [pool.submit(run, name, seed) for seed in range(options.seeds)] for name in names}
        for name, futures in waiting.items():
            done = [future.result() for future in futures]
            runs += done
            print(line(name, done), flush=True)
            missed += [] if kept(CASES[name], done) else [name]
    prices = [
        statistics.fmean(r.judged["chance"] for r in runs if r.case == name) for name in names if name.startswith("price")
    ]
    if prices != sorted(prices, reverse=True):
        missed.append(f"chances {prices} do not fall with the price")
    if options.json:
        options.json.write_text(json.dumps([result._asdict() for result in runs], indent=1))
    print("missed: " + "; ".join(missed) if missed else "every promise is kept")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
