"""The generated documentation is what the source says today."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "docs.py"


@pytest.fixture
def docs():
    spec = importlib.util.spec_from_file_location("docs_tool", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_is_up_to_date():
    answer = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout


def test_api_page_names_what_users_rely_on(docs):
    page = docs.api_page()
    for name in ("gae", "quantile_huber_loss", "tail_levels", "project", "cvar_from_quantiles", "clipped_surrogate"):
        assert f"\n### {name}\n" in page
    assert "\n### _" not in page


def test_outdated_page_is_noticed(docs, tmp_path, monkeypatch, capsys):
    page = tmp_path / "api.md"
    monkeypatch.setattr(docs, "PAGE", page)
    assert docs.compare("new\n") == 1  # no page at all
    page.write_text("old\n", encoding="utf-8")
    assert docs.compare("new\n") == 1
    assert "+new" in capsys.readouterr().out
    assert docs.compare("old\n") == 0


def test_entry_keeps_the_signature_of_the_source(docs, tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(
        '"""Sums.\n\nMore."""\n\n\n'
        'def add(\n    x: int, y: int = 1\n) -> int:\n    """The sum.\n\n    Long story."""\n    return x + y\n\n\n'
        "def _hidden():\n    pass\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(docs, "MATHS", tmp_path)
    expected = "## functional.sums\n\nSums.\n\n### add\n\n```python\nadd(\n    x: int, y: int = 1\n) -> int\n```\n\nThe sum.\n"
    assert docs.section(tmp_path / "sums.py") == expected
    assert docs.api_page().endswith(expected)
