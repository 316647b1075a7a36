"""Policy heads: what the last hidden layer says about actions, as a record of tensors and pure functions of it.

The *raw* action is what is stored and replayed; `to_env` gives what the environment receives. Every figure is one number
per row, however many actions stand side by side.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from quantail.config import NetConfig
from quantail.errors import ConfigError, InputError
from quantail.functional import actions
from quantail.functional.checks import bad_shape, check_mask
from quantail.functional.policy import kl_categorical, kl_gaussian
from quantail.nets.encoder import linear
from quantail.types import Box, Discrete, MultiDiscrete, Space

POLICY_GAIN = 0.01  # all actions nearly alike at first (Andrychowicz et al. 2021)
LOG_STD_RANGE = (-20.0, 2.0)  # of a deviation that depends on the state (Haarnoja et al. 2018)
SDE_VARIANCE = 1e-6  # added to the variance that state-dependent exploration induces (Raffin et al. 2022)


class Gaussian(NamedTuple):
    """A diagonal Gaussian over raw actions."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A]


class HeldGaussian(NamedTuple):
    """A Gaussian whose draw is already made: its noise is a function of the state, held over many rows."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # [..., A] of the law over all held functions
    shift: Tensor  # [..., A] the draw, less the mean


class Choices(NamedTuple):
    """Independent choices side by side; forbidden ones have logit −∞."""

    logits: Tensor  # [..., ΣK]


class PolicyHead(nn.Module, ABC):
    """What every policy head can do; P is its record of parameters."""

    noise_kind: str  # of the noise of `sample`: "normal" or "uniform" on [0, 1)
    noise_dim: int  # numbers per row
    needs_entropy_noise: bool  # whether `entropy` is sampled

    @abstractmethod
    def forward(self, latent: Tensor, action_mask: Tensor | None = None, explore: Tensor | None = None) -> Any:
        """latent [..., D], action_mask [..., ΣK] bool for choices, explore [B, D, A] for held exploration -> P."""

    def explore_shape(self, batch: int) -> tuple[int, int, int] | None:
        """[B, D, A]: the shape of `explore`, standard normal noise held for each environment; None if the head takes none."""
        return None

    @abstractmethod
    def sample(self, params: Any, noise: Tensor) -> Tensor:
        """A raw action; noise [..., noise_dim]."""

    @abstractmethod
    def mode(self, params: Any) -> Tensor:
        """The raw action of a policy that does not explore."""

    @abstractmethod
    def log_prob(self, params: Any, raw: Tensor) -> Tensor:
        """Log-probability, or -density after the squash, of a raw action: [...]."""

    @abstractmethod
    def entropy(self, params: Any, noise: Tensor | None = None) -> Tensor:
        """Entropy: [...]. Noise [draws, ..., A] only where `needs_entropy_noise`."""

    @abstractmethod
    def kl(self, old: Any, new: Any) -> Tensor:
        """KL(old ‖ new) in closed form: [...]."""

    @abstractmethod
    def to_env(self, raw: Tensor) -> Tensor:
        """What the environment receives."""


def policy_head(space: Space, width: int, net: NetConfig) -> PolicyHead:
    """The head for an action space, behind latents [..., width]."""
    match space:
        case Box():
            return GaussianHead(space, width, net)
        case Discrete(n):
            return ChoiceHead((n,), width, single=True, ortho_init=net.ortho_init)
        case MultiDiscrete(sizes):
            return ChoiceHead(sizes, width, single=False, ortho_init=net.ortho_init)
    raise ConfigError(f"action space {space!r} is not known; use Box, Discrete or MultiDiscrete")


class GaussianHead(PolicyHead):
    """Real actions within a box: Gaussian, squashed or not; its deviation free, of the state, or by held exploration."""

    noise_kind = "normal"

    def __init__(self, space: Box, width: int, net: NetConfig) -> None:
        super().__init__()
        if net.gsde and net.state_dependent_std:
            raise ConfigError("gsde and state_dependent_std both set the deviation; choose one of them")
        self.shape, self.squash, self.gsde = space.shape, net.squash, net.gsde
        self.noise_dim = math.prod(space.shape)
        self.needs_entropy_noise = net.squash != "none"
        low, high = (_bound(name, space, self.noise_dim) for name in ("low", "high"))
        if net.squash != "none" and not bool((low.isfinite() & high.isfinite()).all()):
            raise ConfigError(
                f"squash={net.squash!r} needs finite action bounds, not {space.low} to {space.high}; use squash='none'"
            )
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.mean = linear(width, self.noise_dim, POLICY_GAIN, net.ortho_init)
        self.log_std: nn.Parameter | None = None
        self.log_std_layer: nn.Linear | None = None
        if net.state_dependent_std:
            self.log_std_layer = linear(width, self.noise_dim, POLICY_GAIN, net.ortho_init)
            nn.init.constant_(self.log_std_layer.bias, net.log_std_init)
        else:
            shape = (width, self.noise_dim) if net.gsde else (self.noise_dim,)
            self.log_std = nn.Parameter(torch.full(shape, float(net.log_std_init)))

    def forward(
        self, latent: Tensor, action_mask: Tensor | None = None, explore: Tensor | None = None
    ) -> Gaussian | HeldGaussian:
        if action_mask is not None:
            raise InputError("action_mask is given, but real actions cannot be forbidden; pass None")
        if explore is not None and not self.gsde:
            raise InputError("explore is given, but only gsde holds its exploration; pass None")
        mean = self.mean(latent)
        if self.log_std_layer is not None:
            return Gaussian(mean, self.log_std_layer(latent).clamp(*LOG_STD_RANGE))
        log_std = cast(Tensor, self.log_std)
        if not self.gsde:
            return Gaussian(mean, log_std.expand(mean.shape))
        state = latent.detach()  # exploration does not shape the features (stable-baselines3: learn_features=False)
        induced = 0.5 * (state.square() @ (2 * log_std).exp() + SDE_VARIANCE).log()
        if explore is None:
            return Gaussian(mean, induced)
        if tuple(explore.shape) != (latent.shape[-2], *log_std.shape):
            bad_shape("explore", explore, f"{[latent.shape[-2], *log_std.shape]} (environments, latent, actions)")
        return HeldGaussian(mean, induced, torch.einsum("...bd,bda->...ba", state, log_std.exp() * explore))

    def explore_shape(self, batch: int) -> tuple[int, int, int] | None:
        return (batch, self.mean.in_features, self.noise_dim) if self.gsde else None

    def sample(self, params: Gaussian | HeldGaussian, noise: Tensor) -> Tensor:
        if isinstance(params, HeldGaussian):
            return params.mean + params.shift
        return actions.gaussian_sample(params.mean, params.log_std, noise)

    def mode(self, params: Gaussian | HeldGaussian) -> Tensor:
        return params.mean

    def log_prob(self, params: Gaussian | HeldGaussian, raw: Tensor) -> Tensor:
        return actions.squashed_log_prob(raw, params.mean, params.log_std, self.squash)

    def entropy(self, params: Gaussian | HeldGaussian, noise: Tensor | None = None) -> Tensor:
        if not self.needs_entropy_noise:
            return actions.gaussian_entropy(params.log_std)
        if noise is None:
            raise InputError(
                "noise is None; the entropy of a squashed Gaussian is sampled: pass normal noise [draws, ..., actions]"
            )
        return actions.squashed_entropy(params.mean, params.log_std, noise, self.squash)

    def kl(self, old: Gaussian | HeldGaussian, new: Gaussian | HeldGaussian) -> Tensor:
        return kl_gaussian(old.mean, old.log_std, new.mean, new.log_std)

    def to_env(self, raw: Tensor) -> Tensor:
        """Squashed onto the box, or cut off at its sides: [..., A] -> [..., *shape]."""
        low, high = cast(Tensor, self.low).to(raw.dtype), cast(Tensor, self.high).to(raw.dtype)
        if self.squash == "none":
            action = raw
        else:
            share = actions.squash(raw, self.squash)
            action = low + (high - low) * ((share + 1) / 2 if self.squash == "tanh" else share)
        return action.clamp(low, high).reshape(*raw.shape[:-1], *self.shape)


class ChoiceHead(PolicyHead):
    """One choice, or several side by side; a mask forbids some, and a mask that forbids all forbids none."""

    noise_kind = "uniform"
    needs_entropy_noise = False

    def __init__(self, sizes: Sequence[int], width: int, single: bool, ortho_init: bool = True) -> None:
        super().__init__()
        self.sizes, self.single = list(sizes), single
        self.noise_dim = len(self.sizes)
        self.logits = linear(width, sum(self.sizes), POLICY_GAIN, ortho_init)

    def forward(self, latent: Tensor, action_mask: Tensor | None = None, explore: Tensor | None = None) -> Choices:
        if explore is not None:
            raise InputError("explore is given, but choices have no held exploration; pass None")
        logits = self.logits(latent)
        if action_mask is None:
            return Choices(logits)
        mask = check_mask("action_mask", action_mask, logits.shape, "rows, choices")
        blocks = [block | ~block.any(-1, keepdim=True) for block in torch.split(mask, self.sizes, -1)]
        return Choices(torch.where(torch.cat(blocks, -1), logits, -math.inf))

    def sample(self, params: Choices, noise: Tensor) -> Tensor:
        return self._one(actions.multi_categorical_sample(params.logits, self.sizes, noise))

    def mode(self, params: Choices) -> Tensor:
        return self._one(torch.stack([block.argmax(-1) for block in torch.split(params.logits, self.sizes, -1)], -1))

    def log_prob(self, params: Choices, raw: Tensor) -> Tensor:
        return actions.multi_categorical_log_prob(params.logits, self.sizes, raw[..., None] if self.single else raw)

    def entropy(self, params: Choices, noise: Tensor | None = None) -> Tensor:
        return actions.multi_categorical_entropy(params.logits, self.sizes)

    def kl(self, old: Choices, new: Choices) -> Tensor:
        pairs = zip(torch.split(old.logits, self.sizes, -1), torch.split(new.logits, self.sizes, -1), strict=True)
        return torch.stack([kl_categorical(p, q) for p, q in pairs]).sum(0)

    def to_env(self, raw: Tensor) -> Tensor:
        return raw

    def _one(self, index: Tensor) -> Tensor:
        return index[..., 0] if self.single else index


def _bound(name: str, space: Box, size: int) -> Tensor:
    """One side of a box, for each entry; float64, so that the environment gets the number that was written down."""
    value = space.low if name == "low" else space.high
    bound = torch.as_tensor(value, dtype=torch.float64).flatten()
    if bound.numel() not in (1, size):
        raise ConfigError(
            f"{name} of the action space has {bound.numel()} numbers for {size} entries; give one, or one for each"
        )
    return bound.expand(size).clone()
