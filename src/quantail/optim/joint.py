"""Optimizers by name, several as one, and what they say of themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from quantail.config import OptimConfig
from quantail.errors import ConfigError
from quantail.optim.muon import MuonOnDevice
from quantail.optim.schedule import CRITIC
from quantail.optim.upgd import UPGD, UPGDW, AdaptiveUPGD
from quantail.optim.variance import VarianceScaler

Groups = list[dict[str, Any]]
ANOTHER = "it was saved with another optim.name or optim.variance.estimator; use the one it was saved with"


class Joint(torch.optim.Optimizer):
    """Several optimizers, each with parameters of its own, as one; and who measures the gradient for all of them."""

    def __init__(self, members: Sequence[torch.optim.Optimizer], scaler: VarianceScaler | None = None) -> None:
        super().__init__([p for member in members for group in member.param_groups for p in group["params"]], {})
        self.members, self.scaler = list(members), scaler
        self._join()

    def _join(self) -> None:
        """The members' own groups: a rate that is set here is the one they use."""
        self.param_groups = [group for member in self.members for group in member.param_groups]

    def step(self, closure: Any = None) -> Any:
        """One step of each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The members', and what is known of the gradient."""
        known = None if self.scaler is None else self.scaler.state_dict()
        return {"members": [member.state_dict() for member in self.members], "variance": known}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        saved, known = state_dict.get("members", ()), state_dict.get("variance")
        if len(saved) != len(self.members) or (known is None) != (self.scaler is None):
            raise ConfigError(ANOTHER)
        for member, state in zip(self.members, saved, strict=True):
            member.load_state_dict(state)
        if self.scaler is not None and known is not None:
            self.scaler.load_state_dict(known)
        self._join()

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def make(params: Sequence[Tensor], critic: Sequence[Tensor], config: OptimConfig, seed: int) -> torch.optim.Optimizer:
    """The optimizer by name, for these parameters; those of the critics go at a rate of their own if there is one."""
    groups: Groups = [{"params": list(params)}]
    if config.critic_learning_rate is not None:
        ids = set(map(id, critic))
        groups = [{"params": [p for p in params if id(p) not in ids]}]
        groups += [{"params": list(critic), "name": CRITIC, "lr": config.critic_learning_rate}]
    members = _muon(groups, config) if config.name == "muon" else [_single(config.name, groups, config, seed)]
    if config.variance.estimator == "off":
        return members[0] if len(members) == 1 else Joint(members)
    return Joint(members, VarianceScaler(params, **asdict(config.variance)))


def _single(name: str, groups: Groups, config: OptimConfig, seed: int) -> torch.optim.Optimizer:
    decay, betas, rate = config.weight_decay, (config.beta1, config.beta2), _rates(groups, config)
    on_device = isinstance(rate, Tensor)
    gating: Any = {**asdict(config.upgd), "seed": seed, "capturable": on_device}
    match name:
        case "sgd":
            return torch.optim.SGD(groups, rate, weight_decay=decay, fused=on_device or None)
        case "adam":
            return torch.optim.Adam(groups, rate, betas, config.eps, decay, capturable=on_device, fused=on_device or None)
        case "upgd":
            return UPGD(groups, rate, decay, **gating)
        case "upgdw":
            return UPGDW(groups, rate, decay, **gating)
        case "adaptive_upgd":
            return AdaptiveUPGD(groups, rate, betas, config.eps, decay, **gating)
    return torch.optim.AdamW(groups, rate, betas, config.eps, decay, capturable=on_device, fused=on_device or None)


def _rates(groups: Groups, config: OptimConfig) -> Any:
    """The rate of what has none of its own. On a device, where a captured graph may replay the step, all of them lie there."""
    device = groups[0]["params"][0].device
    if not _captures(device):
        return config.learning_rate
    for group in groups:
        group["lr"] = torch.tensor(float(group.get("lr", config.learning_rate)), device=device)
    return torch.tensor(config.learning_rate, device=device)


def _captures(device: torch.device) -> bool:
    return device.type == "cuda"


def _muon(groups: Groups, config: OptimConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, its steps as large as AdamW's; AdamW for the rest."""
    if "Muon" not in vars(torch.optim):
        raise ConfigError(
            f"optim.name='muon' needs torch.optim.Muon, which torch {torch.__version__} lacks; use torch 2.9, or adamw"
        )
    matrices, others = (
        [
            part
            for group in groups
            if (part := {**group, "params": [p for p in group["params"] if (p.ndim == 2) == flat]})["params"]
        ]
        for flat in (True, False)
    )
    found: list[torch.optim.Optimizer] = []
    if matrices:
        rate = _rates(matrices, config)
        kind = MuonOnDevice if isinstance(rate, Tensor) else torch.optim.Muon
        found.append(kind(matrices, rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"))
    return [*found, _single("adamw", others, config, 0)] if others else found


def load_moments(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """What an optimizer learned; its settings stay as they are, but for the learning rate, which is set in every update.

    torch's `load_state_dict` takes the settings too: a weight decay that was changed before a run goes on would change nothing.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    if "members" in state and not isinstance(optimizer, Joint):
        raise ConfigError(ANOTHER)
    optimizer.load_state_dict(dict(state))
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        rate, mine = float(group["lr"]), settings["lr"]
        group.update(settings)
        group["lr"] = mine.fill_(rate) if isinstance(mine, Tensor) else rate
    for member in members_of(optimizer):
        _settle(member)


def _settle(optimizer: torch.optim.Optimizer) -> None:
    """Counters lie where this optimizer counts, which may be another device than the one they were saved on."""
    moved: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            if state and any(name not in state for name in _needed(optimizer)):
                raise ConfigError(ANOTHER)
            if isinstance(step := state.get("step"), Tensor) and group.get("capturable"):
                state["step"] = moved.setdefault(id(step), step.to(p.device))


def _needed(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What it cannot step without, once it has begun."""
    if isinstance(optimizer, UPGD):
        return "step", "utility", *optimizer.moments
    return ("step", "exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) else ()


def members_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Those that step: itself, or those it is made of."""
    return optimizer.members if isinstance(optimizer, Joint) else [optimizer]


def scaler_of(optimizer: torch.optim.Optimizer) -> VarianceScaler | None:
    """Who measures the gradient, if anybody does."""
    return optimizer.scaler if isinstance(optimizer, Joint) else None


@torch.no_grad()
def figures(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an iteration reports: mean and spread of the gates as they are now, noise to signal, the factor of the steps."""
    found: dict[str, Tensor] = {}
    for member in members_of(optimizer):
        if isinstance(member, UPGD) and member.state:
            gates = torch.cat([gate.double().flatten() for gate in member.gates()])
            found |= {"optim/gate_mean": gates.mean(), "optim/gate_std": gates.std(correction=0)}
    if (scaler := scaler_of(optimizer)) is not None:
        found |= {"optim/variance_ratio": scaler.ratio(), "optim/variance_factor": scaler.factor()}
    for group in optimizer.param_groups:
        if group.get("name") == CRITIC:
            found["optim/critic_learning_rate"] = torch.as_tensor(group["lr"], dtype=torch.float64)
    return found
