"""Callbacks of every kind behind one face: none, a function, one of stable-baselines3's, or a list of these."""

from collections.abc import Callable, Sequence
from typing import Any

from quantail.errors import InputError
from quantail.face.watch import Seen

Scope = dict[str, Any]
MOMENTS = ("init_callback", "on_training_start", "on_rollout_start", "on_step", "on_rollout_end", "on_training_end")


class Callback:
    """What a callback is told, moment by moment; these do nothing."""

    def init_callback(self, model: Any) -> None:
        """The model, before anything else."""

    def on_training_start(self, locals_: Scope, globals_: Scope) -> None:
        """Training begins."""

    def on_rollout_start(self) -> None:
        """A rollout begins."""

    def update_locals(self, locals_: Scope) -> None:
        """What is known of the step just made."""

    def on_step(self) -> bool:
        """A step was made; False ends training."""
        return True

    def on_rollout_end(self) -> None:
        """A rollout is complete, and nothing is learned from it yet."""

    def on_training_end(self) -> None:
        """Training is over."""


class Called(Callback):
    """A function of the locals and globals; False ends training, None does not."""

    def __init__(self, function: Callable[[Scope, Scope], Any]) -> None:
        self.function = function
        self.scope: tuple[Scope, Scope] = ({}, {})

    def on_training_start(self, locals_: Scope, globals_: Scope) -> None:
        self.scope = locals_, globals_

    def update_locals(self, locals_: Scope) -> None:
        self.scope[0].update(locals_)

    def on_step(self) -> bool:
        return self.function(*self.scope) is not False


class Several(Callback):
    """One after the other; all of them see a step, also where one asks for the end."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = list(callbacks)

    def init_callback(self, model: Any) -> None:
        for callback in self.callbacks:
            callback.init_callback(model)

    def on_training_start(self, locals_: Scope, globals_: Scope) -> None:
        for callback in self.callbacks:
            callback.on_training_start(locals_, globals_)

    def on_rollout_start(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_start()

    def update_locals(self, locals_: Scope) -> None:
        for callback in self.callbacks:
            callback.update_locals(locals_)

    def on_step(self) -> bool:
        answers = [callback.on_step() for callback in self.callbacks]
        return all(answers)

    def on_rollout_end(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_end()

    def on_training_end(self) -> None:
        for callback in self.callbacks:
            callback.on_training_end()


class Bar(Callback):
    """A progress bar of environment steps."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        self.bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.model: Any = None

    def init_callback(self, model: Any) -> None:
        self.model = model

    def on_training_start(self, locals_: Scope, globals_: Scope) -> None:
        self.bar.start()
        self.bar.add_task("", total=locals_["total_timesteps"], completed=self.model.num_timesteps)

    def on_step(self) -> bool:
        self.bar.update(self.bar.task_ids[0], completed=self.model.num_timesteps)
        return True

    def on_training_end(self) -> None:
        self.bar.stop()


def callback_of(given: Any, progress_bar: bool) -> Callback | None:
    """Whatever was given, as one callback; None where there is nothing to call."""
    members = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    found = [_one(member) for member in members if member is not None] + ([Bar()] if progress_bar else [])
    return Several(found) if found else None


def _one(given: Any) -> Any:
    if all(hasattr(given, moment) for moment in MOMENTS):
        return given
    if callable(given):
        return Called(given)
    raise InputError(
        f"callback is a {type(given).__name__}; needs a function of (locals, globals), a callback of SB3, or a list of these"
    )


def step_scope(seen: Seen, model: Any, n_steps: int) -> Scope:
    """What a step's locals are called there."""
    return {
        "self": model,
        "env": model.get_env(),
        "n_steps": n_steps,
        "n_rollout_steps": model.n_steps,
        "actions": seen.actions,
        "clipped_actions": seen.actions,
        "new_obs": seen.new_obs,
        "rewards": seen.rewards,
        "dones": seen.dones,
        "infos": seen.infos,
    }
