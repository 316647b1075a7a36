"""quantail export: an agent for machines without torch."""

from pathlib import Path
from typing import Annotated

import tyro


def export(
    folder: Annotated[Path, tyro.conf.Positional],
    checkpoint: str = "best",
    to: Path | None = None,
) -> int:
    """Write a saved agent as an ONNX graph, and compare it with torch over random episodes; exits with 1 where they differ.

    Args:
        folder: The folder of a run.
        checkpoint: best (the latest where nothing was evaluated), latest, or a file.
        to: The file; agent.onnx in the folder of the run if none is given.
    """
    from quantail import export as exporting
    from quantail.checkpoint import read
    from quantail.run.folder import chosen

    path = chosen(folder, checkpoint)
    what = exporting.trained(read(path))
    model = exporting.to_onnx(what)
    target = to or folder / "agent.onnx"
    exporting.save(target, model)
    for kind, values in (("in", model.graph.input), ("out", model.graph.output)):
        for one in values:
            print(f"{kind:<4} {exporting.described(one)}")
    gap = exporting.difference(model, what)
    good = gap <= exporting.TOLERANCE
    print(f"{target} of {path}: onnxruntime {'equals' if good else 'DIFFERS from'} torch, largest difference {gap:.1e}")
    return 0 if good else 1
