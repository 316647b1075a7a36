"""Three critics and what came true: `python studies/calibration.py [--steps 300000] [--out docs/calibration.svg]`.

All three learn the law of a discounted sum of independent normal rewards from the same rows; they differ in how they learn it.
The picture shows, for each level u, how much of what came true lay below the predicted quantile: u, if the critic is right.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import torch

from quantail.calibration import LEVELS
from quantail.config import Config, CriticConfig, NetConfig, OptimConfig, PpoConfig, ScheduleConfig
from quantail.envs.oracles import GaussianSum
from quantail.loop import train

LAST = 30  # iterations that the picture averages
CRITICS = {
    "from particles of the return (the default)": (CriticConfig(twin=False), "#0072b2"),
    "from the scalar λ-return": (CriticConfig(twin=False, targets="lambda_return"), "#d55e00"),
    "with a Huber width of one deviation": (CriticConfig(twin=False, kappa=1.0), "#009e73"),
}


def shares(critic: CriticConfig, steps: int, seed: int = 0) -> list[float]:
    """How much came true below each of `LEVELS`, over the last iterations of a training run."""
    torch.set_num_threads(1)
    config = Config(
        seed=seed,
        total_timesteps=steps,
        net=NetConfig(memory="none", encoder_sizes=(), actor_sizes=(), critic_sizes=()),
        critic=critic,
        ppo=PpoConfig(n_steps=128, batch_size=512, n_epochs=2, gamma=0.95, gae_lambda=0.95),
        optim=OptimConfig(learning_rate=1e-2, schedule=ScheduleConfig("linear")),
    )
    env = GaussianSum(32, gamma=0.95)
    rows = [[report.metrics[f"critic/below_{u:g}"] for u in LEVELS] for report in train(config, env)]
    return torch.tensor(rows[-LAST:], dtype=torch.float64).mean(0).tolist()


def main() -> None:
    """Train the three, print their shares and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--out", type=Path, default=Path("docs/calibration.svg"))
    options = parser.parse_args()
    mpl.rcParams |= {"svg.hashsalt": "calibration", "font.size": 10}
    figure, axes = plt.subplots(figsize=(5.2, 4.6))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="what a right critic shows")
    print(f"{'level':<44}" + "".join(f"{u:>7g}" for u in LEVELS))
    for name, (critic, colour) in CRITICS.items():
        found = shares(critic, options.steps)
        print(f"{name:<44}" + "".join(f"{share:>7.3f}" for share in found), flush=True)
        axes.plot(LEVELS, found, marker="o", markersize=4, color=colour, label=name)
    axes.set(xlabel="level of the predicted quantile", ylabel="share of what came true below it", xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(options.out, bbox_inches="tight", metadata={"Date": None})
    print(f"drawn: {options.out}")


if __name__ == "__main__":
    main()
