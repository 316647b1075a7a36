"""The Python examples of the guides run, in order, one interpreter a page, and print what they say they print."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import torch

from quantail import cli
from quantail.market.candles import simulate
from quantail.market.synthetic import HiddenDrift

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["runs.md", "from_sb3.md", "risk.md", "optimizers.md", "evaluation.md"])
def test_examples_run_and_print_what_they_say(page, tmp_path, monkeypatch):
    if "sb3" in page:
        pytest.importorskip("sb3_contrib")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names, printed = {"__name__": "page"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, page, "exec"), names)
    promised = [line.split("# ")[-1] for block in blocks for line in block.splitlines() if line.startswith("print(")]
    assert len(promised) >= 2
    assert printed.getvalue().splitlines() == promised


def prices(path):
    """Four years of days in a file, as a reader would have them."""
    made = simulate(HiddenDrift(), 1000, 1, torch.Generator().manual_seed(1)).bars(86400)
    columns = {name: getattr(made, name)[:, 0].numpy() for name in ("open", "high", "low", "close", "volume")}
    pd.DataFrame({"time": pd.to_datetime(made.time.numpy(), utc=True), **columns}).to_csv(path, index=False)


def faster(words):
    """A command of the guide with fewer steps and paths, and no picture in the terminal."""
    if words[0] != "train":
        return [word.replace("1600000", "12000") for word in words]
    made_up = [] if "daily" in words else ["--env.options.paths", "32"]
    short = "--total-timesteps 8000 --env.num-envs 8 --ppo.batch-size 512 --run.sinks jsonl"
    return [*words, *made_up, *short.split()]


@pytest.mark.parametrize("page", ["deploy.md", pytest.param("guide.md", marks=pytest.mark.slow)])
def test_commands_and_examples_run_one_after_the_other(page, tmp_path, monkeypatch):
    """Every `quantail` in a block of bash, and every block of Python, in the order of the page."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    prices(tmp_path / "prices.csv")
    text = (DOCS / page).read_text(encoding="utf-8")
    names, commands = {"__name__": "page"}, 0
    for kind, block in re.findall(r"^```(bash|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if kind == "python":
                exec(compile(block, page, "exec"), names)
            for line in block.splitlines() if kind == "bash" else ():
                program, *words = shlex.split(line, comments=True) or [""]
                if program == "quantail":
                    commands += 1
                    assert cli.main(faster(words) if page == "guide.md" else words) == 0, line
        if kind == "python":
            promised = [line.split("# ")[-1] for line in block.splitlines() if line.startswith("print(")]
            assert printed.getvalue().splitlines() == promised
    assert commands >= 2


@pytest.mark.parametrize("page", [*DOCS.glob("*.md")], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]*(?:#[^)]*)?)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        found = (page.parent / file) if file else page
        assert found.exists(), target
        headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, target
