"""How the figures of a run show what is wrong with it: pure looks at one iteration and those before.

A look answers with what it sees, in words and numbers, or with "" where all is well. Figures that a run does not have are
NaN here, and NaN is never worse than a threshold: a look at twins sees nothing where there is one critic.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

WINDOW = 21  # iterations that a look sees: this one, and twenty before
APART = 100.0  # times one twin's loss or gradient may exceed the other's
STILL = 1e-8  # norm of a gradient below which nothing moves

Row = Mapping[str, float]  # figures of an iteration by name


class Past(NamedTuple):
    """What a look may compare with."""

    first: Row  # of the run
    window: tuple[Row, ...]  # the latest rows, this one last; at most WINDOW

    def ago(self, iterations: int) -> Row:
        """The row so many iterations ago; nothing where the run is younger."""
        return self.window[-1 - iterations] if iterations < len(self.window) else {}


Look = Callable[[Row, Past], str]


def above(name: str, limit: float, words: str) -> Look:
    """A figure beyond a limit."""
    return lambda row, past: words.format(value) if (value := figure(row, name)) > limit else ""


def below(name: str, limit: float, words: str) -> Look:
    """A figure short of a limit."""
    return lambda row, past: words.format(value) if (value := figure(row, name)) < limit else ""


def figure(row: Row, name: str) -> float:
    """NaN where there is none."""
    return row.get(name, math.nan)


def ratio(a: float, b: float) -> float:
    """a/b; infinite where only b is 0."""
    return a / b if b else math.inf if a > 0 else math.nan


def nothing(row: Row, past: Past) -> str:
    """For what only the loop can see, and tells."""
    return ""


def not_finite(row: Row, past: Past) -> str:
    count = sum(row.get(f"health/not_finite_{name}", 0.0) for name in ("reward", "pnl", "obs"))
    return f"{count:g} rewards, gains or observations were not finite, in this iteration as in those before" if count else ""


def no_step(row: Row, past: Past) -> str:
    void = figure(row, "optim/void_steps")
    return f"none of {void:g} optimizer steps could be taken" if void > 0 and figure(row, "optim/steps") == 0 else ""


def twins(row: Row, past: Past) -> str:
    for name, what in (("critic/loss_{}", "losses"), ("optim/grad_norm/critic_{}", "gradient norms")):
        one, other = (figure(row, name.format(i)) for i in range(2))
        if max(ratio(one, other), ratio(other, one)) > APART:
            return f"the {what} of the two critics are {one:.2g} and {other:.2g}, more than {APART:g} times apart"
    return ""


def dead_critic(row: Row, past: Past) -> str:
    norms = {i: figure(row, f"optim/grad_norm/critic_{i}") for i in range(2)}
    return ", ".join(f"the gradient norm of critic {i} is {norm:.1g}" for i, norm in norms.items() if norm < STILL)


def disagreement(row: Row, past: Past) -> str:
    gap, scale = figure(row, "critic/twin_gap"), figure(row, "norm/return_std")
    return f"the twins differ by {gap:.3g} on average, the returns only vary by {scale:.3g}" if gap > scale else ""


def sharpness(row: Row) -> tuple[str, float]:
    """What shrinks when a policy stops exploring: the deviation of a Gaussian, the entropy of choices."""
    if "train/std" in row:
        return "deviation", figure(row, "train/std")
    return "entropy", figure(row, "policy/entropy_mean")


def collapse(row: Row, past: Past) -> str:
    (what, now), (_, before) = sharpness(row), sharpness(past.ago(10))
    return f"the policy's {what} fell from {before:.3g} to {now:.2g} within 10 iterations" if now < 0.1 * before else ""


def no_exploration(row: Row, past: Past) -> str:
    (what, now), (_, before) = sharpness(row), sharpness(past.first)
    return f"the policy's {what} is {now:.2g}; it was {before:.3g} at first" if now < 0.02 * before else ""


def standing_still(row: Row, past: Past) -> str:
    rate, kl = figure(row, "train/learning_rate"), figure(row, "train/approx_kl")
    tries = rate >= 0.5 * figure(past.first, "train/learning_rate")
    return f"an update moves the policy by a KL of {kl:.1g}" if tries and kl < 1e-7 else ""


def clipped_away(row: Row, past: Past) -> str:
    before, after = figure(row, "optim/grad_norm"), figure(row, "optim/grad_norm_clipped")
    return f"the gradient's norm is {before:.2g}, and {after:.2g} is left of it" if before > 100 * after > 0 else ""


def scale_drift(row: Row, past: Past) -> str:
    now, before = (figure(one, "norm/return_std") for one in (row, past.ago(20)))
    moved = now > 10 * before or now < 0.1 * before
    return f"the returns' scale went from {before:.3g} to {now:.3g} within 20 iterations" if moved else ""


def obs_drift(row: Row, past: Past) -> str:
    worst = max((value for name, value in row.items() if name.startswith("norm/obs_drift")), default=math.nan)
    return f"observations lie {worst:.1f} standard deviations from those before" if worst > 3 else ""


def limit_missed(row: Row, past: Past) -> str:
    violation, unit = figure(row, "risk/violation"), figure(row, "risk/outcome_std")
    missed = violation > 0.05 * unit
    return f"CVaR is {figure(row, 'risk/cvar'):.4g}, {violation:.3g} short of the limit" if missed else ""


def no_signal(row: Row, past: Past) -> str:
    return "all advantages are 0" if figure(row, "policy/advantage_normalised_std") == 0 else ""


def no_episode(row: Row, past: Past) -> str:
    return "" if "rollout/ep_rew_mean" in row else "no episode has ended yet"
