"""quantail bench: how fast training is on this machine."""

import json as jsons
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from quantail.bench.scene import Sizes

START = Sizes()


def bench(
    sizes: Annotated[Sizes, tyro.conf.arg(name="")] = START,
    *,
    growth: bool = False,
    iterations: int = 4,
    threads: int = 1,
    device: Literal["cpu", "cuda"] = "cpu",
    json: Path | None = None,
    page: Path | None = None,
) -> int:
    """Train for a few iterations in a market with costs; rows a second by phase, beside what this machine does at best.

    Args:
        sizes: Of what is trained.
        growth: Then change one size at a time.
        iterations: The best of so many counts.
        threads: Of the processor.
        device: Where to train.
        json: A file for the figures.
        page: A file for charts of the growth, HTML with SVG inside.
    """
    import torch

    from quantail.bench.ceilings import ceilings
    from quantail.bench.growth import grown, page_of, plain, table
    from quantail.bench.measure import measure

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        known = ceilings(torch.device(device))
        print(f"at best {known.flops / 1e9:,.0f} GFLOP/s and {known.bytes / 1e9:,.0f} GB/s, {device}, threads: {threads}")
        print(", ".join(f"{one.name} {getattr(sizes, one.name)}" for one in fields(sizes)), end="\n\n")
        measured = []
        for found in (
            grown(sizes, iterations, device, known) if growth else [("start", measure(sizes, iterations, device, known))]
        ):
            measured.append(found)
            lines = table([found]).splitlines()
            print(*(lines if len(measured) == 1 else lines[-1:]), sep="\n", flush=True)
    finally:
        torch.set_num_threads(before)
    if json is not None:
        json.write_text(jsons.dumps(plain(measured), indent=2) + "\n")
    if page is not None:
        page.write_text(page_of(measured, f"What a row costs, {device}, threads: {threads}"))
    return 0
