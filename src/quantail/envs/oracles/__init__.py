"""Environments whose right answer is known: each computes its own optimum, for any parameters."""

from quantail.envs.oracles.cartpole import CartPole
from quantail.envs.oracles.control import LQR, GarleanuPedersen
from quantail.envs.oracles.execution import AlmgrenChriss
from quantail.envs.oracles.growth import Kelly, Merton
from quantail.envs.oracles.laws import AR1Sum, CoinSum, GaussianSum, GeometricSum
from quantail.envs.oracles.memory import MemoryChain, TMaze
from quantail.envs.oracles.oracle import Oracle
from quantail.envs.oracles.position import CVaRPosition
from quantail.envs.oracles.regime import HiddenRegime
from quantail.envs.oracles.signal import OUSignal
from quantail.envs.oracles.tail import Corridor, CVaRBandit, StaticNested

__all__ = [
    "LQR",
    "AR1Sum",
    "AlmgrenChriss",
    "CVaRBandit",
    "CVaRPosition",
    "CartPole",
    "CoinSum",
    "Corridor",
    "GarleanuPedersen",
    "GaussianSum",
    "GeometricSum",
    "HiddenRegime",
    "Kelly",
    "MemoryChain",
    "Merton",
    "OUSignal",
    "Oracle",
    "StaticNested",
    "TMaze",
]
