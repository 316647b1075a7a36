"""Who goes on learning when the world keeps changing, and does it help to shorten noisy steps?

    python studies/plasticity.py --jobs 16 --folder runs/plasticity    both tasks, all optimizers, into plasticity.json
    python studies/plasticity.py --table studies/plasticity.json       its table, and the figure where matplotlib is installed

Two tasks, one sample at a time. *Digits*: 8×8 images of digits whose pixels are permuted anew every 2000 samples; what counts
is the share recognised at first sight, before the step. *Market*: x → position a, reward a·r − ½c·(a − a′)² − ½a² with
returns of autocorrelation φ; (φ, c) jumps among four regimes every 2000 samples, unseen by the agent; what counts is the
reward as a share of what an oracle gets that knows the regime, on the same returns.

Every optimizer runs at three learning rates, a factor of four apart, alone and with its steps shortened by a measured
noise-to-signal ratio: element by element, by two batches (two samples in a row: noise ½|g − g′|², signal g·g′), and, for
comparison, by the variance of ‖g‖ over its squared mean, which noise that keeps the norm escapes. The rate is chosen for each
by the mean over the seeds. All of one optimizer, every seed included, run side by side as one population of networks, which
share nothing (tests/studies/test_plasticity.py).
"""

import argparse
import itertools
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantail.optim import UPGD, AdaptiveUPGD, VarianceScaler

PERIOD = 2000  # samples between two changes
SCALINGS = ("none", "elementwise", "two_batch", "norm")
STEEP, GENTLE = (5e-3, 2e-2, 8e-2), (5e-4, 2e-3, 8e-3)  # learning rates of SGD's and of Adam's kind
RATES = {"SGD": STEEP, "UPGD": STEEP, "Adam": GENTLE, "AdamW": GENTLE, "AdaptiveUPGD": GENTLE}
SIZES = {"digits": (64, 32, 32, 10), "market": (5, 32, 32, 1)}
REGIMES = ((0.7, 0.1), (-0.7, 0.1), (0.7, 2.0), (-0.7, 2.0))  # autocorrelation φ, cost c
HOLD = 10  # samples for which a factor is held: measured at each, but its memory is of a hundred
LATE = 0.2  # the last share of a run, where plasticity shows


class Job(NamedTuple):
    """One optimizer on one task: a population of 4 scalings × seeds × 3 rates."""

    task: str
    optimizer: str
    seeds: int
    samples: int
    digits: str
    seconds: float = math.inf  # after which it stops at the end of a period


# --- networks side by side --------------------------------------------------------------------------------------------


class Nets:
    """Networks of one shape, ReLU between layers, those of a seed alike at first; gradients by hand, written in place.

    Agent i of P has the seed `seed_of[i]`. A layer is one parameter [P, out, in + 1], the last column, which meets 1, the bias.
    """

    def __init__(self, sizes: Sequence[int], seed_of: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.params: list[Tensor] = []
        self.inputs = [torch.ones(len(seed_of), fan_in + 1, dtype=dtype) for fan_in in sizes[:-1]]
        sources = [torch.Generator().manual_seed(seed) for seed in range(int(seed_of.max()) + 1)]
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = math.sqrt((6 if fan_out != sizes[-1] else 1) / fan_in)  # He et al. 2015
            drawn = torch.stack([2 * torch.rand((fan_out, fan_in + 1), generator=one, dtype=dtype) - 1 for one in sources])
            drawn[..., -1] = 0
            self.params.append(torch.nn.Parameter(bound * drawn[seed_of]))
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

# x [P, in]; outputs [P, out] -> slopes [P, out] and score [P]; the oracle's score of each seed
Play = Iterator[tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]], np.ndarray]]


def digits_task(job: Job, seed_of: Tensor) -> Play:
    """Pixels permuted anew every PERIOD samples; cross-entropy; 1 where the largest output is right."""
    images, labels = load_digits(job.digits)
    sources = [np.random.default_rng([seed, 1]) for seed in range(job.seeds)]
    rows, perfect = torch.arange(len(seed_of)), np.ones(job.seeds)
    for at in range(job.samples):
        if at % PERIOD == 0:
            pixels = np.stack([source.permutation(images.shape[1]) for source in sources])
            order = np.stack([source.integers(len(images), size=PERIOD) for source in sources], 1)
            shown = torch.from_numpy(images[order[..., None], pixels])  # [PERIOD, seeds, pixels]
            told = torch.from_numpy(labels[order]).long()[:, seed_of]  # [PERIOD, P]
        label = told[at % PERIOD]

        def judge(out: Tensor, label: Tensor = label) -> tuple[Tensor, Tensor]:
            slope = out.softmax(-1)
            slope[rows, label] -= 1
            return slope, out.argmax(-1) == label

        yield shown[at % PERIOD][seed_of], judge, perfect


