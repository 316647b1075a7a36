"""The study's report and the table in docs/algorithms.md are what it measures now."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "algorithms.md"
spec = importlib.util.spec_from_file_location("cvar_readout", ROOT / "studies" / "cvar_readout.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def test_the_table_in_the_docs_is_the_one_that_is_measured():
    """But for its last line, which holds a rounding error of the machine."""
    measured = study.markdown(study.readout_errors())
    table, _ = measured.rsplit("\n\n", 1)
    assert table in DOCS.read_text(encoding="utf-8")
    assert study.refresh_docs(f"before\n{study.BEGIN}\nold\n{study.END}\nafter", study.readout_errors()) == (
        f"before\n{study.BEGIN}\n{measured}\n{study.END}\nafter"
    )


@pytest.mark.parametrize("alpha", [0.01, 0.25])
def test_the_laws_are_scipys_in_units_of_their_deviation(alpha):
    lognormal = stats.lognorm(0.5)
    quantile = {
        "Normal": stats.norm.ppf(alpha),
        "t(3)": stats.t(3).ppf(alpha) / 3**0.5,
        "−lognormal(.5)": (lognormal.mean() - lognormal.isf(alpha)) / lognormal.std(),
        "+lognormal(.5)": (lognormal.ppf(alpha) - lognormal.mean()) / lognormal.std(),
    }
    found = {law.name: law.quantiles(study.torch.tensor([alpha], dtype=study.torch.float64)).item() for law in study.LAWS}
    assert found == pytest.approx(quantile, rel=1e-9)


def test_the_demonstration_writes_its_report_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cvar_readout.py", "--folder", str(tmp_path / "demo")])
    study.main()
    printed = capsys.readouterr().out
    assert "No agent is trained here" in printed
    assert f"The report lies in {tmp_path / 'demo' / 'report.html'}" in printed
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 3
    assert page.count("<svg") == 1
    record = json.loads((tmp_path / "demo" / "readout.json").read_text(encoding="utf-8"))
    assert len(record["readout"]) == 3 * len(study.LAWS) * len(study.ALPHAS) * len(study.COUNTS)
    scalar, particles = ({"share": float(row[1]), "error": float(row[2])} for row in record["targets"])
    assert scalar["share"] == pytest.approx(((1 - 0.99**2) / (1 - 0.9405**2)) ** 0.5, abs=0.01)
    assert particles["share"] == pytest.approx(1, abs=0.02)
    assert scalar["error"] == pytest.approx(100 * (1 - scalar["share"]), abs=3)
    assert abs(particles["error"]) < 3  # four times what is due to the sampling
    assert "sampling error 0.7" in printed
    assert "sampling error 0.7" in page
