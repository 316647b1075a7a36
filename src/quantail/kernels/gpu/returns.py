"""Advantages and particles on a GPU: one kernel for all rows of each."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from quantail.kernels.gpu import launch
from quantail.kernels.gpu.device import returns as device

THREADS = 128  # environments, or particles of them, of one program


@torch.library.custom_op("quantail::advantages", mutates_args=())
def advantages_and_returns(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    valid: Tensor | None,
    final_values: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`functional.returns.gae` of checked arguments: rewards, masks [T, ...], values [T+1, ...] -> two of [T, ...]."""
    rewards, values = rewards.contiguous(), values.contiguous()
    terminated, truncated = terminated.contiguous(), truncated.contiguous()
    found, returns = torch.empty_like(rewards), torch.empty_like(rewards)
    envs = rewards[0].numel()
    with launch.on(rewards):
        device.advantages[(triton.cdiv(envs, THREADS),)](
            *(rewards, values, terminated, truncated),
            *(
                terminated if valid is None else valid.contiguous(),
                values if final_values is None else final_values.contiguous(),
            ),
            *(found, returns, len(rewards), envs, gamma, gamma * lam),
            GIVEN=valid is not None,
            SAME_STEP=final_values is not None,
            BLOCK=THREADS,
            enable_fp_fusion=False,
        )
    return found, returns


@advantages_and_returns.register_fake
def _(rewards: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return rewards.new_empty(rewards.shape), rewards.new_empty(rewards.shape)


@torch.library.custom_op("quantail::sample_replacement", mutates_args=())
def sample_replacement(
    rewards: Tensor,
    law: Sequence[Tensor],
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    noise: Sequence[Tensor],
    valid: Tensor | None,
    final_law: Sequence[Tensor],
) -> Tensor:
    """`functional.returns.distributional_targets` of checked arguments: rewards [T, ...], noise [T, ..., M] -> [T, ..., M].

    A law is its locations and masses; `final_law` is empty where there is none.
    """
    follow_noise, level_noise = (part.contiguous() for part in noise)
    rewards, terminated, truncated = rewards.contiguous(), terminated.contiguous(), truncated.contiguous()
    found, envs, many = torch.empty_like(level_noise), rewards[0].numel(), level_noise.shape[-1]
    cumulative, locations, *rows = _table(law)
    final_cumulative, final_locations, *final_rows = _table(final_law or law)
    atoms = law[0].shape[-1]
    with launch.on(rewards):
        device.particles[(triton.cdiv(envs * many, THREADS),)](
            *(rewards, terminated, truncated, terminated if valid is None else valid.contiguous(), follow_noise, level_noise),
            *(cumulative, locations, final_cumulative, final_locations, found, len(rewards), envs, gamma, lam),
            *(*rows, *final_rows),
            M=many,
            N=atoms,
            GIVEN=valid is not None,
            SAME_STEP=len(final_law) > 0,
            STEPS=atoms.bit_length(),
            BLOCK=THREADS,
            enable_fp_fusion=False,
        )
    return found


@sample_replacement.register_fake
def _(rewards: Tensor, law: Sequence[Tensor], *rest: Sequence[Tensor]) -> Tensor:
    level_noise = rest[4][1]
    return level_noise.new_empty(level_noise.shape)


def _table(law: Sequence[Tensor]) -> tuple[Tensor, Tensor, int, int]:
    """Cumulative masses, as `draw_index` computes them, and locations; and how far one row lies from the next in each."""
    cumulative = law[1].detach().cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    parts = cumulative.contiguous(), law[0].detach().contiguous()
    masses_row, locations_row = (part.shape[-1] if part.ndim > 1 else 0 for part in parts)
    return *parts, masses_row, locations_row
