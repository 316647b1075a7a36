"""What makes an environment an oracle: it knows the best that any policy can get."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from quantail.envs.base import EpisodicEnv
from quantail.functional.checks import check_choice

Unit = Literal["step", "episode", "discounted"]


class Where(TypedDict, total=False):
    """How every oracle computes: dtype of observations, rewards and dynamics (float32), and on which device (cpu)."""

    dtype: torch.dtype
    device: torch.device | str


class Oracle(EpisodicEnv):
    """An environment with a known answer.

    `unit` says what `optimum` and the baselines count: the mean reward of a `step` in the long run, the mean sum of rewards
    of an `episode`, or the mean `discounted` sum Σ discountᵗ·r_t from the start of an episode that nothing cuts off.
    """

    unit: ClassVar[Unit]

    @abstractmethod
    def optimum(self) -> float:
        """What the best policy gets, in `unit`."""

    @property
    def discount(self) -> float:
        """The discount that `optimum` uses; 1 where nothing is discounted."""
        return 1.0

    def baselines(self) -> Mapping[str, float]:
        """What simpler policies get, by name, in `unit`."""
        return {}

    def baseline(self, name: str) -> float:
        """What one simpler policy gets, in `unit`."""
        known = self.baselines()
        check_choice("name", name, tuple(known))
        return known[name]


class Nothing(NamedTuple):
    """The state of an environment that remembers nothing."""


class Scalar(NamedTuple):
    """The state of an environment that remembers one number."""

    x: Tensor  # [B]
