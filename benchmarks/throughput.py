"""How fast training is beside others: `python benchmarks/throughput.py [--case market|cartpole] [--jax PYTHON]`.

All contenders train in turn, iteration by iteration, in one process on one thread; what counts is the process's time and the
best iteration of each, so that a busy machine falls on nobody. sb3-contrib and stable-baselines3 step the same market through a
thin VecEnv: all environments at once, no copies. Rows of ours without effect (the one after each episode) are not counted.

market: the native market, 128 steps, 4 epochs, memory of 64, episodes of --episode rows; ours with twin quantile critics.
cartpole: Gymnasium's CartPole, 8 environments, 128 steps. --jax names a Python that has JAX: the recurrent PPO of `jax_ppo.py`,
in a process of its own on one core, by the wall. By phase, beside the roofline, and over sizes: `quantail bench --growth`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quantail.bench.scene import ENDLESS, Sizes, config_of, market_of
from quantail.config import Config, CriticConfig
from quantail.envs.base import TensorEnv
from quantail.envs.gymnasium import make_env
from quantail.loop import train
from quantail.presets import cartpole

Contender = Iterator[int]  # each `next` is an iteration, and says how many steps it took
HERE = Path(__file__).parent
# Environments and rows of a batch of sb3-contrib's RecurrentPPO: nearly its defaults, a usual choice, its best.
THEIRS = ((16, 256), (64, 2048), (512, 16_384))
OURS = (
    ("lean", 16, 2048, "compile"),
    ("lean", 64, 8192, "eager"),
    ("lean", 64, 8192, "compile"),
    ("lean", 512, 8192, "eager"),
    ("deep", 64, 8192, "compile"),
    ("deep", 512, 8192, "eager"),
)
LEAN = {"net_arch": [], "shared_lstm": True, "enable_critic_lstm": False}  # of theirs, with as few weights as ours


def ours(config: Config, env: TensorEnv) -> Contender:
    """Valid rows of each iteration."""
    before = 0
    for report in train(replace(config, total_timesteps=ENDLESS), env):
        yield report.env_steps - before
        before = report.env_steps


def theirs(kind: str, env: Any, batch: int, epochs: int, **policy: Any) -> Contender:
    """Steps of each iteration of a peer, whose loop this is without its bookkeeping."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO

    learner, name = (RecurrentPPO, "MlpLstmPolicy") if kind == "RecurrentPPO" else (PPO, "MlpPolicy")
    model = learner(name, env, n_steps=128, batch_size=batch, n_epochs=epochs, policy_kwargs=policy, seed=0, device="cpu")
    _, callback = model._setup_learn(ENDLESS, None)
    while True:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=128)
        model.train()
        yield 128 * model.n_envs


def in_market(episode: int) -> dict[str, Callable[[], Contender]]:
    """Who trains in the market, by name."""
    from peer import LockstepEnv

    def peer(kind: str, envs: int, batch: int, **policy: Any) -> Contender:
        sizes = Sizes(envs=envs, episode=episode)
        return theirs(kind, LockstepEnv(market_of(sizes), 0), batch, sizes.epochs, **policy)

    def own(**changes: Any) -> Contender:
        sizes = Sizes(episode=episode, **changes)
        return ours(config_of(sizes), market_of(sizes))

    def scalar() -> Contender:
        sizes = Sizes(episode=episode, batch=8192)
        return ours(replace(config_of(sizes), critic=CriticConfig("scalar", twin=False)), market_of(sizes))

    found: dict[str, Callable[[], Contender]] = {}
    for net, envs, batch, engine in OURS:
        name = f"Quantail, {net}, {envs} envs, batch {batch}{', compiled rows' if engine == 'compile' else ''}"
        found[name] = lambda n=net, e=envs, b=batch, k=engine: own(net=n, envs=e, batch=b, engine=k)
    found["Quantail, lean, 512 envs, batch 8192, scalar critic"] = scalar
    for envs, batch in THEIRS:
        found[f"RecurrentPPO, {envs} envs, batch {batch}"] = lambda e=envs, b=batch: peer(
            "RecurrentPPO", e, b, lstm_hidden_size=64
        )
    found["RecurrentPPO, lean, 512 envs, batch 16384"] = lambda: peer("RecurrentPPO", 512, 16_384, lstm_hidden_size=64, **LEAN)
    found["PPO, no memory, 64 envs, batch 2048"] = lambda: peer("PPO", 64, 2048)
    return found


