"""What do twin critics and value clipping buy? `python benchmarks/ablation.py [case ...] [--seeds 8] [--jobs 2] [--json FILE]`.

Two by two: one critic or two, predictions free or held near the rollout's, all else equal and the same seeds for all four.
On Gârleanu–Pedersen's market the policy counts, after a quarter of the rows and at the end: percent of the optimum, against the
best policy on the same noise. On a return law it is what the critic says of five states: errors of its CVaR.05, its quantile
function (W1) and its mean, in percent as in `tails.py`, each the largest of the five. Beside a mean stands its 95 % interval,
and below the cells what twin, clipping and both change, seed by seed (Student's t). An interval around 0: not seen to matter.
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
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

import learning
import tails
from quantail.config import CriticConfig, PpoConfig
from quantail.evaluation import play
from quantail.functional.laws import Distribution
from quantail.loop import Report, train

CELLS: Mapping[str, tuple[bool, bool]] = {
    "neither": (False, False),
    "twin": (True, False),
    "clipping": (False, True),
    "both": (True, True),
}
MODES = ("mean_only", "mean_and_variance", "per_quantile")

MARKET, ROWS = "garleanu-pedersen", 200_000

# A return law with states, and no more rows than a run would give it: each seen four times, as in most runs.
LAW = "ar1"
LAW_CONFIG = learning.tuned(ROWS, PpoConfig(n_steps=64, batch_size=1024, n_epochs=4), memory="none")
LAW_COPIES = 64


class Result(NamedTuple):
    """One run."""

    case: str
    cell: str
    seed: int
    figures: Mapping[str, float]
    seconds: float


def critic_of(base: CriticConfig, cell: str, mode: str) -> CriticConfig:
    """The critic of a cell."""
    twin, clipped = CELLS[cell]
    return replace(base, twin=twin, clip=mode if clipped else "off")


def market(cell: str, seed: int, mode: str, rows: int) -> Mapping[str, float]:
    """Percent of the optimum, early and at the end, and what the rollouts said of the critic in between."""
    case = learning.CASES[MARKET]
    config = replace(case.config, seed=seed, total_timesteps=rows, critic=critic_of(case.config.critic, cell, mode))

    def score(report: Report) -> float:
        judge = case.env(case.judges)
        played = play(judge, report.agent, report.carry.obs_moments, config, case.rows, seed=learning.JUDGING_SEED)
        return case.score(judge, played, case.rows)

    early, explained = math.nan, []
    for report in train(config, case.env(case.copies)):
        if math.isnan(early) and report.env_steps >= config.total_timesteps / 4:
            early = score(report)
        explained.append(report.metrics["train/explained_variance"])
    half = explained[len(explained) // 2 :]
    return {"early": early, "end": score(report), "explained": 100 * sum(half) / len(half)}


def law(cell: str, seed: int, mode: str, rows: int) -> Mapping[str, float]:
    """Sizes of the errors of what the critic says, percent."""
    env = tails.environment(LAW, LAW_COPIES)
    config = replace(LAW_CONFIG, seed=seed, total_timesteps=rows, critic=critic_of(LAW_CONFIG.critic, cell, mode))
    config = replace(config, ppo=replace(config.ppo, gamma=env.gamma))
    *_, last = train(config, env)
    known = tails.truths(env)
    said: Distribution = tails.predicted(last, config, torch.stack([truth.obs for truth in known]))
    cvar, w1, mean = tails.judged(said, known)
    return {"CVaR": abs(cvar), "W1": w1, "mean": abs(mean)}


CASES = {MARKET: market, LAW: law}


def run(case: str, cell: str, seed: int, mode: str, rows: int = ROWS) -> Result:
    """Train and judge one cell with one seed."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    return Result(case, cell, seed, CASES[case](cell, seed, mode, rows), time.perf_counter() - began)


def student(freedom: int, level: float = 0.95) -> float:
    """How many standard errors an interval of this level reaches to either side: a quantile of Student's t, by its integral."""
    x = torch.linspace(0, 100, 1_000_001, dtype=torch.float64)
    log_norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = (log_norm - (freedom + 1) / 2 * (x.square() / freedom).log1p()).exp()
    area = torch.cumulative_trapezoid(density, x)
    return float(x[int((area < level / 2).sum()) + 1])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval."""
    sample = torch.tensor(values, dtype=torch.float64)
    return float(sample.mean()), student(len(values) - 1) * float(sample.std()) / math.sqrt(len(values))


def tables(case: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The four cells of a case, and what each does to the first, seed by seed."""
    of = {(one.cell, one.seed): one.figures for one in results}
    seeds = sorted({one.seed for one in results})
    rows: list[dict[str, Any]] = []
    for cell, against in ((cell, against) for against in (None, "neither") for cell in CELLS if cell != against):
        figures = {
            name: interval([of[cell, seed][name] - (of[against, seed][name] if against else 0.0) for seed in seeds])
            for name in results[0].figures
        }
        rows.append({"case": case, "cell": cell, "against": against, "seeds": len(seeds), "figures": figures})
    return rows


def line(row: Mapping[str, Any]) -> str:
    """A row of the table as text."""
    label = row["cell"] if row["against"] is None else f"{row['cell']} − {row['against']}"
    sign = "" if row["against"] is None else "+"
    numbers = "".join(f"  {name} {mean:{sign}8.2f} ± {half:<6.2f}" for name, (mean, half) in row["figures"].items())
    return f"{row['case']:<20}{label:<20}{numbers}"


def main() -> None:
    """Run all cells and print what they got."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"which of {', '.join(CASES)} (default: all)")
    parser.add_argument("--clip", choices=MODES, default="per_quantile", help="how predictions are held (default per_quantile)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of each run (default {ROWS})")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each cell, at least 2 (default 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side (default: one per core)")
    parser.add_argument("--json", type=Path, help="also write every run here")
    options = parser.parse_args()
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"{', '.join(unknown)}: no such case; choose from {', '.join(CASES)}")
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds} has no spread; use at least 2")
    print(f"torch {torch.__version__}, one thread a run, {options.jobs} runs side by side, {platform.machine()}")
    rows: list[dict[str, Any]] = []
    runs: list[Result] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            case: [
                pool.submit(run, case, cell, seed, options.clip, options.rows)
                for cell, seed in product(CELLS, range(options.seeds))
            ]
            for case in options.cases or CASES
        }
        for case, futures in waiting.items():
            done = [future.result() for future in futures]
            runs += done
            rows += tables(case, done)
            for row in rows[-2 * len(CELLS) + 1 :]:
                print(line(row), flush=True)
            if options.json:
                options.json.write_text(
                    json.dumps(
                        {
                            "clip": options.clip,
                            "row_count": options.rows,
                            "rows": rows,
                            "runs": [one._asdict() for one in runs],
                        },
                        indent=1,
                    )
                )


if __name__ == "__main__":
    main()
