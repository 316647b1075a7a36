"""What a run shows of itself: the figures that matter out of all, gathered report by report, and as one plain line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from quantail.monitor.health import Finding, Health, examine

if TYPE_CHECKING:
    from quantail.loop import Report

RECENT = 20  # iterations over which speed and phases are averaged
PHASES = ("collect", "estimate", "update", "other")

# What is shown, if the run has it: group, then label -> (name, short name in a plain line, how it is written).
KEY_FIGURES = {
    "episodes": {
        "return": ("rollout/ep_rew_mean", "return", ""),
        "length": ("rollout/ep_len_mean", "length", ""),
        "success": ("rollout/success_rate", "success", "%"),
        "evaluation": ("eval/mean_reward", "eval", ""),
    },
    "policy": {
        "KL": ("train/approx_kl", "kl", ""),
        "clipped": ("train/clip_fraction", "clip", "%"),
        "entropy": ("policy/entropy_mean", "entropy", ""),
        "deviation": ("train/std", "std", ""),
    },
    "critic": {
        "explained": ("train/explained_variance", "ev", ""),
        "loss": ("train/value_loss", "vloss", ""),
        "gradient": ("optim/grad_norm", "grad", ""),
    },
    "risk": {
        "CVaR": ("risk/cvar", "cvar", ""),
        "limit": ("risk/limit", "limit", ""),
        "multiplier": ("risk/multiplier", "multiplier", ""),
        "tail samples": ("risk/tail_samples", "tail", ""),
    },
}


class Shown(NamedTuple):
    """All that a picture is made of."""

    title: str
    total_timesteps: int
    health: Health = Health()
    figures: Mapping[str, float] = {}  # the latest of each that was finite
    paces: tuple[tuple[float, int], ...] = ()  # seconds since training began, environment steps; the latest RECENT + 1
    phases: tuple[tuple[float, ...], ...] = ()  # seconds of each of PHASES, the latest RECENT
    returns: tuple[float, ...] = ()  # mean return of episodes over the whole run, thinned out as it grows

    def after(self, report: "Report") -> "Shown":
        """What is shown after one more iteration."""
        metrics = report.metrics
        figures = {**self.figures, **{name: value for name, value in metrics.items() if math.isfinite(value)}}
        pace = (metrics.get("time/time_elapsed", math.nan), report.env_steps)
        phase = tuple(metrics.get(f"time/{name}_seconds", 0.0) for name in PHASES)
        reached = metrics.get("rollout/ep_rew_mean", math.nan)
        return self._replace(
            health=examine(self.health, report.iteration, report.env_steps, metrics, report.findings),
            figures=figures,
            paces=(*self.paces, pace)[-RECENT - 1 :],
            phases=(*self.phases, phase)[-RECENT:],
            returns=thinned((*self.returns, reached)) if math.isfinite(reached) else self.returns,
        )

    @property
    def env_steps(self) -> int:
        return self.health.env_steps

    @property
    def done(self) -> float:
        """The share of the run that is over, 0 to 1."""
        return min(self.env_steps / self.total_timesteps, 1.0)

    @property
    def steps_per_second(self) -> float:
        """Lately; before that can be said, since the start."""
        (began, first), (now, last) = self.paces[0], self.paces[-1]
        return (last - first) / (now - began) if now > began else self.figures.get("time/fps", math.nan)

    @property
    def seconds_left(self) -> float:
        return max(self.total_timesteps - self.env_steps, 0) / self.steps_per_second

    def phase_shares(self) -> dict[str, float]:
        """The share of time in each phase lately; nothing where it is not known."""
        sums = [sum(values) for values in zip(*self.phases, strict=True)]
        return {name: value / sum(sums) for name, value in zip(PHASES, sums, strict=True)} if sum(sums) > 0 else {}

    def groups(self) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
        """Each group of key figures that the run has: label, short name and value of each."""
        for group, members in KEY_FIGURES.items():
            rows = [
                (label, short, number(self.figures[name], unit))
                for label, (name, short, unit) in members.items()
                if name in self.figures
            ]
            if rows:
                yield group, rows


def plain_line(shown: Shown) -> str:
    """An iteration in one line of plain characters."""
    parts = [f"step {shown.env_steps:,}/{shown.total_timesteps:,} ({shown.done:.0%})"]
    if math.isfinite(shown.steps_per_second):
        parts[0] += f" {number(shown.steps_per_second)}/s {duration(shown.seconds_left)} left"
    parts += [" ".join(f"{short} {value}" for _, short, value in rows) for _, rows in shown.groups()]
    parts += [" ".join(f"{name} {share:.0%}" for name, share in shown.phase_shares().items())]
    return " | ".join(filter(None, parts))


def sentence(finding: Finding) -> str:
    """How grave, which rule, what was seen."""
    return f"{finding.gravity}: {finding.name + ': ' if finding.name else ''}{finding.seen}"


def often(finding: Finding) -> str:
    """How often and since when."""
    return f"{finding.iterations:,}x since step {finding.since:,}"


def number(value: float, unit: str = "") -> str:
    """Four digits that count; a share in percent."""
    if unit == "%":
        return f"{value:.1%}"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:,.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.2g}"


def thinned(values: tuple[float, ...], most: int = 240) -> tuple[float, ...]:
    """Every other one, the last always, once there are more than that many."""
    return values if len(values) <= most else values[(len(values) + 1) % 2 :: 2]


def thinned_once(values: Sequence[float]) -> tuple[float, ...]:
    """As a run that showed them one by one would have them."""
    kept: tuple[float, ...] = ()
    for value in values:
        kept = thinned((*kept, value)) if math.isfinite(value) else kept
    return kept


def duration(seconds: float) -> str:
    """0:13, 4:05:00, 3 days 4 h."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
