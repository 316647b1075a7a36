"""An agent at work: bars come one by one, weights go out."""

from quantail.live.runner import Runner
from quantail.live.window import Candle

__all__ = ["Candle", "Runner"]
