"""Write what the documentation takes from the code (`make docs`); with --check only say whether it is up to date.

docs/api.md comes from the signatures and the first paragraphs of the docstrings of `quantail.functional`, read from the
source text, so that the page says what the source says and nothing has to be imported. The table in docs/algorithms.md
is measured by its study.
"""

import argparse
import ast
import subprocess
import sys
from difflib import unified_diff
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATHS = ROOT / "src" / "quantail" / "functional"
PAGE = ROOT / "docs" / "api.md"
STUDY = ROOT / "studies" / "cvar_readout.py"

OPENING = """\
<!-- Written by tools/docs.py from the docstrings; edit those and run `make docs`. -->
# The functions

Pure functions on tensors: no state, no I/O, noise comes in as tensors. T time, B environments, N quantiles or atoms,
M particles, A actions. Shapes, dtypes and Python scalars are checked; a wrong one raises `quantail.InputError`.
"""


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if docs/api.md is out of date")
    check = parser.parse_args().check
    page = api_page()
    if check:
        return compare(page)
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return subprocess.run([sys.executable, str(STUDY), "--docs"], cwd=ROOT, check=False).returncode


def compare(page: str) -> int:
    """0 if the committed page is this one, else 1 and the difference."""
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if committed == page:
        return 0
    difference = unified_diff(committed.splitlines(), page.splitlines(), "docs/api.md", "from the source", lineterm="", n=1)
    print("\n".join(difference))
    print("docs/api.md is out of date: run `make docs` and commit the result")
    return 1


def api_page() -> str:
    """The whole page: a section for each module that has public functions."""
    paths = [path for path in sorted(MATHS.glob("*.py")) if path.stem not in ("__init__", "checks")]
    return "\n".join([OPENING, *(section(path) for path in paths)])


def section(path: Path) -> str:
    """One module: its first paragraph, then its public functions in the order of the source."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    head = f"## functional.{path.stem}\n\n{first_paragraph(tree)}\n"
    return "\n".join([head, *(entry(node, source) for node in functions)])


def entry(node: ast.FunctionDef, source: str) -> str:
    """One function: its signature as it stands in the source, and the first paragraph of its docstring."""
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
    signature = "\n".join(lines).removeprefix("def ").removesuffix(":")
    return f"### {node.name}\n\n```python\n{signature}\n```\n\n{first_paragraph(node)}\n"


def first_paragraph(node: ast.Module | ast.FunctionDef) -> str:
    """What the docstring says before its first empty line."""
    return cleandoc(ast.get_docstring(node) or "").split("\n\n")[0]


if __name__ == "__main__":
    sys.exit(main())
