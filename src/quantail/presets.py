"""Settings that are known to learn, by name: each a function that returns a Config, to be changed with `dataclasses.replace`.

The measured results are in docs/benchmarks.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from quantail.config import (
    Config,
    CriticConfig,
    EntropyConfig,
    EnvConfig,
    NetConfig,
    OptimConfig,
    PpoConfig,
    RiskConfig,
    RunConfig,
    ScheduleConfig,
)
from quantail.settings import check_choice

Options = dict[str, bool | int | float | str]

# Of a market that is made up: 512 paths of ten years behind the warm-up of their features, to learn from and to be judged on.
PATHS: Mapping[str, int] = {"paths": 512, "bars": 60 + 2520 + 1, "every": 64}


def cartpole() -> Config:
    """Balance a pole; everything is seen, so no memory is needed."""
    ppo = PpoConfig(n_steps=128, batch_size=256, n_epochs=10, gamma=0.98)
    return _tuned("CartPole", 8, 100_000, ppo, NetConfig(memory="none"))


def cartpole_positions() -> Config:
    """Balance a pole of which only positions are seen: speeds have to be remembered."""
    start = cartpole()
    return replace(start, net=NetConfig(), env=replace(start.env, options={"velocities": False}))


def memory_chain() -> Config:
    """Remember what was seen at the beginning for ten steps."""
    ppo = PpoConfig(n_steps=64, batch_size=512, n_epochs=4)
    start = _tuned("MemoryChain", 16, 100_000, ppo, NetConfig(), {"length": 10})
    return replace(start, entropy=EntropyConfig(coef=0.01))


def hidden_regime() -> Config:
    """Trade a market whose drift switches unseen; the Bayes filter is the best that can be done."""
    ppo = PpoConfig(n_steps=64, batch_size=1024, n_epochs=4, gamma=0.9, gae_lambda=0.9)
    return _tuned("HiddenRegime", 64, 500_000, ppo, NetConfig(), {"horizon": 500})


def garleanu_pedersen() -> Config:
    """Trade on a fading signal against quadratic costs; the best position is known in closed form."""
    ppo = PpoConfig(n_steps=64, batch_size=1024, n_epochs=4, gae_lambda=0.9)
    net = NetConfig(memory="none", log_std_init=-1.0)
    return _tuned("GarleanuPedersen", 64, 500_000, ppo, net, {"horizon": 1000})


# --- markets ----------------------------------------------------------------------------------------------------------


def quick() -> Config:
    """Find a hidden drift and trade on it after costs: the demonstration, and where to begin with a market of your own.

    Returns are all that is seen, beside the position: what the account did before is no news about the market, and three such
    columns cost 0.13 of a Sharpe ratio of 1.17. Weights are tanh of a Gaussian that is wide at first: a grid of three is slow.
    Tested on 512 held-out paths of ten years, ten seeds: 97 to 100 % of the growth and 98 to 102 % of the Sharpe ratio of the
    Bayes filters that are strongest in each. Takes 20 seconds of one core.
    """
    ppo = PpoConfig(n_steps=64, batch_size=4096, n_epochs=2, gamma=0.9, gae_lambda=0.5)
    return _market(1_500_000, ppo, {"source": "hidden_drift", **PATHS})


def null() -> Config:
    """The same learner where nothing can be learned: prices without drift. Its verdict has to be "no skill found".

    Tested on 512 held-out paths of ten years (docs/reports/null.html), one seed. Takes 20 seconds of one core.
    """
    start = quick()
    return replace(start, env=replace(start.env, options={**start.env.options, "source": "gbm"}))


def risk_averse() -> Config:
    """Bull and bear markets with a limit: the worst 5 % of all stretches of twenty bars lose 3 % on average, and not more.

    Exploration is a risk too: the wide Gaussian of `quick` takes the whole limit, and the policy's mode ends at half of it.
    Tested on 256 held-out paths of ten years, one seed: −2.9 %, a Sharpe ratio of 1.73 where a volatility target has 1.17 and
    −8.9 %. Takes 25 seconds of one core.
    """
    ppo = PpoConfig(n_steps=64, batch_size=4096, n_epochs=2, gamma=0.95, gae_lambda=0.9)
    start = _market(1_500_000, ppo, {"source": "bull_bear", "paths": 512}, log_std=-1.0)
    return replace(start, risk=RiskConfig(horizon="window", window=20, alpha=0.05, limit=-0.03, kp=2.0, ki=0.2))


def daily() -> Config:
    """Daily bars of your own, prices.csv unless you name another file: `--preset daily --env.options.data bars.csv`.

    A few thousand bars are few, so everything is small: memory, steps and patience. The validation part chooses the checkpoint,
    and an episode's costs are up to twice as high as those that it is judged by. Tested on the S&P 500 from 1999 to 2018,
    walking forward: 81 s for six agents, and no skill found; nothing says that it earns money on yours.
    """
    ppo = PpoConfig(n_steps=64, batch_size=4096, n_epochs=2, gamma=0.9, gae_lambda=0.5)
    recorded: Options = {"data": "prices.csv", "purge": 20, "band": 0.1, "randomized_from": 0.5, "randomized_to": 2.0}
    start = _market(500_000, ppo, recorded, log_std=-0.5)
    return replace(
        start,
        net=replace(start.net, hidden=16),
        optim=replace(start.optim, learning_rate=1e-3),
        run=RunConfig(evaluate_every=3, evaluate_rows=504, evaluate_envs=32, judge="step", patience=6),
    )


def hourly() -> Config:
    """Hourly bars of your own: episodes of a month.

    Tested on Bitcoin in 2021, walking forward: 67 s for four agents, and no skill found.
    """
    start = daily()
    options = {**start.env.options, "length": 720, "purge": 48}
    return replace(start, env=replace(start.env, options=options))


PRESETS: Mapping[str, Callable[[], Config]] = {
    "cartpole": cartpole,
    "cartpole_positions": cartpole_positions,
    "memory_chain": memory_chain,
    "hidden_regime": hidden_regime,
    "garleanu_pedersen": garleanu_pedersen,
    "quick": quick,
    "risk_averse": risk_averse,
    "null": null,
    "daily": daily,
    "hourly": hourly,
}


def preset(name: str) -> Config:
    """A preset by its name; hyphens are underscores."""
    name = name.replace("-", "_")
    check_choice("preset", name, tuple(PRESETS))
    return PRESETS[name]()


def _tuned(
    env: str,
    num_envs: int,
    steps: int,
    ppo: PpoConfig,
    net: NetConfig,
    options: Options | None = None,
) -> Config:
    """The defaults, a faster learning rate that falls to zero, and what is named."""
    return Config(
        total_timesteps=steps,
        net=net,
        ppo=ppo,
        optim=OptimConfig(learning_rate=1e-3, schedule=ScheduleConfig("linear")),
        env=EnvConfig(id=f"quantail/{env}", num_envs=num_envs, options=options or {}),
    )


def _market(steps: int, ppo: PpoConfig, options: Options, log_std: float = 0.0) -> Config:
    """A small memory behind the returns of a market, with one critic; weights are tanh of a Gaussian."""
    seen: Options = {"actions": "tanh", "shown": "features,weights"}
    return Config(
        total_timesteps=steps,
        net=NetConfig(hidden=32, encoder_sizes=(), actor_sizes=(), critic_sizes=(), log_std_init=log_std),
        critic=CriticConfig(twin=False, particles=8),
        ppo=ppo,
        optim=OptimConfig(learning_rate=3e-3, schedule=ScheduleConfig("linear")),
        env=EnvConfig(id="quantail/Market", num_envs=256, options=seen | options),
    )
