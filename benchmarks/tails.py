"""Does the critic know the tail? `python benchmarks/tails.py [law ...] [--seeds 5] [--jobs 2] [--json FILE]`.

Four processes whose discounted return has a known law, and nothing to decide. A critic is trained on each as in any run, and
what it then says of a state is judged against the truth: CVaR.05 in percent of mean − CVaR (above 0: the risk is understated),
W1, the mean distance of its interpolated quantile function to the true one, in percent of the law's standard deviation, and the
error of its mean, likewise. Where the process has states, five of them are judged and the worst counts. Beside the critics that
are meant to be used stand two that are not: one that learns from scalar λ-returns, and one with a Huber width of one deviation.

A law takes the arguments of its environment: `gaussian:mu=0,gamma=0.9`. There is one configuration for all laws.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, CriticConfig, NetConfig, OptimConfig, PpoConfig
from quantail.control import Schedules
from quantail.envs.oracles.laws import AR1Sum, CoinSum, GaussianSum, GeometricSum, NormalLaw, ReturnLaw
from quantail.errors import ConfigError, QuantailError
from quantail.estimate import distribution
from quantail.functional.laws import Distribution
from quantail.loop import Hooks, Report, train
from quantail.rollout import standardize_observation

ALPHA = 0.05
GRID = 10_000  # levels at which quantile functions are compared
STATES = (0.1, 0.3, 0.5, 0.7, 0.9)  # levels, in the long run, of the states that are judged
LAWS: Mapping[str, type[ReturnLaw]] = {
    "uniform": CoinSum,
    "gaussian": GaussianSum,
    "ar1": AR1Sum,
    "geometric": GeometricSum,
}


class Entrant(NamedTuple):
    """A critic, and what is promised of it in percent; nothing of those that are only shown."""

    critic: CriticConfig
    cvar: float = math.inf
    w1: float = math.inf
    cvar_of: Mapping[str, float] = {}  # law by law, where it is promised less


COPIES, ROWS, BATCH, STEPS = 512, 64, 1024, 200 * 512 * 64  # of the environment, in a rollout, in a mini-batch, in all
RATE = 4e-3  # at first; see `falling`
EPS = 1e-8  # Adam's 1e-5 would hold on to what little mass a categorical critic has left far out
PARTICLES = 4  # rows are many, and those of one row see the same rewards

QUANTILE = CriticConfig(atoms=64, particles=PARTICLES, twin=False)
CRITICS: Mapping[str, Entrant] = {
    "quantile": Entrant(QUANTILE, 3.0, 3.0),
    "categorical": Entrant(CriticConfig(kind="categorical", particles=PARTICLES, twin=False), 3.0, 6.0, {"geometric": 8.0}),
    "scalar-target": Entrant(replace(QUANTILE, targets="lambda_return")),
    "kappa-1": Entrant(replace(QUANTILE, kappa=1.0)),
}


class Truth(NamedTuple):
    """The law of what follows in one state."""

    obs: Tensor  # [F]
    quantiles: Tensor  # [GRID]
    cvar: float
    mean: float
    sd: float


Errors = tuple[float, float, float]  # of CVaR, W1, of the mean: percent


class Result(NamedTuple):
    """One run; of several states the worst, figure by figure."""

    law: str
    critic: str
    seed: int
    cvar: float
    w1: float
    mean: float
    seconds: float
    env_steps: int
    states: tuple[Errors, ...]


def parsed(text: str) -> tuple[str, dict[str, float]]:
    """A law and its arguments, from `name` or `name:argument=number,...`."""
    name, _, rest = text.partition(":")
    if name not in LAWS:
        raise ConfigError(f"{name}: no such law; choose from {', '.join(LAWS)}")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    return name, {key: float(value) for key, _, value in pairs}


def levels() -> Tensor:
    """[GRID] midpoints of equal cells of (0, 1)."""
    return (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID


def truths(env: ReturnLaw) -> list[Truth]:
    """What is known of the law, in a few states where there are any."""
    u = levels()
    if not isinstance(env, AR1Sum):
        quantiles, mean = env.quantile(u), env.optimum()
        sd = env.moments()[1] if isinstance(env, NormalLaw) else float((quantiles - mean).square().mean().sqrt())
        return [Truth(torch.zeros(1), quantiles, env.cvar(ALPHA), mean, sd)]
    spread = env.sd / math.sqrt(1 - env.rho**2)
    found = []
    for z in torch.special.ndtri(torch.tensor(STATES, dtype=torch.float64)).tolist():
        mean, sd = env.given(spread * z)
        quantiles = mean + sd * torch.special.ndtri(u)
        found.append(Truth(torch.tensor([spread * z]), quantiles, env.cvar_given(spread * z, ALPHA), mean, sd))
    return found


def configured(critic: CriticConfig, gamma: float, steps: int, seed: int) -> Config:
    """One configuration for all laws: plenty of rows, each seen once."""
    return Config(
        seed=seed,
        total_timesteps=steps,
        net=NetConfig(memory="none", encoder_sizes=(16,), actor_sizes=(8,), critic_sizes=(16,)),
        critic=critic,
        ppo=PpoConfig(n_steps=ROWS, batch_size=BATCH, n_epochs=1, gamma=gamma),
        optim=OptimConfig(learning_rate=RATE, max_grad_norm=None, eps=EPS),
    )


def falling(left: float) -> float:
    """The learning rate at a share of training that is left: 1/64 of the first at three quarters.

    A critic that moves fast follows the latest mini-batch, whose few episodes lie around a mean of their own and spread less
    than all do, and its targets pass that on. Slow steps average over many, and come after fast ones that found the place.
    """
    return RATE * left**3


def predicted(report: Report, config: Config, obs: Tensor) -> Distribution:
    """What the critics say in states [S, F], at the start of an episode."""
    seen = standardize_observation(obs.float(), report.carry.obs_moments, config.input)
    start = torch.ones(1, len(obs), dtype=torch.bool)
    with torch.no_grad():
        outputs, _ = report.agent.unroll(seen[None], report.agent.initial_memory(len(obs)), start)  # type: ignore[index]
    return distribution(report.agent, outputs.critics[:, 0].double(), report.carry.scale, config.critic)


def errors_of(said: Distribution, known: Sequence[Truth]) -> list[Errors]:
    """State by state."""
    cvar, mean, quantiles = said.cvar(ALPHA), said.mean, said.quantile(levels())
    return [
        (
            100 * float(cvar[i] - truth.cvar) / (truth.mean - truth.cvar),
            100 * float((quantiles[i] - truth.quantiles).abs().mean()) / truth.sd,
            100 * float(mean[i] - truth.mean) / truth.sd,
        )
        for i, truth in enumerate(known)
    ]


def judged(said: Distribution, known: Sequence[Truth]) -> Errors:
    """Each error in the state where it is largest."""
    cvar, w1, mean = (max(errors, key=abs) for errors in zip(*errors_of(said, known), strict=True))
    return cvar, w1, mean


def environment(law: str, copies: int = COPIES) -> ReturnLaw:
    """The process of a law with its arguments."""
    name, arguments = parsed(law)
    return LAWS[name](copies, **arguments)  # type: ignore[arg-type]


def run(law: str, critic: str, seed: int, steps: int = STEPS, atoms: int | None = None) -> Result:
    """Train one critic and judge it."""
    torch.set_num_threads(1)
    began, env, kind = time.perf_counter(), environment(law), CRITICS[critic].critic
    config = configured(kind if atoms is None else replace(kind, atoms=atoms), env.gamma, steps, seed)
    hooks = Hooks(Schedules(learning_rate=falling))
    *_, last = train(config, env, hooks=hooks)
    known = truths(env)
    said = predicted(last, config, torch.stack([truth.obs for truth in known]))
    seconds = time.perf_counter() - began
    return Result(law, critic, seed, *judged(said, known), seconds, last.env_steps, tuple(errors_of(said, known)))


def summary(law: str, critic: str, results: Sequence[Result]) -> Mapping[str, Any]:
    """One row of the table: a critic on a law."""
    entrant = CRITICS[critic]
    bounds = {"cvar": entrant.cvar_of.get(parsed(law)[0], entrant.cvar), "w1": entrant.w1}
    errors = {
        name: torch.tensor([getattr(one, name) for one in results], dtype=torch.float64) for name in ("cvar", "w1", "mean")
    }
    figures: dict[str, Any] = {"law": law, "critic": critic, "seeds": len(results), "env_steps": results[0].env_steps}
    for name, values in errors.items():
        figures |= {f"{name}_error": float(values.mean()), f"{name}_sd": float(values.std()) if len(results) > 1 else 0.0}
        figures |= {f"{name}_worst": float(values[values.abs().argmax()])}
    good = torch.stack([errors[name].abs() <= bound for name, bound in bounds.items()]).all(0)
    shown = not math.isfinite(entrant.cvar)
    met = None if shown else all(float(errors[name].abs().mean()) <= bound for name, bound in bounds.items())
    return figures | {"bounds": None if shown else bounds, "within": int(good.sum()), "met": met}


def line(row: Mapping[str, Any]) -> str:
    """A row of the table as text."""
    numbers = "".join(
        f"{row[f'{name}_error']:>+8.2f}{row[f'{name}_sd']:>6.2f}{row[f'{name}_worst']:>+8.2f}" for name in FIGURES
    )
    told = "shown" if row["met"] is None else f"{'met' if row['met'] else 'MISSED'}, {row['within']} of {row['seeds']} runs"
    return f"{row['law']:<26}{row['critic']:<15}{row['seeds']:>5}{numbers}  {told}"


FIGURES = ("cvar", "w1", "mean")
HEAD = f"{'law':<26}{'critic':<15}{'seeds':>5}" + "".join(
    f"{name:>8}{'sd':>6}{'worst':>8}" for name in ("CVaR %", "W1 %", "mean %")
)


def main() -> int:
    """Train every critic on every law and print a table; fails if a promise is missed on average over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "laws", nargs="*", metavar="law", help=f"which of {', '.join(LAWS)}, with arguments or not (default: all)"
    )
    parser.add_argument("--critics", nargs="+", choices=CRITICS, default=list(CRITICS), help="which critics (default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--shown-seeds", type=int, help="runs of each of those that are only shown (default: as many)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"rows of each run (default {STEPS})")
    parser.add_argument("--atoms", type=int, help="of every critic (default: 64 quantiles, 101 atoms)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side (default: one per core)")
    parser.add_argument("--json", type=Path, help="also write every run here")
    options = parser.parse_args()
    laws = options.laws or list(LAWS)
    for law in laws:
        try:
            environment(law)
        except (QuantailError, TypeError, ValueError) as error:
            parser.error(f"{law}: {error}")
    counts = {True: options.seeds, False: options.shown_seeds or options.seeds}
    print(f"torch {torch.__version__}, one thread a run, {options.jobs} runs side by side, {platform.machine()}\n{HEAD}")
    rows: list[Mapping[str, Any]] = []
    runs: list[Result] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            (law, critic): [
                pool.submit(run, law, critic, options.first_seed + i, options.steps, options.atoms)
                for i in range(counts[math.isfinite(CRITICS[critic].cvar)])
            ]
            for law in laws
            for critic in options.critics
        }
        for (law, critic), futures in waiting.items():
            done = [future.result() for future in futures]
            runs += done
            rows.append(summary(law, critic, done))
            print(line(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({"rows": rows, "runs": [one._asdict() for one in runs]}, indent=1))
    return int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
