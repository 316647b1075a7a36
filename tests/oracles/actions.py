"""Other people's action laws, and slopes with 60 digits."""

import mpmath
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import SigmoidTransform, TanhTransform

SQUASHES = {"tanh": TanhTransform, "sigmoid": SigmoidTransform}


def squashed_normal(mean: Tensor, log_std: Tensor, kind: str) -> Independent:
    """torch's own squashed diagonal Gaussian; the last axis is one event."""
    return Independent(TransformedDistribution(Normal(mean, log_std.exp()), [SQUASHES[kind]()]), 1)


def log_slope(x: float, kind: str) -> float:
    """log f′(x) from the definition of f′, with digits to spare."""
    with mpmath.workdps(60):
        x = mpmath.mpf(x)
        slope = 1 - mpmath.tanh(x) ** 2 if kind == "tanh" else mpmath.exp(-x) / (1 + mpmath.exp(-x)) ** 2
        return float(mpmath.log(slope))
