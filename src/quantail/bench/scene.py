"""What is trained when speed is measured: a market with costs and resets, and an agent of given sizes."""

from dataclasses import dataclass, replace

import torch

from quantail.config import Config, CriticConfig, EngineConfig, NetConfig, PpoConfig
from quantail.market.candles import simulate
from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.series import Features
from quantail.market.terms import Episode
from quantail.market.world import Recorded
from quantail.settings import check_choice, check_counts

BARS = 20_000
NETS = ("lean", "deep")
ENDLESS = 10**15  # steps: whoever measures stops


@dataclass(frozen=True)
class Sizes:
    """All that the cost of training depends on.

    `net`: "lean", one memory on the observations and linear heads; "deep", the default: a hidden layer before and after the
    memory, and a trunk of their own for the critics.
    """

    envs: int = 512
    steps: int = 128
    batch: int = 16_384  # rows of an optimizer step
    epochs: int = 4
    hidden: int = 64
    quantiles: int = 32  # of each of two critics, and particles of their targets
    assets: int = 1
    features: int = 30  # of each asset
    episode: int = 500  # rows until an episode is cut off
    memory: str = "lstm"
    net: str = "lean"
    engine: str = "auto"

    def __post_init__(self) -> None:
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        check_counts(**counts)
        check_choice("net", self.net, NETS)

    @property
    def rows(self) -> int:
        """Of a rollout."""
        return self.envs * self.steps


def config_of(sizes: Sizes) -> Config:
    """The defaults in these sizes."""
    net = NetConfig(memory=sizes.memory, hidden=sizes.hidden)
    if sizes.net == "lean":
        net = replace(net, trunks="shared", encoder_sizes=(), actor_sizes=(), critic_sizes=())
    critic = CriticConfig(atoms=sizes.quantiles, particles=sizes.quantiles)
    ppo = PpoConfig(n_steps=sizes.steps, batch_size=sizes.batch, n_epochs=sizes.epochs)
    return Config(total_timesteps=ENDLESS, net=net, critic=critic, ppo=ppo, engine=EngineConfig(sizes.engine))


def market_of(sizes: Sizes, device: torch.device | str = "cpu") -> MarketEnv:
    """Recorded bars with features of the past; fees, half-spread, fills at the next open, episodes that start anywhere."""
    bars = simulate(MARKETS["sp500"](), BARS, sizes.assets, torch.Generator().manual_seed(0), overnight=0.2).bars(86_400.0)
    log_price = bars.close.log()
    seen = torch.zeros(BARS, sizes.assets, sizes.features)
    for i in range(sizes.features):
        back = 1 + 2 * i
        seen[back:, :, i] = (log_price[back:] - log_price[:-back]).float()
    names = tuple(f"return_{1 + 2 * i}" for i in range(sizes.features))
    world = Recorded(bars, Features(seen, names, 2 * sizes.features))
    return MarketEnv(sizes.envs, world, episode=Episode(length=sizes.episode, starts="random"), device=device)
