"""Optimizers that keep learning, how fast they go, and how noisy the gradient is that they follow."""

from quantail.optim.gates import hutchinson
from quantail.optim.upgd import UPGD, UPGDW, AdaptiveUPGD
from quantail.optim.variance import VarianceScaler

__all__ = ["UPGD", "UPGDW", "AdaptiveUPGD", "VarianceScaler", "hutchinson"]
