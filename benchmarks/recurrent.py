"""How fast the memory is: `python benchmarks/recurrent.py [--device cuda] [--json FILE]`.

Forward and backward of one layer over a rollout's mini-batch (T = 128, B = 64, H = I = 64, float32, one thread on the CPU): the
sequence kernels, torch's fused layers (which cannot start an episode inside a sequence) and the plain loop of cells under
autograd that resets by mask. Ratios travel between machines; the times do not.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from quantail.kernels import gru_sequence, lstm_sequence, mingru_sequence
from quantail.kernels.scan import scan_pairs, scan_rows

TIME, ENVS, INPUTS, HIDDEN = 128, 64, 64, 64


def cases(device: torch.device) -> dict[str, Callable[[], None]]:
    """Every case does one forward and one backward of the same rows; episodes start in one row of 100, or (few) of 1000."""
    torch.manual_seed(0)
    x = torch.randn(TIME, ENVS, INPUTS, device=device, requires_grad=True)
    some, rare = (torch.rand(TIME, ENVS, device=device) < share for share in (0.01, 0.001))
    never = torch.zeros_like(some)
    state, slope = torch.zeros(ENVS, HIDDEN, device=device), torch.randn(TIME, ENVS, HIDDEN, device=device)
    lstm, gru = nn.LSTM(INPUTS, HIDDEN, device=device), nn.GRU(INPUTS, HIDDEN, device=device)
    w_x, w_h, b = (p.detach().clone().requires_grad_() for p in (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0))
    r_x, r_h, r_b = (p.detach().clone().requires_grad_() for p in (gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0))
    r_n = torch.zeros(HIDDEN, device=device, requires_grad=True)
    cell, gru_cell = nn.LSTMCell(INPUTS, HIDDEN, device=device), nn.GRUCell(INPUTS, HIDDEN, device=device)

    def cells() -> Tensor:
        h = c = state
        rows = []
        for t in range(TIME):
            h, c = (torch.where(some[t, :, None], 0.0, part) for part in (h, c))
            h, c = cell(x[t], (h, c))
            rows.append(h)
        return torch.stack(rows)

    def gru_cells() -> Tensor:
        h, rows = state, []
        for t in range(TIME):
            h = gru_cell(x[t], torch.where(some[t, :, None], 0.0, h))
            rows.append(h)
        return torch.stack(rows)

    decay, inflow = torch.rand_like(x).detach(), torch.randn_like(x)
    differentiable = {
        "lstm, kernel, episodes start inside": lambda: lstm_sequence(x, some, state, state, w_x, w_h, b)[0],
        "lstm, kernel, few start inside": lambda: lstm_sequence(x, rare, state, state, w_x, w_h, b)[0],
        "lstm, kernel, none starts inside": lambda: lstm_sequence(x, never, state, state, w_x, w_h, b)[0],
        "lstm, torch's fused layer, none starts inside": lambda: lstm(x)[0],
        "lstm, loop of cells, episodes start inside": cells,
        "gru, kernel, episodes start inside": lambda: gru_sequence(x, some, state, r_x, r_h, r_b, r_n)[0],
        "gru, torch's fused layer, none starts inside": lambda: gru(x)[0],
        "gru, loop of cells, episodes start inside": gru_cells,
        "mingru, kernel, episodes start inside": lambda: mingru_sequence(x, some, state, w_x[: 2 * HIDDEN], b[: 2 * HIDDEN])[0],
    }
    return {
        **{name: lambda call=call: call().backward(slope) for name, call in differentiable.items()},
        "scan, row by row (forward)": lambda: scan_rows(decay, inflow, some, state),
        "scan, pairs of rows (forward)": lambda: scan_pairs(decay, inflow, some, state),
    }


def seconds(calls: dict[str, Callable[[], None]], device: torch.device, repeats: int) -> dict[str, float]:
    """Median time of each call; the calls take turns, so that a busy moment of the machine falls on all alike.

    On the CPU the time that the process computed, so that other programs do not count.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 2):
        for name, call in calls.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = clock()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if i >= 2:
                times[name].append(clock() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="time of the recurrent kernels")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    measured = seconds(cases(device), device, arguments.repeats)
    base = measured["lstm, kernel, episodes start inside"]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, 1 thread"
    print(f"T={TIME} B={ENVS} I={INPUTS} H={HIDDEN} float32, torch {torch.__version__}, {where}\n")
    print(
        f"| {'forward + backward':46} | {'ms':>8} | {'rows/s':>11} | {'ratio':>6} |",
        f"|{'-' * 48}|---------:|------------:|-------:|",
        sep="\n",
    )
    for name, each in measured.items():
        print(f"| {name:46} | {1e3 * each:8.2f} | {TIME * ENVS / each:11,.0f} | {each / base:6.2f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
