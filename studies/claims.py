"""How often a mean above 0 is claimed where there is none: the verdict's test beside two others, at a chance of 1 %.

    python studies/claims.py [--series 4000] [--resampled 400]

Series of 250 and 2500 returns whose true mean is 0: Gaussian, fat tails, many small gains before few large losses, neighbours
alike, volatility in clusters. Three tests claim "above 0": `backtest.inference.judged`; the lower end of the 98 % interval of
the stationary bootstrap (BCa, its block chosen by the data) above 0; and the t-test that takes every return for a fact.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np

from quantail.backtest.inference import judged, student_cdf
from quantail.backtest.series import Floats
from quantail.backtest.significance import bootstrap_interval

LEVEL = 0.01


def series(rows: int, count: int, seed: int) -> Iterator[tuple[str, Floats]]:
    """Names and returns [rows, count] of mean 0."""
    noise = np.random.default_rng(seed)
    yield "Gaussian", noise.standard_normal((rows, count))
    yield "Student-t(3)", noise.standard_t(3, (rows, count))
    yield "many small gains, few large losses (lognormal)", math.exp(0.5) - np.exp(noise.standard_normal((rows, count)))
    shock = noise.standard_normal((rows + 1, count))
    yield "neighbours alike (MA 0.5)", shock[1:] + 0.5 * shock[:-1]
    variance, returns = np.ones(count), np.empty((rows, count))
    for t in range(rows):
        returns[t] = noise.standard_t(4, count) / math.sqrt(2) * np.sqrt(variance)
        variance = 0.02 + 0.08 * returns[t] ** 2 + 0.9 * variance
    yield "GARCH(0.08, 0.90) with Student-t(4)", returns


def claims(x: Floats, resampled: int) -> tuple[float, float, float]:
    """Shares of the series for which each test claims."""
    rows = len(x)
    ours = np.mean([judged(x[:, [i]]).p_above <= LEVEL for i in range(x.shape[1])])
    t = x.mean(axis=0) / x.std(axis=0, ddof=1) * math.sqrt(rows)
    naive = np.mean([1 - student_cdf(one, rows - 1) <= LEVEL for one in t])
    some = range(min(resampled, x.shape[1]))
    drawn = [bootstrap_interval(x[:, i], np.mean, 1 - 2 * LEVEL, resamples=1000)[0] > 0 for i in some]
    return float(ours), float(np.mean(drawn)) if drawn else math.nan, float(naive)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=4000, help="of each kind (default %(default)s)")
    parser.add_argument("--resampled", type=int, default=400, help="of those for the bootstrap (default %(default)s)")
    asked = parser.parse_args()
    print("| Returns | Law | Verdict's test | Bootstrap, BCa | Every return a fact |\n| --- | --- | --- | --- | --- |")
    for rows in (250, 2500):
        for name, x in series(rows, asked.series, rows):
            found = claims(x, asked.resampled if rows < 1000 else asked.resampled // 4)
            print(f"| {rows} | {name} | {' | '.join(f'{100 * one:.1f} %' for one in found)} |", flush=True)


if __name__ == "__main__":
    main()