def in_cartpole(_: int) -> dict[str, Callable[[], Contender]]:
    """Who balances a pole, by name: eight of Gymnasium's, one after the other in this process."""
    from stable_baselines3.common.env_util import make_vec_env

    def own(memory: str, batch: int) -> Contender:
        config = cartpole()
        net = replace(config.net, memory=memory, trunks="shared", encoder_sizes=(), actor_sizes=(), critic_sizes=())
        net = net if memory == "lstm" else replace(net, encoder_sizes=(64,))
        config = replace(config, net=net, ppo=replace(config.ppo, n_epochs=4, batch_size=batch))
        return ours(config, make_env("CartPole-v1", 8))

    def peer(kind: str, **policy: Any) -> Contender:
        return theirs(kind, make_vec_env("CartPole-v1", 8), 256, 4, **policy)

    return {
        "Quantail, LSTM 64, batch 256": lambda: own("lstm", 256),
        "Quantail, LSTM 64, batch 1024": lambda: own("lstm", 1024),
        "Quantail, no memory, batch 1024": lambda: own("none", 1024),
        "RecurrentPPO, LSTM 64, batch 256": lambda: peer("RecurrentPPO", lstm_hidden_size=64),
        "PPO, no memory, batch 256": lambda: peer("PPO"),
    }


def measured(makers: dict[str, Callable[[], Contender]], rounds: int) -> dict[str, float]:
    """Steps a second of each one's best iteration, after one that warms up."""
    racing = {name: make() for name, make in makers.items()}
    best = dict.fromkeys(racing, 0.0)
    for i in range(rounds + 1):
        for name, one in racing.items():
            began = time.process_time()
            steps = next(one)
            if i:
                best[name] = max(best[name], steps / (time.process_time() - began))
    return best


def in_jax(python: str) -> dict[str, float]:
    """The recurrent PPO in JAX on one core, four epochs, at two numbers of environments; by the wall, best of many."""
    found = {}
    pinned = ["taskset", "-c", "0"] if sys.platform == "linux" else []
    for envs in (64, 512):
        sizes = {"num-envs": envs, "steps": 128, "minibatches": 4, "epochs": 4, "hidden": 64, "iterations": 1, "repeats": 12}
        words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        command = [*pinned, python, str(HERE / "jax_ppo.py"), *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[f"JAX, GRU 64, scalar critic, {envs} envs"] = json.loads(answer)["steps_per_second"]
    return found


def draw(found: dict[str, float], path: Path) -> None:
    """Bars, ours in another colour."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    names = sorted(found, key=lambda name: found[name])
    colours = ["C0" if name.startswith("Quantail") else "0.7" for name in names]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quantail", "font.family": "sans-serif", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(8, 0.3 * len(found) + 0.8), layout="constrained")
        axes.barh(names, [found[name] / 1e3 for name in names], color=colours)
        axes.set_xlabel("thousand environment steps a second, one core")
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="market", choices=("market", "cartpole"))
    parser.add_argument("--episode", type=int, default=500, help="rows until the market cuts an episode off")
    parser.add_argument("--only", default="", help="of the contenders, those whose name holds this")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--jax", metavar="PYTHON", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    makers = {"market": in_market, "cartpole": in_cartpole}[asked.case](asked.episode)
    found = measured({name: make for name, make in makers.items() if asked.only in name}, asked.rounds)
    found |= in_jax(asked.jax) if asked.jax else {}
    best = max(steps for name, steps in found.items() if name.startswith("Quantail"))
    print(f"| {'contender':46} | {'steps/s':>10} | {'our best to it':>14} |\n|:{'-' * 47}|-----------:|---------------:|")
    for name, steps in found.items():
        print(f"| {name:46} | {steps:10,.0f} | {best / steps:14.2f} |")
    if asked.json:
        asked.json.write_text(json.dumps({"case": asked.case, "episode": asked.episode, "found": found}, indent=2) + "\n")
    if asked.figure:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()
