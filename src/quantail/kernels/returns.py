"""Advantages and particles by one kernel on a GPU where Triton is, particles by one loop where a C compiler is, else by
`functional.returns`: the same numbers."""

from typing import cast

import torch
from torch import Tensor

from quantail.functional import returns as plain
from quantail.functional.checks import check_law, check_mask, check_shape
from quantail.kernels import native
from quantail.kernels.roads import takes_triton
from quantail.types import Law


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    *,
    valid: Tensor | None = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`functional.returns.gae`: rewards, masks [T, ...], values [T+1, ...] -> advantages, returns [T, ...], without gradients.

    A_t = δ_t + γλ·(1 − terminated_t)·(1 − truncated_t)·A_{t+1}   (Schulman et al. 2016)
    """
    final = () if final_values is None else (final_values,)
    if _learns_nothing(rewards, values, *final):
        from quantail.kernels.gpu.returns import advantages_and_returns

        check_shape("values", values, (len(rewards) + 1, *rewards.shape[1:]), "as rewards, with one row more")
        for each in final:
            check_shape("final_values", each, rewards.shape, "as rewards")
        masks = _masks(rewards, terminated, truncated, valid)
        found: tuple[Tensor, Tensor] = advantages_and_returns(
            rewards, values, masks[0], masks[1], gamma, lam, masks[2], final_values
        )
        return found
    return plain.gae(rewards, values, terminated, truncated, gamma, lam, valid=valid, final_values=final_values)


def distributional_targets(
    rewards: Tensor,
    law: Law,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    follow_noise: Tensor,
    level_noise: Tensor,
    *,
    valid: Tensor | None = None,
    final_law: Law | None = None,
) -> Tensor:
    """`functional.returns.distributional_targets`: law of [T+1, ..., N], noises [T, ..., M] -> particles [T, ..., M].

    y_t = r_t + γ·( y_{t+1} if the row goes on and u_t < λ; else z ~ Z⁺_{t+1} )   (Nam, Kim & Park 2021)
    """
    noise = (follow_noise, level_noise)
    if _learns_nothing(rewards, *law, *(final_law or ()), *noise):
        from quantail.kernels.gpu.returns import sample_replacement

        check_law("law", law, (len(rewards) + 1, *rewards.shape[1:]))
        for each, name in zip(noise, ("follow_noise", "level_noise"), strict=True):
            check_shape(name, each, (*rewards.shape, level_noise.shape[-1]), "as rewards, then particles")
        if final_law is not None:
            check_law("final_law", final_law, rewards.shape)
        masks = _masks(rewards, terminated, truncated, valid)
        found: Tensor = sample_replacement(
            rewards, list(law), masks[0], masks[1], gamma, lam, list(noise), masks[2], list(final_law or ())
        )
        return found
    ends = (terminated, truncated, gamma, lam)
    if _in_one_loop(rewards, law, noise, final_law, valid):
        masks = _masks(rewards, terminated, truncated, valid)
        check_law("law", law, (len(rewards) + 1, *rewards.shape[1:]))
        going = (masks[0], ~(masks[0] | masks[1]), cast(Tensor, masks[2]))
        return native.sample_replacement(rewards, law, noise, going, gamma, lam)
    return plain.distributional_targets(rewards, law, *ends, *noise, valid=valid, final_law=final_law)


def _in_one_loop(rewards: Tensor, law: Law, noise: tuple[Tensor, Tensor], final_law: Law | None, valid: Tensor | None) -> bool:
    """Whether the compiled loop serves: laws of shared masses, no final law apart, everything as it should be."""
    if final_law is not None or valid is None or law.masses.ndim != 1 or law.locations.ndim != rewards.ndim + 1:
        return False
    if any(each.shape[:-1] != rewards.shape or each.shape != noise[0].shape for each in noise):
        return False  # told by the plain function
    tensors = (rewards, *law, *noise)
    asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not asked and native.fits(*tensors)


def _learns_nothing(*tensors: Tensor) -> bool:
    """Whether the kernels serve: on a GPU, and nobody asks for a gradient, which they have not."""
    asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not asked and takes_triton(*tensors)


def _masks(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The masks as bool, in the shape of the rewards."""
    shape = rewards.shape
    ends = check_mask("terminated", terminated, shape, "as rewards"), check_mask("truncated", truncated, shape, "as rewards")
    return *ends, None if valid is None else check_mask("valid", valid, shape, "as rewards")
