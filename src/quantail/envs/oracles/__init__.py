"""Environments whose right answer is known: each computes its own optimum, for any parameters."""

from quantail.envs.oracles.cartpole import CartPole
from quantail.envs.oracles.control import LQR, GarleanuPedersen
from quantail.envs.oracles.regime import HiddenRegime

__all__ = ["LQR", "CartPole", "GarleanuPedersen", "HiddenRegime"]
