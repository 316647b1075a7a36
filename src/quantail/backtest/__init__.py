"""Honest evaluation: figures of returns, how sure they are, which rows may judge an agent, and charts of all that."""

from quantail.backtest import charts, holdout, metrics, significance, splits

__all__ = ["charts", "holdout", "metrics", "significance", "splits"]
