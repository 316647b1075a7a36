"""Environments: state is a value, noise is an argument. Gymnasium's and SB3's come in through `envs.gymnasium`."""

from quantail.envs import oracles
from quantail.envs.base import EpisodicEnv, TensorEnv

__all__ = ["EpisodicEnv", "TensorEnv", "oracles"]
