"""`quantail check`: a table, a verdict, an exit code."""

import json

import pytest
import yaml

from market.worlds import bars_of
from quantail import audit
from quantail.audit import leaks, learning
from quantail.cli import main
from quantail.cli.check import functions_in, options_in, subject_of
from quantail.errors import ConfigError, InputError


@pytest.fixture
def path(tmp_path):
    bars = bars_of(400, 1, seed=2)
    rows = zip(bars.time.tolist(), *(getattr(bars, x)[:, 0].tolist() for x in ("open", "high", "low", "close")), strict=True)
    lines = [",".join(map(str, [1_600_000_000 + stamp // 10**9, *row])) for stamp, *row in rows]
    (tmp_path / "bars.csv").write_text("time,open,high,low,close\n" + "\n".join(lines))
    return tmp_path / "bars.csv"


def test_a_clean_market_passes_and_a_leak_fails(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(learning, "STEPS", 100)
    monkeypatch.setattr(learning, "ENOUGH", -9.0)
    mine = tmp_path / "mine.py"
    mine.write_text("def body(bars):\n    return bars.close / bars.open - 1\n")
    assert main(["check", str(path), "--features", str(mine)]) == 0
    said = capsys.readouterr().out
    assert "all 7 checks passed" in said
    assert "20 features on prefixes of 400 bars" in said
    mine.write_text("def late(bars):\n    return bars.close / bars.close[-1] - 1\n")
    assert main(["check", str(path), "--features", str(mine), "--json"]) == 1
    answers = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert not answers["prefix invariance"]["ok"]
    assert "feature 'late' looks ahead" in answers["prefix invariance"]["seen"]


def test_what_cannot_be_asked_is_one_sentence(path, tmp_path, capsys):
    assert main(["check", str(tmp_path / "none.csv")]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["check", str(path), "--costs", "cheap"]) == 2
    assert "costs" in capsys.readouterr().err


def test_functions_of_a_file_are_those_that_take_the_bars(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from statistics import mean\n\ndef a(bars):\n    return 1\n\ndef _helper(bars):\n    return 2\n\n"
        "def two(bars, window):\n    return 3\n"
    )
    assert list(functions_in(file)) == ["a"]
    file.write_text("import nothing_of_that_name\n")
    with pytest.raises(InputError, match=r"mine\.py cannot be read \(ModuleNotFoundError"):
        functions_in(file)
    file.write_text("x = 1\n")
    with pytest.raises(InputError, match="has no function that takes one argument"):
        functions_in(file)
    with pytest.raises(InputError, match="is no Python file"):
        functions_in(tmp_path / "none.py")


def test_a_config_says_how_to_trade(tmp_path):
    file = tmp_path / "config.yaml"
    options = {"source": "gbm", "costs": "perps", "actions": "long_short", "leverage": 2.0, "band": 0.05, "seed": 3}
    file.write_text(yaml.safe_dump({"env": {"id": "quantail/Market", "options": options}}))
    subject = subject_of(bars_of(300, 1), options_in(file), {})
    assert (subject.rules.actions, subject.rules.leverage, subject.rules.band) == ("long_short", 2.0, 0.05)
    assert subject.costs.funding_bps > 0
    file.write_text(yaml.safe_dump({"env": {"id": "quantail/Market", "options": {"fee": 1}}}))
    with pytest.raises(ConfigError, match=r"env\.options\.fee is no option"):
        subject_of(bars_of(300, 1), options_in(file), {})


def test_the_verb_asks_what_the_package_asks():
    assert [name for name, _ in audit.QUESTIONS][:3] == ["prefix invariance", "future scramble", "one-bar lag"]
    assert audit.QUESTIONS[0][1] is leaks.prefix
