"""Who goes on learning when the world keeps changing, and does it help to shorten noisy steps?

    python studies/plasticity.py --jobs 16 --folder runs/plasticity    both tasks, all optimizers, into plasticity.json
    python studies/plasticity.py --table studies/plasticity.json       its table, and the figure where matplotlib is installed

Two tasks, one sample at a time. *Digits*: 8×8 images of digits whose pixels are permuted anew every 2000 samples; what counts
is the share recognised at first sight, before the step. *Market*: x → position a, reward a·r − ½c·(a − a′)² − ½a² with
returns of autocorrelation φ; (φ, c) jumps among four regimes every 2000 samples, unseen by the agent; what counts is the
reward as a share of what an oracle gets that knows the regime, on the same returns.

Every optimizer runs at four learning rates, alone and with its steps shortened by a measured noise-to-signal ratio: element
by element, by two batches (two samples in a row: noise ½|g − g′|², signal g·g′), and, for comparison, by the variance of ‖g‖
over its squared mean, which noise that keeps the norm escapes. The rate is chosen for each by the mean over the seeds. All of
one optimizer and seed run side by side as one population of networks, which share nothing (tests/studies/test_plasticity.py)
but the samples they see.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantail.optim import UPGD, AdaptiveUPGD, VarianceScaler

PERIOD = 2000  # samples between two changes
SCALINGS = ("none", "elementwise", "two_batch", "norm")
STEEP, GENTLE = (3e-3, 1e-2, 3e-2, 1e-1), (3e-4, 1e-3, 3e-3, 1e-2)  # learning rates of SGD's and of Adam's kind
RATES = {"SGD": STEEP, "UPGD": STEEP, "Adam": GENTLE, "AdamW": GENTLE, "AdaptiveUPGD": GENTLE}
SIZES = {"digits": (64, 64, 32, 10), "market": (5, 32, 32, 1)}
REGIMES = ((0.7, 0.1), (-0.7, 0.1), (0.7, 2.0), (-0.7, 2.0))  # autocorrelation φ, cost c
LATE = 0.2  # the last share of a run, where plasticity shows


class Job(NamedTuple):
    """One optimizer on one task with one seed: a population of 4 scalings × 4 rates."""

    task: str
    optimizer: str
    seed: int
    samples: int
    digits: str


# --- networks side by side --------------------------------------------------------------------------------------------


class Nets:
    """P networks of one shape, ReLU between layers, alike at first; gradients by hand, written in place.

    A layer is one parameter [P, out, in + 1]; the last column, which an input of 1 meets, is the bias.
    """

    def __init__(self, sizes: Sequence[int], agents: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        source = torch.Generator().manual_seed(seed)
        self.params: list[Tensor] = []
        self.inputs = [torch.ones(agents, fan_in + 1, dtype=dtype) for fan_in in sizes[:-1]]
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = math.sqrt((6 if fan_out != sizes[-1] else 1) / fan_in)  # He et al. 2015
            drawn = bound * (2 * torch.rand((fan_out, fan_in + 1), generator=source, dtype=dtype) - 1)
            drawn[:, -1] = 0
            self.params.append(torch.nn.Parameter(drawn.expand(agents, -1, -1).clone()))
        for p in self.params:
            p.grad = torch.zeros_like(p)

    def forward(self, x: Tensor) -> Tensor:
        """x [P, in] -> [P, out]."""
        for w, h in zip(self.params, self.inputs, strict=True):
            h[:, :-1] = x
            x = torch.bmm(w, h[..., None])[..., 0]
            if w is not self.params[-1]:
                x = x.relu_()
        return x

    def backward(self, slope: Tensor) -> None:
        """∂loss/∂output [P, out] -> the gradients of all parameters."""
        for w, h in zip(self.params[::-1], self.inputs[::-1], strict=True):
            assert w.grad is not None
            torch.mul(slope[..., None], h[:, None, :], out=w.grad)
            if w is not self.params[0]:
                slope = torch.bmm(slope[:, None, :], w)[:, 0, :-1] * (h[:, :-1] > 0)


# --- tasks: each sample gives x, then takes the outputs and gives slopes and what counts --------------------------------

Play = Iterator[
    tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]], float]
]  # x [P, in]; outputs -> slopes, score [P]; oracle's


def digits_task(job: Job, agents: int) -> Play:
    """Pixels permuted anew every PERIOD samples; cross-entropy; 1 where the largest output is right."""
    images, labels = load_digits(job.digits)
    source = np.random.default_rng([job.seed, 1])
    for at in range(job.samples):
        if at % PERIOD == 0:
            shown = torch.from_numpy(images[:, source.permutation(images.shape[1])])
            order = source.integers(len(images), size=PERIOD)
        i = int(order[at % PERIOD])
        label = int(labels[i])

        def judge(out: Tensor, label: int = label) -> tuple[Tensor, Tensor]:
            slope = out.softmax(-1)
            slope[:, label] -= 1
            return slope, out.argmax(-1) == label

        yield shown[i].expand(agents, -1), judge, 1.0


def market_task(job: Job, agents: int) -> Play:
    """Four returns and the position held -> the next one, tanh of the output; the reward's own gradient."""
    source = np.random.default_rng([job.seed, 2])
    returns, held, oracle = np.zeros(4), torch.zeros(agents), 0.0
    for at in range(job.samples):
        if at % PERIOD == 0:
            phi, cost = REGIMES[source.integers(len(REGIMES))]
            shocks = source.standard_normal(PERIOD)
        now = float(phi * returns[0] + shocks[at % PERIOD])
        best = min(max((phi * returns[0] + cost * oracle) / (1 + cost), -1.0), 1.0)
        earned = best * now - 0.5 * cost * (best - oracle) ** 2 - 0.5 * best**2
        x = torch.cat([torch.tensor(returns, dtype=torch.float32).expand(agents, -1), held[:, None]], 1)
        box = [held]

        def judge(
            out: Tensor, now: float = now, cost: float = cost, held: Tensor = held, box: list[Tensor] = box
        ) -> tuple[Tensor, Tensor]:
            a = out[:, 0].tanh()
            box[0] = a
            slope = -(now - cost * (a - held) - a) * (1 - a.square())
            return slope[:, None], a * now - 0.5 * cost * (a - held).square() - 0.5 * a.square()

        yield x, judge, earned
        held, oracle = box[0], best
        returns = np.concatenate([[now], returns[:-1]])


