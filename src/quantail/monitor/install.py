"""Is this installation healthy? What is installed, and whether the mathematics gives the known answers on it."""

import importlib.util
import math
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import torch

from quantail.kernels import native

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)

# Import names of what the default install brings beside torch, and of what each extra adds.
DEFAULT = (
    *("numpy", "safetensors", "gymnasium", "pandas", "pyarrow", "matplotlib"),
    *("jinja2", "rich", "tyro", "yaml", "tensorboard"),
)
EXTRAS = {
    "data": ("polars", "ccxt", "yfinance"),
    "track": ("wandb", "mlflow"),
    "scale": ("ray",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}


@dataclass(frozen=True)
class Check:
    """One line of the examination."""

    name: str
    ok: bool
    seen: str
    needed: str  # empty: nothing is asked, the line only informs


def examine() -> list[Check]:
    """Everything a bug report should open with, then three questions whose answers are known in closed form."""
    return [
        _python(),
        Check("platform", True, platform.platform(), ""),
        _torch(),
        Check("devices", True, ", ".join(_device_names()), ""),
        Check("threads", True, _threads(), ""),
        Check("loops in C", True, _loops(), ""),
        _packages(),
        *(_extra(name, modules) for name, modules in EXTRAS.items()),
        _ask("CVaR of N(0,1)", "-φ(Φ⁻¹(α))/α at α = .05, to 1e-6", _cvar_error, 1e-6),
        _ask("GAE over a truncation", "0 when the values are perfect, to 1e-12", _advantage_error, 1e-12),
        *(
            _ask(f"float64 on {device}", "1 + 2⁻⁵² to differ from 1", partial(_rounding_error, device), 0.0)
            for device in _devices()
        ),
    ]


def _python() -> Check:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Check("python", sys.version_info >= OLDEST_PYTHON, platform.python_version(), f"{oldest} or newer")


def _torch() -> Check:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return Check("torch", version >= OLDEST_TORCH, torch.__version__, f"{'.'.join(map(str, OLDEST_TORCH))} or newer")


def _devices() -> list[str]:
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def _device_names() -> list[str]:
    names = [
        "cpu",
        *(f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())),
    ]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def _loops() -> str:
    if native.library() is not None:
        return "built"
    return "none, for there is no C compiler or QUANTAIL_NATIVE=0: training is right, and slower"


def _threads() -> str:
    asked = os.environ.get("OMP_NUM_THREADS", "not set")
    return f"{torch.get_num_threads()} of {os.cpu_count()} cores (OMP_NUM_THREADS {asked})"


def _present(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _packages() -> Check:
    missing = [module for module in DEFAULT if not _present(module)]
    seen = f"missing: {', '.join(missing)}" if missing else f"all {len(DEFAULT)} present"
    return Check("default packages", not missing, seen, "all of them: pip install quantail")


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    missing = [module for module in modules if not _present(module)]
    seen = f"without {', '.join(missing)} (optional: pip install 'quantail[{name}]')" if missing else "all present"
    return Check(f"extra {name}", True, seen, "")


def _ask(name: str, needed: str, error: Callable[[], float], tolerance: float) -> Check:
    """One question with a known answer. Whatever goes wrong on a broken installation is a finding, not a crash."""
    try:
        seen = error()
    except Exception as problem:
        return Check(name, False, f"{type(problem).__name__}: {problem}", needed)
    return Check(name, seen <= tolerance, f"off by {seen:.1e}", needed)


def _cvar_error() -> float:
    """CVaR_α(N(0,1)) = -φ(Φ⁻¹(α))/α   (Rockafellar & Uryasev 2000), against the read-out from 32 tail quantiles."""
    from quantail.functional.quantile import tail_levels
    from quantail.functional.risk import cvar_from_quantiles

    alpha, normal = 0.05, NormalDist()
    taus = tail_levels(32)[0].double()
    quantiles = torch.tensor([normal.inv_cdf(tau) for tau in taus.tolist()], dtype=torch.float64)
    truth = -normal.pdf(normal.inv_cdf(alpha)) / alpha
    return abs(float(cvar_from_quantiles(quantiles, alpha, taus)) - truth)


def _advantage_error() -> float:
    """A reward of 1 for ever is worth 1/(1 - γ): with that value in every row no action is better than expected."""
    from quantail.functional.returns import gae

    gamma = 0.9
    rewards = torch.tensor([1, 1, 0, 1, 1], dtype=torch.float64)[:, None]  # row 2 shows the final observation
    truncated = torch.tensor([0, 1, 0, 0, 0], dtype=torch.bool)[:, None]
    values = torch.full((6, 1), 1 / (1 - gamma), dtype=torch.float64)
    advantages, _ = gae(rewards, values, torch.zeros_like(truncated), truncated, gamma, 0.95)
    return float(advantages.abs().max())


def _rounding_error(device: str) -> float:
    one = torch.ones((), dtype=torch.float64, device=device)
    return abs(float(one + 2.0**-52 - one) - math.ulp(1.0))
