"""Honest evaluation: figures of returns, how sure they are, which rows may judge an agent, and charts of all that."""

from quantail.backtest import (
    baselines,
    charts,
    course,
    evidence,
    holdout,
    metrics,
    report,
    significance,
    splits,
    track,
    verdict,
)

__all__ = [
    "baselines",
    "charts",
    "course",
    "evidence",
    "holdout",
    "metrics",
    "report",
    "significance",
    "splits",
    "track",
    "verdict",
]