def market_task(job: Job, seed_of: Tensor) -> Play:
    """Four returns and the position held -> the next one, tanh of the output; the reward's own gradient."""
    sources = [np.random.default_rng([seed, 2]) for seed in range(job.seeds)]
    returns, oracle, held = np.zeros((job.seeds, 4)), np.zeros(job.seeds), torch.zeros(len(seed_of))

    def spread(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).float()[seed_of]

    for at in range(job.samples):
        if at % PERIOD == 0:
            phi, cost = np.array([REGIMES[source.integers(len(REGIMES))] for source in sources]).T
            shocks = np.stack([source.standard_normal(PERIOD) for source in sources], 1)
            dear = spread(cost)
        now = phi * returns[:, 0] + shocks[at % PERIOD]
        best = np.clip((phi * returns[:, 0] + cost * oracle) / (1 + cost), -1.0, 1.0)
        earned = best * now - 0.5 * cost * (best - oracle) ** 2 - 0.5 * best**2
        box, paid = [held], spread(now)

        def judge(
            out: Tensor, now: Tensor = paid, cost: Tensor = dear, held: Tensor = held, box: list[Tensor] = box
        ) -> tuple[Tensor, Tensor]:
            a = out[:, 0].tanh()
            box[0] = a
            slope = -(now - cost * (a - held) - a) * (1 - a.square())
            return slope[:, None], a * now - 0.5 * cost * (a - held).square() - 0.5 * a.square()

        yield torch.cat([spread(returns), held[:, None]], 1), judge, earned
        held, oracle = box[0], best
        returns = np.concatenate([now[:, None], returns[:, :-1]], 1)


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


def optimizer_of(name: str, params: list[Tensor]) -> torch.optim.Optimizer:
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
            return UPGD(params, rate, weight_decay=1e-3, population=True)
    return AdaptiveUPGD(params, rate, population=True)


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


def scalers_of(params: list[Tensor]) -> tuple[VarianceScaler, VarianceScaler, NormVariance]:
    """One for each scaling, which sees its own agents."""
    parts = [[view(p, i) for p in params] for i in (1, 2, 3)]
    elementwise = VarianceScaler(parts[0], "elementwise", population=True)
    return elementwise, VarianceScaler(parts[1], "two_batch", population=True), NormVariance(parts[2], elementwise)


def view(p: Tensor, scaling: int) -> Tensor:
    """The part of a parameter that belongs to the agents of one scaling, with its part of the gradient."""
    count = len(p) // len(SCALINGS)
    part = p.detach()[count * scaling : count * (scaling + 1)]
    assert p.grad is not None
    part.grad = p.grad[count * scaling : count * (scaling + 1)]
    return part


