"""docs/evaluation.md says what the libraries print now, and its examples print what they say."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quantail.backtest import metrics, significance

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
spec = importlib.util.spec_from_file_location("definitions", ROOT / "studies" / "definitions.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def test_the_table_in_the_docs_is_the_one_that_is_measured():
    assert f"{study.BEGIN}\n{study.markdown(study.rows(study.closes()))}\n{study.END}" in PAGE


def test_the_table_refuses_to_say_that_what_differs_is_the_same():
    row = study.Row("Sharpe", 1.0, {"somebody": 1.0 + 1e-9}, {})
    with pytest.raises(AssertionError):
        study.markdown([row])


def test_the_formula_of_the_log_normal_deviation_is_that_of_many_years():
    """Deviation of the growth of a year of independent returns, by drawing years."""
    noise = np.random.default_rng(0)
    prices = pd.Series(100 * np.cumprod(1 + 0.001 + 0.01 * noise.standard_normal(3000)))
    x = prices.pct_change().dropna().to_numpy()
    years = np.prod(1 + noise.choice(x, (5_000, 252)), axis=1)
    ratio = next(
        row.other["growth over log-normal deviation"][0] for row in study.rows(dated(prices)) if "A = 252" in row.figure
    )
    assert ratio == pytest.approx(metrics.cagr(x) / years.std(), rel=0.03)


def dated(prices):
    return prices.set_axis(pd.date_range("2000-01-03", periods=len(prices), freq="B"))


def test_every_figure_is_in_the_table_of_definitions():
    section = PAGE.split("## Definitions")[1].split("## Who disagrees")[0]
    records = {"Drawdown", "Months", "equity_curve", "total_return"}
    assert {name for name in metrics.__all__ if name not in records} <= set(re.findall(r"`(\w+)`", section))


def test_the_table_of_worthless_trials():
    """A Gaussian agent with a Sharpe ratio of 1 over ten years of 252 days."""
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    ratio, error = 252**-0.5, ((1 + 0.5 / 252) / 2519) ** 0.5
    for trials, best, probability in rows:
        expected = significance.expected_maximum_sharpe(10**-0.5, int(trials))
        assert f"{expected:.{len(best.partition('.')[2])}f}" == best
        deflated = significance._normal_cdf((ratio - expected / 252**0.5) / error)
        assert f"{deflated:.{len(probability.partition('.')[2])}f}" == probability
