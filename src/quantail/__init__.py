"""Quantail: trading agents that learn the whole distribution of their returns and keep a tail-risk limit.

The public names load when they are first used (PEP 562): `import quantail` is instant and pulls in neither torch nor
any package of the edges.
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from quantail import backtest, errors, functional, presets
    from quantail.algorithm import DistributionalPPO
    from quantail.config import Config
    from quantail.errors import ConfigError, InputError, QuantailError
    from quantail.live import Runner
    from quantail.loop import train
    from quantail.market.bars import load_bars
    from quantail.market.env import MarketEnv
    from quantail.run import resume, run

    __version__: str

# Public name -> the module it comes from; a name that is itself a module maps to itself.
_HOME = {
    "Config": "quantail.config",
    "ConfigError": "quantail.errors",
    "DistributionalPPO": "quantail.algorithm",
    "InputError": "quantail.errors",
    "MarketEnv": "quantail.market.env",
    "QuantailError": "quantail.errors",
    "Runner": "quantail.live",
    "backtest": "quantail.backtest",
    "errors": "quantail.errors",
    "functional": "quantail.functional",
    "load_bars": "quantail.market.bars",
    "presets": "quantail.presets",
    "resume": "quantail.run",
    "run": "quantail.run",  # the module itself, which answers a call: see there
    "train": "quantail.loop",
}

if "gymnasium" in sys.modules:
    import_module("quantail.market.ids")  # its ids; without Gymnasium nothing of it is loaded

__all__ = [
    "Config",
    "ConfigError",
    "DistributionalPPO",
    "InputError",
    "MarketEnv",
    "QuantailError",
    "Runner",
    "__version__",
    "backtest",
    "errors",
    "functional",
    "load_bars",
    "presets",
    "resume",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from quantail.version import version

        return version()
    if name not in _HOME:
        close = get_close_matches(name, __all__, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(__all__)}"
        raise AttributeError(f"module 'quantail' has no attribute {name!r}; {hint}", name=name)
    module = import_module(_HOME[name])
    return module if module.__name__ == f"quantail.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
