"""What moves the policy: the clipped surrogate, how far it moved, and learning from advantages alone."""

import math

import torch
from torch import Tensor

from quantail.functional.checks import (
    check_choice,
    check_knob,
    check_last,
    check_number,
    check_rank,
    check_shape,
    check_tensor,
)

LOG_RATIO_BOUND = 20.0  # e^20 is far beyond any useful ratio, and e^20 squared is still finite in float32


def clamp_log_ratio(log_ratio: Tensor, bound: float = LOG_RATIO_BOUND, mode: str = "hard") -> Tensor:
    """Log-ratio within ±b, so that its exponential stays finite: clip(x, ±b), or b·tanh(x/b)   (Source: docs/algorithms.md).

    log_ratio [...] -> [...]. `hard` leaves everything inside untouched. `tanh` keeps a gradient outside but bends what
    lies inside (5 by 2 % at b = 20). NaN stays NaN: count it before, it must not hide.
    """
    check_tensor("log_ratio", log_ratio)
    check_number("bound", bound, 0.0, low_open=True)
    check_choice("mode", mode, ("hard", "tanh"))
    return log_ratio.clamp(-bound, bound) if mode == "hard" else bound * torch.tanh(log_ratio / bound)


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: float | Tensor) -> Tensor:
    """PPO's surrogate as a loss: −min(r·A, clip(r, 1 − ε, 1 + ε)·A),  r = e^{log π − log π_old}   (Schulman et al. 2017).

    log_ratio, advantages [...], clip a number or a scalar tensor -> loss per row [...].
    """
    check_tensor("log_ratio", log_ratio)
    check_shape("advantages", advantages, log_ratio.shape, "as log_ratio")
    check_knob("clip", clip, 0.0)
    ratio = log_ratio.exp()
    clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)  # type: ignore[arg-type]  # number or tensor: torch takes both
    return -torch.minimum(ratio * advantages, clipped * advantages)


def kl_estimate(log_ratio: Tensor, kind: str = "k3") -> Tensor:
    """KL(old ‖ new) from actions of the old policy, x = log π_new − log π_old   (Schulman 2020, "Approximating KL divergence").

        k1 = −x  (unbiased, noisy, may be negative)    k2 = x²/2  (biased)    k3 = eˣ − 1 − x  (unbiased, ≥ 0)

    log_ratio [...] -> a KL per row [...]. k3 has a heavy tail where the new policy is wider: prefer the closed forms.
    """
    check_tensor("log_ratio", log_ratio)
    check_choice("kind", kind, ("k1", "k2", "k3"))
    if kind == "k1":
        return -log_ratio
    return 0.5 * log_ratio.square() if kind == "k2" else log_ratio.expm1() - log_ratio


def kl_gaussian(mean_p: Tensor, log_std_p: Tensor, mean_q: Tensor, log_std_q: Tensor) -> Tensor:
    """KL(p ‖ q) of diagonal Gaussians   (Kullback & Leibler 1951).

        Σ_a ½·(e^{2s} − 1) − s + ½·((μ_p − μ_q)/σ_q)²,   s = log σ_p − log σ_q

    all [..., A] (deviations may be [A], shared by the rows) -> [...]. Finite down to σ = 1e-10, exact near p = q, and the
    same for any squashing of the two, which cancels.
    """
    check_rank("mean_p", mean_p, 1, "[..., actions]")
    check_shape("mean_q", mean_q, mean_p.shape, "as mean_p")
    check_last("log_std_p", log_std_p, mean_p.shape, "rows, actions")
    check_last("log_std_q", log_std_q, mean_p.shape, "rows, actions")
    shift = (mean_p - mean_q) * torch.exp(-log_std_q)
    log_scale = log_std_p - log_std_q
    return (0.5 * (torch.expm1(2 * log_scale) + shift.square()) - log_scale).sum(-1)


def kl_categorical(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL(p ‖ q) of categorical laws: Σ_k p_k·(log p_k − log q_k)   (Kullback & Leibler 1951).

    logits [..., K] -> [...]. What p forbids (logit −∞) counts 0; what only q forbids costs ∞.
    """
    check_rank("logits_p", logits_p, 1, "[..., choices]")
    check_shape("logits_q", logits_q, logits_p.shape, "as logits_p")
    log_p, log_q = logits_p.log_softmax(-1), logits_q.log_softmax(-1)
    gap = torch.where(log_p == -math.inf, 0.0, log_p) - torch.where(log_p == -math.inf, 0.0, log_q)
    return (log_p.exp() * gap).sum(-1)


def awr_weights(advantages: Tensor, beta: float | Tensor, max_weight: float = 20.0) -> Tensor:
    """Weights of advantage-weighted regression: w = exp(min(A/β, ln w_max))   (Peng et al. 2019).

    advantages [...], beta > 0 or a scalar tensor -> [...] without gradient. The exponent is clamped, not the exponential:
    nothing overflows on the way.
    """
    check_tensor("advantages", advantages)
    check_knob("beta", beta, 0.0, low_open=True)
    check_number("max_weight", max_weight, 0.0, low_open=True)
    return (advantages.detach() / beta).clamp_max(math.log(max_weight)).exp()


def awr_loss(log_prob: Tensor, advantages: Tensor, beta: float | Tensor, max_weight: float = 20.0) -> Tensor:
    """Advantage-weighted regression, or cloning of one's better actions: −log π(a)·w(A)   (Peng et al. 2019).

    log_prob, advantages [...] -> loss per row [...].
    """
    check_tensor("log_prob", log_prob)
    check_shape("advantages", advantages, log_prob.shape, "as log_prob")
    return -log_prob * awr_weights(advantages, beta, max_weight)
