"""Training in several processes, for `test_ranks.py`: a module of its own, for other processes have to import it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import multiprocessing

from quantail import ranks
from quantail.config import (
    Config,
    CriticConfig,
    EntropyConfig,
    KlConfig,
    NetConfig,
    OptimConfig,
    PpoConfig,
    RiskConfig,
    UpgdConfig,
)
from quantail.envs.base import TensorEnv
from quantail.envs.oracles import LQR, HiddenRegime, Kelly
from quantail.loop import make_agent, train

ENVS, ITERATIONS = 6, 3
SMALL = {"encoder_sizes": (6,), "actor_sizes": (5,), "critic_sizes": (7,), "hidden": 4}


class Case(NamedTuple):
    """What is trained."""

    config: Config
    env: Any
    options: Mapping[str, Any]


def config(net: Mapping[str, Any] = {}, ppo: Mapping[str, Any] = {}, **parts: Any) -> Config:
    critic = parts.pop("critic", CriticConfig(atoms=6, particles=9))
    steps = PpoConfig(**{"n_steps": 9, "batch_size": 18, "n_epochs": 2} | dict(ppo))
    return Config(total_timesteps=10**9, net=NetConfig(**SMALL | dict(net)), ppo=steps, critic=critic, **parts)


CASES = {
    "choices, KL rules": Case(
        config(kl=KlConfig(target=1e-4, absolute_factor=40.0, consecutive=3)), HiddenRegime, {"horizon": 7}
    ),
    "one environment a batch, a noisy optimizer": Case(
        config(ppo={"batch_size": 9}, optim=OptimConfig(name="adaptive_upgd", upgd=UpgdConfig(sigma=0.01))),
        HiddenRegime,
        {"horizon": 4},
    ),
    "chunks of time, parts of batches, burn-in": Case(
        config({"memory": "gru", "dropout": 0.2}, {"batch_size": 4, "burn_in": 2, "micro_batches": 2}), LQR, {"horizon": 5}
    ),
    "squashed, atoms": Case(
        config(
            {"squash": "tanh"},
            {"normalize_advantage": "env"},
            critic=CriticConfig("categorical", 11, particles=9),
            entropy=EntropyConfig(0.1),
        ),
        Kelly,
        {"rounds": 4},
    ),
    "held exploration, a limit": Case(
        config({"gsde": True}, risk=RiskConfig(alpha=0.5, limit=-1.0), critic=CriticConfig("scalar")), LQR, {"horizon": 6}
    ),
}


def trained(case: Case) -> dict[str, Any]:
    """Weights, figures and counters after a few iterations of this process's part of the environments."""
    env: TensorEnv = case.env(ENVS // ranks.count(), dtype=torch.float64, **case.options)
    agent = make_agent(case.config, env).double()
    reports = train(case.config, env, agent)
    *_, last = (next(reports) for _ in range(ITERATIONS))
    told = {name: value for name, value in last.metrics.items() if not name.startswith("time/")}
    return {"weights": agent.state_dict(), "metrics": told, "env_steps": last.env_steps, "updates": last.control.updates}


def side(place: int, count: int, port: int, folder: Path) -> None:
    """One of several processes; each writes what it found."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(place), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ranks.joined():
        torch.save({name: trained(case) for name, case in CASES.items()}, folder / f"{place}.pt")


def side_by_side(count: int, port: int, folder: Path) -> list[dict[str, Any]]:
    """What each of so many processes found."""
    multiprocessing.start_processes(side, (count, port, folder), nprocs=count, start_method="spawn")
    return [torch.load(folder / f"{place}.pt") for place in range(count)]
