"""Honest evaluation: figures of returns, how sure they are, which rows may judge an agent, and charts of all that."""

from quantail.backtest import holdout, metrics, significance, splits

__all__ = ["holdout", "metrics", "significance", "splits"]