TASKS = {"digits": digits_task, "market": market_task}


def load_digits(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [1797, 64] with mean 0 and deviation 1, labels [1797]: from a file with both, or from scikit-learn."""
    if path:
        with np.load(path) as file:
            images, labels = file["images"], file["labels"]
    else:
        from sklearn.datasets import load_digits as load

        images, labels = load(return_X_y=True)
    images = np.asarray(images, np.float32).reshape(len(labels), -1)
    return (images - images.mean()) / images.std(), np.asarray(labels)


# --- optimizers and scalings ------------------------------------------------------------------------------------------


def optimizer_of(name: str, params: list[Tensor], seed: int) -> torch.optim.Optimizer:
    """At the largest of its rates, with the library's defaults; the others are reached by shortening steps: the same."""
    rate = max(RATES[name])
    match name:
        case "SGD":
            return torch.optim.SGD(params, rate, foreach=True)
        case "Adam":
            return torch.optim.Adam(params, rate, eps=1e-5, foreach=True)
        case "AdamW":
            return torch.optim.AdamW(params, rate, eps=1e-5, weight_decay=1e-2, foreach=True)
        case "UPGD":
            return UPGD(params, rate, weight_decay=1e-3, population=True, seed=seed)
    return AdaptiveUPGD(params, rate, population=True, seed=seed)


class NormVariance:
    """Var‖g‖/(E‖g‖)² by the same moving averages; the factor as the library's."""

    def __init__(self, params: list[Tensor], like: VarianceScaler) -> None:
        self.params, self.scaling, self.count = params, like.scaling, 0
        self.mean, self.variance = torch.zeros(len(params[0])), torch.zeros(len(params[0]))

    def observe(self) -> None:
        self.count += 1
        rate = max(1 / self.count, 1 - self.scaling["decay"])
        norm = torch.stack([p.grad.flatten(1).square().sum(1) for p in self.params if p.grad is not None]).sum(0).sqrt()
        delta = norm - self.mean
        self.mean += rate * delta
        self.variance = (1 - rate) * (self.variance + rate * delta.square())

    def factor(self) -> Tensor:
        if self.count <= self.scaling["warmup"]:
            return torch.ones_like(self.mean)
        ratio = (self.variance / self.mean.square().clamp_min(1e-30)).clamp_max(self.scaling["cap"])
        return (1 / (1 + self.scaling["alpha"] * ratio)).clamp_min(self.scaling["floor"])


def scalers_of(params: list[Tensor], rates: int) -> tuple[VarianceScaler, VarianceScaler, NormVariance]:
    """One for each scaling, which sees its own agents."""
    parts = [[view(p, rates * i, rates * (i + 1)) for p in params] for i in (1, 2, 3)]
    elementwise = VarianceScaler(parts[0], "elementwise", population=True)
    return elementwise, VarianceScaler(parts[1], "two_batch", population=True), NormVariance(parts[2], elementwise)


def view(p: Tensor, begin: int, end: int) -> Tensor:
    """Some agents' part of a parameter, with their part of its gradient."""
    part = p.detach()[begin:end]
    assert p.grad is not None
    part.grad = p.grad[begin:end]
    return part


def run(job: Job) -> dict[str, Any]:
    """All scalings and rates of an optimizer: the score of every period, and how the factor behaved."""
    torch.set_num_threads(1)
    rates = RATES[job.optimizer]
    agents = len(SCALINGS) * len(rates)
    nets = Nets(SIZES[job.task], agents, job.seed)
    optimizer = optimizer_of(job.optimizer, nets.params, job.seed)
    elementwise, pair, norm = scalers_of(nets.params, len(rates))
    before = [torch.zeros_like(p) for p in pair.params]
    length = torch.tensor(rates).repeat(len(SCALINGS)) / max(rates)
    factor = torch.ones(agents)
    scores, oracle, factors = torch.zeros(-(-job.samples // PERIOD), agents), 0.0, torch.zeros(2, agents)
    for at, (x, judge, best) in enumerate(TASKS[job.task](job, agents)):
        with torch.no_grad():
            slope, score = judge(nets.forward(x))
            nets.backward(slope)
            scores[at // PERIOD] += score
            oracle += best
            elementwise.observe()
            norm.observe()
            noise, signal = two_samples(pair.params, before)
            if at:
                pair.observe_pair(noise, signal)
            factor[len(rates) :] = torch.cat([scaler.factor().float() for scaler in (elementwise, pair, norm)])
            factors += torch.stack([factor, factor.square()])
            old = [p.clone() for p in nets.params]
        optimizer.step()
        with torch.no_grad():
            rest = 1 - factor * length
            for p, q in zip(nets.params, old, strict=True):
                p.lerp_(q, rest.reshape(-1, *[1] * (p.ndim - 1)))
    scores = scores * (len(scores) / oracle if job.task == "market" else 1 / PERIOD)  # of the oracle's mean, or of all samples
    mean = factors[0] / job.samples
    spread = (factors[1] / job.samples - mean.square()).clamp_min(0).sqrt()
    return {"scores": scores.T.tolist(), "factor": mean.tolist(), "factor_sd": spread.tolist()}


def two_samples(params: list[Tensor], before: list[Tensor]) -> tuple[Tensor, Tensor]:
    """½|g − g′|² and g·g′ of this sample and the one before, [agents] each; remembers this one."""
    noise, signal = 0.0, 0.0
    for p, old in zip(params, before, strict=True):
        assert p.grad is not None
        noise = noise + 0.5 * (p.grad - old).square_().flatten(1).sum(1)
        signal = signal + (p.grad * old).flatten(1).sum(1)
        old.copy_(p.grad)
    return torch.as_tensor(noise), torch.as_tensor(signal)


# --- results ----------------------------------------------------------------------------------------------------------


def gather(jobs: Sequence[Job], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per task, optimizer and scaling: the best rate, scores of each seed over the whole run and late, the mean course."""
    seeds = sorted({job.seed for job in jobs})
    rows = []
    for task, optimizer in dict.fromkeys((job.task, job.optimizer) for job in jobs):
        results = {job.seed: r for job, r in zip(jobs, found, strict=True) if (job.task, job.optimizer) == (task, optimizer)}
        rates = RATES[optimizer]
        scores = np.array([results[seed]["scores"] for seed in seeds]).reshape(len(seeds), len(SCALINGS), len(rates), -1)
        whole = scores.mean(-1)
        late = scores[..., -max(1, round(LATE * scores.shape[-1])) :].mean(-1)
        early = scores[..., : max(1, round(LATE * scores.shape[-1]))].mean(-1)
        factor, spread = (
            np.array([results[seed][name] for seed in seeds]).reshape(len(seeds), len(SCALINGS), len(rates)).mean(0)
            for name in ("factor", "factor_sd")
        )
        for i, scaling in enumerate(SCALINGS):
            best = int(np.nan_to_num(whole[:, i].mean(0), nan=-np.inf).argmax())
            rows.append({
                "task": task, "optimizer": optimizer, "scaling": scaling, "rate": rates[best],
                "rates": {f"{rate:g}": rounded(whole[:, i, j]) for j, rate in enumerate(rates)},
                "whole": rounded(whole[:, i, best]), "early": rounded(early[:, i, best]), "late": rounded(late[:, i, best]),
                "factor": round(float(factor[i, best]), 4), "factor_sd": round(float(spread[i, best]), 4),
                "course": rounded(scores[:, i, best].mean(0)),
            })  # fmt: skip
    samples = {job.task: job.samples for job in jobs}
    return {"seeds": seeds, "samples": samples, "period": PERIOD, "rows": rows}


def rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the 95 % interval by Student's t."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)), math.nan
    t = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}.get(n, 1.96 + 2.5 / n)
    return float(np.mean(values)), t * float(np.std(values, ddof=1)) / math.sqrt(n)


def table(record: dict[str, Any]) -> str:
    """Markdown: late scores with intervals, and what scaling adds to the same optimizer, seed by seed."""
    lines = [
        "| Task | Optimizer | Scaling | Rate | First fifth | Last fifth | More than without, last fifth | Factor |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    plain = {(r["task"], r["optimizer"]): r for r in record["rows"] if r["scaling"] == "none"}
    for r in record["rows"]:
        base = plain[r["task"], r["optimizer"]]
        gain = interval([100 * (a - b) for a, b in zip(r["late"], base["late"], strict=True)])
        late, early = interval([100 * v for v in r["late"]]), interval([100 * v for v in r["early"]])
        more = "" if r is base else f"{gain[0]:+.2f} ± {gain[1]:.2f}"
        factor = "" if r is base else f"{r['factor']:.2f} ± {r['factor_sd']:.2f}"
        lines.append(
            f"| {r['task']} | {r['optimizer']} | {r['scaling']} | {r['rate']:g} | {early[0]:.1f} ± {early[1]:.1f} "
            f"| {late[0]:.1f} ± {late[1]:.1f} | {more} | {factor} |"
        )
    return "\n".join(lines)


def draw(record: dict[str, Any], path: Path) -> None:
    """The course of every optimizer without scaling, and what each scaling adds late."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quantail", "font.family": "sans-serif", "font.size": 9}):
        figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained")
        for line, task in zip(axes, SIZES, strict=True):
            rows = [r for r in record["rows"] if r["task"] == task]
            plain = {r["optimizer"]: r for r in rows if r["scaling"] == "none"}
            for name, r in plain.items():
                course = np.convolve(r["course"], np.ones(5) / 5, "valid") if len(r["course"]) >= 5 else r["course"]
                line[0].plot(
                    np.arange(len(course)) * record["period"] / 1000, 100 * np.asarray(course), label=name, linewidth=1.2
                )
            line[0].set(xlabel="thousand samples", ylabel="%", title=f"{task}: score, mean of five periods")
            for k, scaling in enumerate(SCALINGS[1:]):
                scaled = [r for r in rows if r["scaling"] == scaling]
                gains = [
                    interval([100 * (a - b) for a, b in zip(r["late"], plain[r["optimizer"]]["late"], strict=True)])
                    for r in scaled
                ]
                middle, half = zip(*gains, strict=True)
                line[1].errorbar(np.arange(len(scaled)) + 0.2 * (k - 1), middle, half, fmt="o", label=scaling, markersize=4)
            line[1].axhline(0, color="gray", linewidth=0.8)
            line[1].set_xticks(range(len(plain)), list(plain))
            line[1].set(ylabel="points", title=f"{task}: scaled less unscaled, last fifth, 95 %")
        axes[0, 0].legend(frameon=False)
        axes[0, 1].legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def study(jobs: Sequence[Job], workers: int, seconds: float) -> dict[str, Any]:
    """Seed by seed, the slow optimizers first; seeds that are not done when the time is over are left out."""
    found: dict[Job, dict[str, Any]] = {}
    if workers == 1:
        found = {job: run(job) for job in jobs}
    else:
        end = time.monotonic() + seconds
        with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
            results = pool.imap_unordered(named_run, jobs)
            try:
                for _ in jobs:
                    job, result = results.next(timeout=max(end - time.monotonic(), 0.01))  # type: ignore[attr-defined]
                    found[job] = result
            except multiprocessing.TimeoutError:
                print(f"{len(jobs) - len(found)} of {len(jobs)} jobs were not done after {seconds:.0f} s")
    whole = [seed for seed in sorted({job.seed for job in jobs}) if all(job in found for job in jobs if job.seed == seed)]
    if not whole:
        raise SystemExit("no seed was done in time; give more with --minutes, or fewer --samples")
    done = [job for job in jobs if job.seed in whole]
    return gather(done, [found[job] for job in done])


def named_run(job: Job) -> tuple[Job, dict[str, Any]]:
    """A job with its result, for they come back in any order."""
    return job, run(job)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write, or show what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=200_000, help="of the digits; half as many of the market")
    parser.add_argument("--minutes", type=float, default=math.inf, help="seeds that are not done by then are left out")
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    parser.add_argument("--optimizers", nargs="+", choices=sorted(RATES), default=list(RATES))
    parser.add_argument("--digits", default="", help="an .npz with images and labels; without it scikit-learn's are taken")
    parser.add_argument("--folder", type=Path, default=Path("runs/plasticity"))
    parser.add_argument("--table", type=Path, help="show this record instead of running; plasticity.svg goes beside it")
    asked = parser.parse_args(arguments)
    if asked.table:
        record = json.loads(asked.table.read_text("utf-8"))
        draw(record, asked.table.with_suffix(".svg"))
    else:
        began = time.perf_counter()
        slow_first = sorted(
            asked.optimizers, key=lambda name: ("Adaptive" in name, "UPGD" in name, "Adam" in name), reverse=True
        )
        jobs = [
            Job(task, name, seed, asked.samples // (1 if task == "digits" else 2), asked.digits)
            for seed in range(asked.seeds)
            for task in sorted(asked.tasks)
            for name in slow_first
        ]
        record = study(jobs, asked.jobs, 60 * asked.minutes)
        asked.folder.mkdir(parents=True, exist_ok=True)
        (asked.folder / "plasticity.json").write_text(json.dumps(record) + "\n", "utf-8")
        print(f"{time.perf_counter() - began:.0f} s; seeds {record['seeds']}, samples {record['samples']}\n")
    print(table(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
