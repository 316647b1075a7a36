"""The table of how well noise is measured is the one in the docs, and its bias the one that the docs explain."""

import importlib.util

import pytest

from architecture.rules import ROOT

spec = importlib.util.spec_from_file_location("gradient_noise", ROOT / "studies" / "gradient_noise.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


@pytest.mark.parametrize(
    ("estimator", "kind", "ratio"),
    [
        *((estimator, kind, 0.25) for estimator in ("elementwise", "two_batch") for kind in study.KINDS),
        ("elementwise", "cancelling", 4.0),
        ("two_batch", "independent", 4.0),
    ],
)
def test_known_ratios_are_measured_within_a_tenth(estimator, kind, ratio):
    assert float(study.measured(estimator, kind, ratio, runs=60, steps=500).mean()) == pytest.approx(ratio, rel=0.1)


def test_shared_noise_is_overestimated_by_four_q_rho():
    q, ratio = (1 - 0.9) / (1 + 0.9), 0.2
    found = float(study.measured("elementwise", "shared", ratio, runs=4000, steps=100, decay=0.9).mean())
    assert found / ratio - 1 == pytest.approx(4 * q * ratio, abs=0.02)
    assert 4 * q * ratio > 0.04


@pytest.mark.slow
def test_the_table_in_the_docs_is_the_one_that_is_measured():
    text = study.DOCS.read_text(encoding="utf-8")
    assert text.split(study.BEGIN)[1].split(study.END)[0].strip() == study.table(study.rows())
