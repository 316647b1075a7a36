"""What a broken number does: `python benchmarks/broken_numbers.py [--steps 3000]`.

CartPole hands over one reward or observation that is not a number, or nothing else from some step on. The same script trains
Quantail and, for comparison, sb3-contrib's RecurrentPPO (where it is installed). Shown: how it ended, how many tensors of the
policy are not finite then, and the words in which it was said. The promise for ours: weights finite; a single one is named and
training goes on; without end it stops by itself, in one sentence.
"""

import argparse
import logging
import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from quantail import DistributionalPPO, QuantailError

AT = 300  # the step that breaks, in the first of the environments
ENVS, ROWS = 4, 64


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose reward or observation is not finite at a step, or from it on."""

    def __init__(self, what: str, value: float, first: int, last: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.what, self.value, self.first, self.last, self.steps = what, value, first, last, 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self.steps += 1
        if self.first <= self.steps <= self.last:
            if self.what == "reward":
                reward = self.value
            else:
                obs = np.full_like(obs, self.value)
        return obs, reward, *rest


class Outcome(NamedTuple):
    """One training."""

    learner: str
    what: str
    ended: str
    not_finite: int  # tensors of the policy
    tensors: int
    words: str


def attempt(learner: str, what: str, value: float, forever: bool, steps: int) -> Outcome:
    """Train in four environments; the first breaks once, or all do from some step on."""
    first, last = AT // ENVS, 10**9 if forever else AT // ENVS
    breaks = [(first, last)] + [(first, last) if forever else (0, -1)] * (ENVS - 1)
    makers = [lambda span=span: Broken(what, value, *span) for span in breaks]
    heard = Heard()
    if learner == "quantail":
        env: Any = gymnasium.vector.SyncVectorEnv(makers)
        cls: Any = DistributionalPPO
    else:
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import DummyVecEnv

        env, cls = DummyVecEnv(makers), RecurrentPPO
    model = cls("MlpLstmPolicy", env, n_steps=ROWS, seed=0, device="cpu", policy_kwargs={"lstm_hidden_size": 16})
    logging.getLogger("quantail").addHandler(heard)
    try:
        model.learn(steps)
        ended = f"went on to step {model.num_timesteps}"
    except QuantailError as error:
        ended = f"stopped at step {model.num_timesteps}"
        heard.words.append(str(error))
    except ValueError as error:
        ended = f"crashed at step {model.num_timesteps}"
        heard.words.append(f"ValueError: {str(error).splitlines()[0]}")
    finally:
        logging.getLogger("quantail").removeHandler(heard)
    weights = list(model.policy.state_dict().values())
    broken = sum(not bool(torch.isfinite(weight).all()) for weight in weights)
    title = f"{what} {value:g}, {'without end' if forever else 'once'}"
    return Outcome(learner, title, ended, broken, len(weights), heard.words[-1] if heard.words else "nothing")


class Heard(logging.Handler):
    """What is said aloud."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


def kept(outcome: Outcome) -> bool:
    """Whether the promise is kept."""
    ends = "stopped" if "without end" in outcome.what else "went on"
    return outcome.not_finite == 0 and outcome.ended.startswith(ends) and "not finite" in outcome.words


def main() -> int:
    """Print a table; fails if a promise of ours is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="of each training (default 3000)")
    options = parser.parse_args()
    learners = ["quantail"]
    try:
        import sb3_contrib  # noqa: F401

        learners.append("RecurrentPPO")
    except ImportError:
        print("sb3-contrib is not installed: no comparison")
    good = True
    for what, value in (("reward", math.nan), ("reward", math.inf), ("observation", math.nan)):
        for forever in (False, True):
            for learner in learners:
                one = attempt(learner, what, value, forever, options.steps)
                broken = f"{one.not_finite:>2} of {one.tensors} tensors broken"
                print(f"{one.what:<30}{learner:<14}{one.ended:<22}{broken:<26}{one.words}")
                good &= learner != "quantail" or kept(one)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
