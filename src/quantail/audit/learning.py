"""Can the training stack learn at all? An agent that is told the next move must get rich, and quickly."""

import torch

from quantail.audit.subject import GRID, Subject, alone
from quantail.config import Config, CriticConfig, NetConfig, OptimConfig, PpoConfig
from quantail.evaluation import play
from quantail.loop import train
from quantail.market.costs import free
from quantail.market.env import MarketEnv
from quantail.market.features import unproved
from quantail.market.series import Features
from quantail.market.terms import Episode, Reward, Rules
from quantail.monitor.install import Check

ENOUGH = 0.6  # of what a clairvoyant earns
STEPS = 16_384
ENVS, LENGTH = 128, 32


def oracle(subject: Subject) -> Check:
    """Beside the subject's features the agent sees the return from its fill to the next; no costs."""
    bars = alone(subject.bars, int(subject.bars.valid.sum(0).argmax()))
    known = unproved(subject.functions, bars)
    moves = torch.zeros_like(bars.open)
    moves[:-2] = (bars.open[2:] / bars.open[1:-1]).log()
    sigma = float(moves.std())
    told = (moves / sigma).clamp(-5, 5).float()[..., None]
    plain = known.values - known.values.mean((0, 1))
    plain = (plain / plain.std((0, 1)).clamp(min=1e-9)).clamp(-5, 5)
    features = Features(torch.cat([plain, told], -1), (*known.names, "oracle"), known.warmup)
    env = MarketEnv(
        ENVS,
        bars,
        features,
        costs=free(),
        rules=Rules(levels=GRID),
        reward=Reward(scale=1 / sigma),
        episode=Episode(LENGTH, starts="random", parts=("features",)),
    )
    *_, report = train(small(subject.seed), env)
    played = play(env, report.agent, report.carry.obs_moments, small(subject.seed), 4 * (LENGTH + 1), seed=subject.seed + 1)
    best = float(moves[known.warmup :].abs().mean()) / sigma
    share = played.per_step() / best
    said = f"told the next move, the agent earns {share:.0%} of what a clairvoyant does, after {report.env_steps:,} steps"
    return Check("oracle feature", share >= ENOUGH, said, f"at least {ENOUGH:.0%}: the agent cannot learn what it is told")


def small(seed: int) -> Config:
    """Enough for a question whose answer is written down."""
    return Config(
        seed=seed,
        total_timesteps=STEPS,
        net=NetConfig(memory="none", trunks="shared"),
        critic=CriticConfig(kind="scalar", twin=False, targets="lambda_return"),
        ppo=PpoConfig(n_steps=16, batch_size=512, n_epochs=4, gamma=0.5),
        optim=OptimConfig(learning_rate=3e-3),
    )
