"""The study of claims: its series have no mean, and its three tests are asked of the same ones."""

import importlib.util
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("claims", ROOT / "studies" / "claims.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def test_the_series_have_no_mean():
    found = dict(study.series(60, 4000, seed=1))
    assert len(found) == 5
    for name, x in found.items():
        means = x.mean(axis=0)
        assert abs(means.mean()) < 4 * means.std() / np.sqrt(len(means)), name


def test_shares_are_those_of_the_tests():
    x = 0.25 + np.random.default_rng(2).standard_normal((60, 200))
    ours, drawn, naive = study.claims(x, 5)
    assert naive == np.mean(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue <= 0.01)
    assert 0.1 < ours < naive
    assert drawn in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
