"""Settings that are known to learn, by name: each a function that returns a Config, to be changed with `dataclasses.replace`.

The measured results are in docs/benchmarks.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from quantail.config import Config, EntropyConfig, EnvConfig, NetConfig, OptimConfig, PpoConfig, ScheduleConfig
from quantail.settings import check_choice


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


PRESETS: Mapping[str, Callable[[], Config]] = {
    "cartpole": cartpole,
    "cartpole_positions": cartpole_positions,
    "memory_chain": memory_chain,
    "hidden_regime": hidden_regime,
    "garleanu_pedersen": garleanu_pedersen,
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
    options: dict[str, bool | int | float | str] | None = None,
) -> Config:
    """The defaults, a faster learning rate that falls to zero, and what is named."""
    return Config(
        total_timesteps=steps,
        net=net,
        ppo=ppo,
        optim=OptimConfig(learning_rate=1e-3, schedule=ScheduleConfig("linear")),
        env=EnvConfig(id=f"quantail/{env}", num_envs=num_envs, options=options or {}),
    )
