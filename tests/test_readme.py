"""The Python examples of the README run, in order, in one interpreter, and print what they say they print."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_there_are_examples():
    assert BLOCKS


def test_examples_run_and_print_what_they_say():
    names = {"__name__": "readme"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in BLOCKS:
            exec(compile(block, str(README), "exec"), names)
    promised = [line.split("# ")[-1] for block in BLOCKS for line in block.splitlines() if line.startswith("print(")]
    assert promised
    assert printed.getvalue().splitlines() == promised
