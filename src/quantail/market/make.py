"""`quantail/Market` by name and plain options, as a config or the command line has them."""

from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Synthetic
from quantail.settings import check_choice


def market(
    num_envs: int,
    source: str = "hidden_drift",
    costs: str = "default",
    actions: str = "grid",
    leverage: float = 1.0,
    band: float = 0.0,
    reward: str = "log_return",
    reward_scale: float = 100.0,
    length: int = 252,
    seed: int = 0,
) -> MarketEnv:
    """A synthetic market; everything else is set in Python, on `MarketEnv` itself. Another seed is another market."""
    check_choice("source", source, tuple(MARKETS))
    levels = tuple(side * leverage for side in (-1.0, 0.0, 1.0))
    return MarketEnv(
        num_envs,
        Synthetic(MARKETS[source](), seed=seed),
        costs=costs,
        rules=Rules(actions=actions, levels=levels, leverage=leverage, band=band),
        reward=Reward(reward, scale=reward_scale),
        episode=Episode(length=length),
    )
