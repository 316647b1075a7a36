"""Expectations under a Gaussian by quadrature, and divergences at a precision that float64 does not have."""

from collections.abc import Callable

import mpmath
import numpy as np
import torch
from torch import Tensor


def normal_mean(f: Callable[[Tensor], Tensor], mean: float = 0.0, std: float = 1.0, nodes: int = 120) -> float:
    """E f(x), x ~ N(mean, std²), by Gauss-Hermite quadrature."""
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return float(f(mean + std * torch.from_numpy(x)).numpy() @ weights / weights.sum())


def precise_kl_gaussian(mean_p: float, log_std_p: float, mean_q: float, log_std_q: float) -> float:
    """log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²)/(2σ_q²) − ½ with 60 digits."""
    with mpmath.workdps(60):
        mu_p, s_p, mu_q, s_q = map(mpmath.mpf, (mean_p, log_std_p, mean_q, log_std_q))
        return float(s_q - s_p + (mpmath.exp(2 * s_p) + (mu_p - mu_q) ** 2) / (2 * mpmath.exp(2 * s_q)) - mpmath.mpf(1) / 2)


def precise_k3(log_ratio: float) -> float:
    with mpmath.workdps(60):
        return float(mpmath.exp(log_ratio) - 1 - mpmath.mpf(log_ratio))
