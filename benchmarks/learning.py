"""Does it learn? `python benchmarks/learning.py [case ...] [--seeds 8] [--face] [--peer [--peer-seeds 4]] [--jobs 2]`.

Every case has a known best answer, and one configuration for all seeds. After training, the policy without exploration
plays fresh episodes that it has not seen; the score is judged against the best policy. With `--peer`, sb3-contrib's
RecurrentPPO (and PPO, where no memory is needed) trains on the same environments for as many steps with the same rollout,
batches, epochs, discount and learning rate, and plays the same games (needs the extra `peers`).
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, EntropyConfig, NetConfig, OptimConfig, PpoConfig, ScheduleConfig
from quantail.envs.oracles import LQR, CartPole, GarleanuPedersen, HiddenRegime, MemoryChain, Oracle, OUSignal, TMaze
from quantail.evaluation import Played, play
from quantail.loop import Progress, train
from quantail.streams import Stream, generator, normal

JUDGING_SEED = 10_007  # of the games that judge: no training run has it


class Case(NamedTuple):
    """One thing to learn."""

    env: Callable[[int], Oracle]  # so many copies
    copies: int  # that it is learnt on
    config: Config
    rows: int  # played by each copy when it is judged
    target: float
    unit: str  # of the score
    score: Callable[[Oracle, Played, int], float]
    judges: int = 256  # copies that judge


def per_episode(env: Oracle, played: Played, rows: int) -> float:
    """Mean sum of rewards of the episodes that ended."""
    return float(played.episode_returns().double().mean())


def share_of_optimum(env: Oracle, played: Played, rows: int) -> float:
    """Mean reward of a row in percent of the optimum."""
    return 100 * played.per_step() / env.optimum()


def paired_share(env: Oracle, played: Played, rows: int) -> float:
    """Percent of the optimum: what the best policy gets on the same noise is taken for the optimum itself."""
    weight = env.discount ** torch.arange(rows, dtype=torch.float64)
    ours, best = ((weight @ reward.double()).mean() for reward in (played.reward, best_rewards(env, rows)))
    return 100 + 100 * float(ours - best) / abs(env.optimum())


def long_run_share(env: Oracle, played: Played, rows: int) -> float:
    """Percent of the best mean reward of a row, with the same noise for both."""
    ours, best = (reward[rows // 10 :].double().mean() for reward in (played.reward, best_rewards(env, rows)))
    return 100 + 100 * float(ours - best) / abs(env.optimum())


@torch.no_grad()
def best_rewards(env: Oracle, rows: int) -> Tensor:
    """[T, B] what the known best policy gets, on the noise of `play`."""
    world = generator(JUDGING_SEED, Stream.PLAY, 0, env.device)
    shape = (env.num_envs, env.noise_dim)
    state, obs = env.reset(normal(shape, world))
    rewards = []
    for _ in range(rows):
        state, step = env.step(state, env.best_action(obs), normal(shape, world))
        rewards.append(step.reward)
        obs = step.obs
    return torch.stack(rewards)


def tuned(
    steps: int, ppo: PpoConfig, *, rate: float = 1e-3, memory: str = "lstm", entropy: float = 0.0, **net: object
) -> Config:
    """A config of the benchmark: the defaults, and what is named."""
    return Config(
        total_timesteps=steps,
        net=replace(NetConfig(memory=memory), **net),  # type: ignore[arg-type]
        ppo=ppo,
        entropy=EntropyConfig(coef=entropy),
        optim=OptimConfig(learning_rate=rate, schedule=ScheduleConfig("linear")),
    )


CASES = {
    "cartpole": Case(
        env=CartPole,
        copies=8,
        config=tuned(100_000, PpoConfig(n_steps=128, batch_size=256, n_epochs=10, gamma=0.98), memory="none"),
        rows=502,
        target=475,
        unit="return",
        score=per_episode,
    ),
    "cartpole-positions": Case(
        env=lambda copies: CartPole(copies, velocities=False),
        copies=8,
        config=tuned(100_000, PpoConfig(n_steps=128, batch_size=256, n_epochs=10, gamma=0.98)),
        rows=502,
        target=475,
        unit="return",
        score=per_episode,
    ),
    "memory-chain": Case(
        env=lambda copies: MemoryChain(copies, length=10),
        copies=16,
        config=tuned(100_000, PpoConfig(n_steps=64, batch_size=512, n_epochs=4), entropy=0.01),
        rows=240,
        target=0.99,
        unit="return",
        score=per_episode,
    ),
    "t-maze": Case(
        env=lambda copies: TMaze(copies, length=10),
        copies=16,
        config=tuned(150_000, PpoConfig(n_steps=64, batch_size=512, n_epochs=4), entropy=0.01),
        rows=240,
        target=0.95,
        unit="return",
        score=per_episode,
    ),
    "hidden-regime": Case(
        env=lambda copies: HiddenRegime(copies, horizon=500),
        copies=64,
        config=tuned(500_000, PpoConfig(n_steps=64, batch_size=1024, n_epochs=4, gamma=0.9, gae_lambda=0.9)),
        rows=1000,
        target=98,
        unit="% of optimum",
        score=share_of_optimum,
        judges=2048,
    ),
    "garleanu-pedersen": Case(
        env=lambda copies: GarleanuPedersen(copies, horizon=1000),
        copies=64,
        config=tuned(
            500_000,
            PpoConfig(n_steps=64, batch_size=1024, n_epochs=4, gamma=0.99, gae_lambda=0.9),
            memory="none",
            log_std_init=-1.0,
        ),
        rows=900,
        target=98,
        unit="% of optimum",
        score=paired_share,
        judges=512,
    ),
    "lqr": Case(
        env=lambda copies: LQR(copies, horizon=1000),
        copies=64,
        config=tuned(
            300_000,
            PpoConfig(n_steps=32, batch_size=512, n_epochs=4, gamma=0.99, gae_lambda=0.9),
            memory="none",
            log_std_init=-1.0,
        ),
        rows=900,
        target=98,
        unit="% of optimum",
        score=paired_share,
        judges=512,
    ),
    "ou-costs": Case(
        env=lambda copies: OUSignal(copies, horizon=500),
        copies=64,
        config=tuned(500_000, PpoConfig(n_steps=64, batch_size=1024, n_epochs=4, gamma=0.97, gae_lambda=0.95), memory="none"),
        rows=1000,
        target=99,
        unit="% of optimum",
        score=long_run_share,
        judges=1024,
    ),
}


class Result(NamedTuple):
    """One run."""

    case: str
    learner: str
    seed: int
    score: float
    seconds: float
    env_steps: int


OURS, FACE = "quantail", "face"  # the loop itself, and the same through `DistributionalPPO`


def run(name: str, learner: str, seed: int) -> Result:
    """Train and judge one seed."""
    torch.set_num_threads(1)
    case, began = CASES[name], time.perf_counter()
    if learner in (OURS, FACE):
        config = replace(case.config, seed=seed)
        learned = (through_the_face if learner == FACE else through_the_loop)(config, case.env(case.copies))
        seconds, judge = time.perf_counter() - began, case.env(case.judges)
        played = play(judge, learned.agent, learned.carry.obs_moments, config, case.rows, seed=JUDGING_SEED)
        return Result(name, learner, seed, case.score(judge, played, case.rows), seconds, learned.env_steps)
    import peer

    model, steps = peer.learn(learner, case.env(case.copies), case.config, seed)
    seconds, judge = time.perf_counter() - began, case.env(case.judges)
    played = peer.play(model, judge, case.rows, JUDGING_SEED)
    return Result(name, learner, seed, case.score(judge, played, case.rows), seconds, steps)


def through_the_loop(config: Config, env: Oracle) -> Progress:
    """Where `train` ends."""
    *_, report = train(config, env)
    return report.progress


def through_the_face(config: Config, env: Oracle) -> Progress:
    """Where `DistributionalPPO` ends: bit for bit in the same place, or it would not be a face."""
    from quantail.algorithm import DistributionalPPO

    policy = "MlpPolicy" if config.net.memory == "none" else "MlpLstmPolicy"
    return DistributionalPPO(policy, env, config=config).learn(config.total_timesteps).progress


def learners(case: Case, face: bool, peer: bool) -> list[str]:
    """Who learns a case: ours, and the peers that suit it."""
    ours = [OURS, FACE] if face else [OURS]
    if not peer:
        return ours
    return [*ours, "RecurrentPPO", *(["PPO"] if case.config.net.memory == "none" else [])]


def summary(results: list[Result]) -> Mapping[str, Any]:
    """One row of the table: a learner on a case."""
    case, scores = CASES[results[0].case], torch.tensor([result.score for result in results], dtype=torch.float64)
    speed = sum(result.env_steps for result in results) / sum(result.seconds for result in results)
    return {
        "case": results[0].case,
        "learner": results[0].learner,
        "env_steps": results[0].env_steps,
        "seeds": len(results),
        "mean": float(scores.mean()),
        "sd": float(scores.std()) if len(results) > 1 else 0.0,
        "min": float(scores.min()),
        "target": case.target,
        "unit": case.unit,
        "steps_per_second": speed,
        "met": bool(scores.mean() >= case.target),
    }


def main() -> int:
    """Run the cases and print a table; fails if our own mean misses a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"which of {', '.join(CASES)} (default: all)")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each case (default 8)")
    parser.add_argument("--face", action="store_true", help="also train through DistributionalPPO, which must give the same")
    parser.add_argument("--peer", action="store_true", help="also train sb3-contrib's RecurrentPPO and stable-baselines3's PPO")
    parser.add_argument("--peer-seeds", type=int, help="runs of each case by a peer (default: as many as ours)")
    parser.add_argument(
        "--jobs", type=int, default=max(1, os.cpu_count() or 1), help="runs side by side (default: one per core)"
    )
    parser.add_argument("--json", type=Path, help="also write every run here")
    options = parser.parse_args()
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"{', '.join(unknown)}: no such case; choose from {', '.join(CASES)}")
    names, peer_seeds = options.cases or list(CASES), options.peer_seeds or options.seeds
    groups = [(name, learner) for name in names for learner in learners(CASES[name], options.face, options.peer)]
    jobs = [(*group, seed) for group in groups for seed in range(options.seeds if group[1] in (OURS, FACE) else peer_seeds)]
    rows: list[Mapping[str, Any]] = []
    runs: dict[tuple[str, str], list[Result]] = {group: [] for group in groups}
    print(f"torch {torch.__version__}, one thread a run, {options.jobs} runs side by side, {platform.machine()}")
    print(f"{'case':<20}{'learner':<14}{'steps':>8}{'seeds':>6}{'mean':>9}{'sd':>8}{'min':>9}{'target':>8}{'steps/s':>9}")
    with ProcessPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(run, *job) for job in sorted(jobs, key=length, reverse=True)]):
            result = future.result()
            done = runs[result.case, result.learner]
            done.append(result)
            if len(done) == (options.seeds if result.learner in (OURS, FACE) else peer_seeds):
                rows.append(summary(done))
                print(line(rows[-1]), flush=True)
            if options.json:  # each time anew: what is cut off keeps what it had
                every = [run._asdict() for group in groups for run in runs[group]]
                options.json.write_text(json.dumps({"rows": rows, "runs": every}, indent=1))
    return int(any(row["learner"] == OURS and not row["met"] for row in rows))


def length(job: tuple[str, str, int]) -> int:
    """How long a run takes, roughly: rows that a memory goes through one after the other, or else gradient steps.

    The longest begin first, so that no core waits for one that began last.
    """
    name, learner, _ = job
    ppo, config = CASES[name].config.ppo, CASES[name].config
    steps = config.total_timesteps * ppo.n_epochs // ppo.batch_size
    return steps * (1 if learner == "PPO" or (learner in (OURS, FACE) and config.net.memory == "none") else ppo.n_steps)


def line(row: Mapping[str, Any]) -> str:
    """A row of the table as text."""
    numbers = f"{row['mean']:>9.2f}{row['sd']:>8.2f}{row['min']:>9.2f}{row['target']:>8g}{row['steps_per_second']:>9.0f}"
    return f"{row['case']:<20}{row['learner']:<14}{row['env_steps']:>8}{row['seeds']:>6}{numbers}  {row['unit']}"


if __name__ == "__main__":
    raise SystemExit(main())