def run(job: Job) -> dict[str, Any]:
    """All agents of an optimizer, [scalings, seeds, rates]: scores of every period, the oracle's, how the factors behaved."""
    torch.set_num_threads(1)
    end, rates = time.monotonic() + job.seconds, torch.tensor(RATES[job.optimizer])
    shape = (len(SCALINGS), job.seeds, len(rates))
    seed_of = torch.arange(job.seeds)[None, :, None].expand(shape).flatten()
    length = (rates / rates.max()).expand(shape).flatten()
    nets = Nets(SIZES[job.task], seed_of)
    optimizer = optimizer_of(job.optimizer, nets.params)
    elementwise, pair, norm = scalers_of(nets.params)
    before = [torch.zeros_like(p) for p in pair.params]
    factor = torch.ones(len(seed_of))
    scores, oracle, factors = [torch.zeros(len(seed_of))], [np.zeros(job.seeds)], [torch.zeros(2, len(seed_of))]
    for at, (x, judge, best) in enumerate(TASKS[job.task](job, seed_of)):
        if at and at % PERIOD == 0:
            if time.monotonic() > end:
                break
            scores.append(torch.zeros(len(seed_of)))
            oracle.append(np.zeros(job.seeds))
        with torch.no_grad():
            slope, score = judge(nets.forward(x))
            nets.backward(slope)
            scores[-1] += score
            oracle[-1] += best
            elementwise.observe()
            norm.observe()
            noise, signal = two_samples(pair.params, before)
            if at:
                pair.observe_pair(noise, signal)
            if at % HOLD == 0:
                factor[len(factor) // 4 :] = torch.cat([scaler.factor().float() for scaler in (elementwise, pair, norm)])
                factors.append(torch.stack([factor, factor.square()]))
            old = [p.clone() for p in nets.params]
        optimizer.step()
        with torch.no_grad():
            rest = (1 - factor * length)[:, None, None]
            for p, q in zip(nets.params, old, strict=True):
                p.lerp_(q, rest)
    mean, squares = torch.stack(factors[1:]).mean(0)
    return {
        "scores": torch.stack(scores, -1).reshape(*shape, -1).numpy(),
        "oracle": np.stack(oracle, -1),
        "factor": mean.reshape(shape).mean(1).numpy(),
        "factor_sd": (squares - mean.square()).clamp_min(0).sqrt().reshape(shape).mean(1).numpy(),
        "samples": min(PERIOD * len(scores), job.samples),
    }


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
    """Per task, optimizer and scaling: the best rate, each seed's score over the whole run, early and late; the mean course."""
    rows = []
    for job, result in zip(jobs, found, strict=True):
        scores, oracle, rates = result["scores"], result["oracle"][:, None], RATES[job.optimizer]
        fifth = max(1, round(LATE * scores.shape[-1]))
        parts = (slice(None), slice(fifth), slice(-fifth, None))
        whole, early, late = (scores[..., part].sum(-1) / oracle[..., part].sum(-1) for part in parts)
        for i, scaling in enumerate(SCALINGS):
            best = int(np.nan_to_num(whole[i].mean(0), nan=-np.inf).argmax())
            rows.append({
                "task": job.task, "optimizer": job.optimizer, "scaling": scaling, "rate": rates[best],
                "rates": {f"{rate:g}": rounded(whole[i, :, j]) for j, rate in enumerate(rates)},
                "whole": rounded(whole[i, :, best]), "early": rounded(early[i, :, best]), "late": rounded(late[i, :, best]),
                "factor": round(float(result["factor"][i, best]), 4),
                "factor_sd": round(float(result["factor_sd"][i, best]), 4),
                "samples": result["samples"],
                "course": rounded((scores[i, :, best] / oracle[:, 0].mean(-1, keepdims=True)).mean(0)),
            })  # fmt: skip
    return {"seeds": list(range(jobs[0].seeds)), "period": PERIOD, "rows": rows}


def rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the 95 % interval by Student's t."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)), math.nan
    few, nu = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}, n - 1
    t = few.get(nu, 1.95996 + 2.3723 / nu + 2.8225 / nu**2 + 2.556 / nu**3)  # Cornish & Fisher's series of the quantile
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
        tasks = list(dict.fromkeys(r["task"] for r in record["rows"]))
        figure, axes = plt.subplots(len(tasks), 2, figsize=(10, 3 * len(tasks)), layout="constrained", squeeze=False)
        for line, task in zip(axes, tasks, strict=True):
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


def study(jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    """The record after each job; in this process if there is one worker."""
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(workers)) if workers > 1 else None
        for result in pool.imap(run, jobs) if pool else map(run, jobs):
            found.append(result)
            yield gather(jobs[: len(found)], found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write, or show what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200_000, help="of the digits; a quarter of them of the market")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each; a run stops there at the end of a period")
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
        jobs = [
            Job(task, name, asked.seeds, asked.samples // (1 if task == "digits" else 4), asked.digits, 60 * asked.minutes)
            for task in asked.tasks
            for name in asked.optimizers
        ]
        asked.folder.mkdir(parents=True, exist_ok=True)
        for record in study(jobs, asked.jobs):
            (asked.folder / "plasticity.json").write_text(json.dumps(record) + "\n", "utf-8")
        print(f"{time.perf_counter() - began:.0f} s; seeds {record['seeds']}\n")
    print(table(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
