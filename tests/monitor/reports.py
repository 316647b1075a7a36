"""Reports without a training run."""

from typing import Any

from quantail.loop import Report


def report(iteration: int, env_steps: int | None = None, findings: tuple[str, ...] = (), **metrics: float) -> Report:
    """What a sink sees of an iteration; `a__b=1` is the figure a/b."""
    nothing: Any = None
    figures = {name.replace("__", "/"): value for name, value in metrics.items()}
    steps = 100 * (iteration + 1) if env_steps is None else env_steps
    return Report(iteration, steps, figures, nothing, nothing, nothing, nothing, findings)
