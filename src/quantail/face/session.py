"""One call of `learn`: the loop is `train`'s; here its reports are taken, its rollouts told, its figures logged."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from quantail.face.callbacks import Callback, step_scope
from quantail.face.log import Logs, record_metrics
from quantail.face.vec import Infos
from quantail.face.watch import Seen, Stopped, Watch
from quantail.loop import Hooks, Report, train
from quantail.rollout import Carry, Rollout
from quantail.statistics import ended_episodes, successes

NOTES = logging.getLogger("quantail")


class Ledger:
    """The episodes that ended lately, and since when training goes on."""

    def __init__(self, window: int, num_timesteps: int) -> None:
        self.episodes: deque[dict[str, Any]] = deque(maxlen=window)
        self.successes: deque[float] = deque(maxlen=window)
        self.restart(num_timesteps)

    def restart(self, num_timesteps: int) -> None:
        """The clock from here on."""
        self.begun, self.before = time.perf_counter(), num_timesteps

    def take(self, infos: Infos, dones: Any) -> int:
        """What the infos of one row say; how many episodes that were."""
        told = [info["episode"] for info in infos if info.get("episode") is not None]
        self.episodes.extend(told)
        self.successes.extend(
            float(info["is_success"]) for info, done in zip(infos, dones, strict=True) if done and "is_success" in info
        )
        return len(told)

    def figures(self, num_timesteps: int) -> dict[str, float]:
        """Means over the episodes, and the pace."""
        elapsed = max(time.perf_counter() - self.begun, 1e-9)
        pace = (num_timesteps - self.before) / elapsed
        found: dict[str, float] = {"time/fps": int(pace), "time/time_elapsed": int(elapsed)}
        if self.episodes:
            for name, key in (("ep_rew_mean", "r"), ("ep_len_mean", "l")):
                found[f"rollout/{name}"] = float(np.mean([episode[key] for episode in self.episodes]))
        if self.successes:
            found["rollout/success_rate"] = float(np.mean(self.successes))
        return found

    def dump(self, logger: Logs, num_timesteps: int, iteration: int) -> None:
        """Write what was recorded, with all this."""
        if iteration > 0:
            logger.record("time/iterations", iteration, exclude="tensorboard")
        for name, value in self.figures(num_timesteps).items():
            logger.record(name, value, exclude="tensorboard" if name == "time/time_elapsed" else None)
        logger.record("time/total_timesteps", num_timesteps, exclude="tensorboard")
        logger.dump(step=num_timesteps)


class Session:
    """A model learns until it has made `total` steps, or a callback asks for the end."""

    def __init__(self, model: Any, total: int, callback: Callback | None, log_interval: int | None) -> None:
        self.model, self.total, self.callback, self.log_interval = model, total, callback, log_interval
        source = model.source
        seen = callback is not None or source.outside
        self.watch = Watch(source.env, model.progress.carry, self.tell) if seen else None
        self.env = source.env if self.watch is None else self.watch.env
        self.rows = self.told = 0  # of the running rollout: rows, and ended episodes that infos told of

    def run(self) -> None:
        """All iterations."""
        hooks = Hooks(self.model.arguments.schedules(), self.collected)
        reports = train(self.model.config, self.env, progress=self.model.progress, hooks=hooks)
        iteration = 0
        try:
            while (report := self.iterate(reports)) is not None:
                iteration += 1
                self.model.take(report)
                self.log(report, iteration)
        except Stopped:
            pass  # the rollout that was running is lost, as there
        if self.callback is not None:
            self.callback.on_training_end()

    def iterate(self, reports: Iterator[Report]) -> Report | None:
        """One iteration, or None when there is nothing left to do."""
        if self.model.num_timesteps >= self.total:
            return None
        if self.callback is not None:
            self.callback.on_rollout_start()
        self.rows = self.told = 0
        self.model.leave()
        return next(reports, None)

    def tell(self, seen: Seen) -> None:
        """One row of a rollout."""
        self.model.num_timesteps += seen.steps
        self.rows += 1
        if self.callback is not None:
            self.callback.update_locals(step_scope(seen, self.model, self.rows - 1))
            if not self.callback.on_step():
                raise Stopped("a callback asked for the end of training")
        self.told += self.model.ledger.take(seen.infos, seen.dones)

    def collected(self, rollout: Rollout, carry: Carry) -> None:
        """A rollout is complete, and nothing is learned from it yet."""
        if self.watch is not None:
            self.watch.replay()
        if not self.told:  # nobody counts episodes outside: then the rollout has
            self.model.ledger.episodes.extend({"r": total, "l": length} for total, length in ended_episodes(rollout))
            if self.watch is None:
                self.model.ledger.successes.extend(successes(rollout))
        if self.callback is not None:
            self.callback.on_rollout_end()

    def log(self, report: Report, iteration: int) -> None:
        """The figures of an iteration, dumped as often as was asked for; what is wrong, at once."""
        for finding in report.findings:
            NOTES.warning("after %d steps: %s", report.env_steps, finding)
        record_metrics(self.model.logger, report.metrics)
        if self.log_interval is not None and iteration % self.log_interval == 0:
            self.model.dump_logs(iteration)
