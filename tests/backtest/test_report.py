"""One file, whole and by itself: it parses, asks nobody, fits, and says the figures that were found."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from backtest.stages import course, player, recorded, synthetic
from quantail.backtest import metrics, report
from quantail.backtest.evidence import Stage, gather
from quantail.backtest.report import costs, table
from quantail.backtest.report.about import About
from quantail.config import PpoConfig
from quantail.errors import InputError

VOID = {"meta", "br"}
LOG = [
    {"iteration": i, "env_steps": 1000 * (i + 1), "rollout/ep_rew_mean": float(i), "risk/cvar": -1.0, "findings": []}
    for i in range(5)
]
ABOUT = About(
    title="A <b>bold</b> & strange name",
    subtitle="of a test",
    notes=("Something to know.",),
    config={"net": {"hidden": 32}, "text": "</pre><script>alert(1)</script>"},
    card=[("source", "made up"), ("sha256", "0f" * 32)],
    versions={"torch": "2"},
    log=LOG,
    findings=["one finding"],
)


class Strict(HTMLParser):
    """Every tag that is opened is closed, in order; keeps what it saw."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.links, self.ids = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href", "action", "data", "poster")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(text):
    page = Strict()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def synthetic_evidence():
    env = synthetic(paths=2, bars=400)
    impatient = {"ppo": PpoConfig(gamma=0.9)}
    return gather([Stage(course(env), [player(env, **impatient), player(env, seed=1, **impatient)])])


@pytest.fixture(scope="module")
def walked_evidence():
    env = recorded(rows=200, assets=2)
    who = player(env, scale=False)
    return gather([Stage(course(env, rows), [who]) for rows in (range(10, 100), range(100, 200))])


@pytest.fixture(params=["synthetic", "walked"])
def evidence(request, synthetic_evidence, walked_evidence):
    return synthetic_evidence if request.param == "synthetic" else walked_evidence


def test_the_page_is_whole_and_asks_nobody(evidence):
    text = report.html(evidence, ABOUT)
    page = parsed(text)
    assert len(text.encode()) < 1_000_000
    assert not {"script", "link", "iframe", "img", "object", "embed", "base"} & set(page.tags)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|javascript:|\son\w+=", text.replace("</", ""))
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") >= 20
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text
    assert "nan" not in "".join(page.text).lower().split()


def test_what_comes_from_outside_is_escaped(evidence):
    text = report.html(evidence, ABOUT)
    assert "<b>bold" not in text
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; strange name" in text
    assert "<script>" not in text


def test_every_part_is_there(synthetic_evidence, walked_evidence):
    text = " ".join("".join(parsed(report.html(synthetic_evidence, ABOUT)).text).split())
    for word in (
        *("Does it beat buy & hold after costs?", "Something to know.", "Equity after costs", "Below the peak", "Its 2 seeds"),
        *("Path by path", "Sharpe ratio of the last", "Months", "Returns of a bar", "VaR 5 %", "Did the critics know?"),
        *("From gross to net", "Sharpe ratio by cost", "Weight and price", "Bars that a position is held", "Size of trades"),
        *("States of the market", "The deepest falls", "The market's worst bars", "One bar late", "Nothing to be known"),
        *("Return of an episode", "one finding", "made up", "All settings", "Versions and machine", "agent, drawn"),
        *("buy & hold", "cash", "momentum 250", "reversal 5", "random, mean of 10 seeds", "Bayes filter", "vol-target 15 %"),
    ):
        assert word in text, word
    text = "".join(parsed(report.html(walked_evidence)).text)
    assert "where stretches meet" in text
    assert "asset 2 of 2" in text
    for word in ("Did the critics know?", "Nothing to be known", "Path by path", "Its 2 seeds", "Training"):
        assert word not in text, word


def test_the_table_says_what_the_metrics_say(walked_evidence):
    track = walked_evidence.tracks[0]
    line = {one.name: one for one in table.lines(walked_evidence)}["agent"]
    net, year = track.net[:, 0], track.periods_per_year
    assert line.sharpe == pytest.approx(metrics.sharpe(net, year), rel=1e-12)
    assert line.volatility == pytest.approx(metrics.volatility(net, year), rel=1e-12)
    assert line.growth == pytest.approx(metrics.total_return(net), rel=1e-9)  # of all there is: it is less than a year
    assert line.drawdown == pytest.approx(metrics.max_drawdown(net), rel=1e-12)
    assert line.shortfall == pytest.approx(metrics.expected_shortfall(net), rel=1e-12)
    assert line.exposure == pytest.approx(metrics.exposure(track.weights[:, 0]), rel=1e-9)
    assert line.turnover == pytest.approx(0.5 * track.turnover.sum(), rel=1e-12)
    names = [one.name for one in table.lines(walked_evidence)]
    assert names[:3] == ["agent", "agent, drawn", "agent, one bar late"]
    assert len(names) == len(set(names))


def test_the_waterfall_ends_at_the_net_return(evidence):
    track = evidence.tracks[0]
    gross, steps = costs.waterfall(track)
    count = min(track.periods_per_year, len(track.net))  # a year, or all there is
    assert gross + sum(steps.values()) == pytest.approx(np.log1p(track.net).mean() * count, rel=1e-9)
    assert gross == pytest.approx(np.log1p(track.gross).mean() * count, rel=1e-9)
    assert steps["fee"] < steps["spread"] < 0


def test_programs_and_people_in_a_hurry_get_the_same(evidence, tmp_path):
    written = report.write(tmp_path / "new", evidence, ABOUT)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.json", "report.md"]
    found = json.loads(written.json.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    verdict = evidence.verdict
    assert found["verdict"]["skill"] == verdict.skill
    assert found["verdict"]["hold"]["value"] == verdict.hold.value
    assert found["policies"][0]["name"] == "agent"
    assert found["config"] == ABOUT.config
    assert found["paths"] == evidence.tracks[0].paths
    text = written.markdown.read_text()
    assert verdict.headline in text
    assert text.count("\n| ") == len(table.lines(evidence)) + 2
    assert all(line.count("|") == 11 for line in text.splitlines() if line.startswith("|"))


def test_a_report_is_written_again_whole_and_where_it_cannot_be_it_says_so(walked_evidence, tmp_path):
    report.write(tmp_path, walked_evidence)
    written = report.write(tmp_path, walked_evidence, About(title="second"))
    assert "second" in written.html.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        report.write(tmp_path / "file" / "below", walked_evidence)


def test_an_agent_that_does_nothing_has_a_report_too(walked_evidence):
    """No position, no trade, no fall, no ratio: nothing to divide by."""
    track = walked_evidence.tracks[0]
    zero = np.zeros_like(track.net)
    idle = replace(
        track,
        net=zero,
        gross=zero,
        factors=dict.fromkeys(track.factors, zero + 1),
        costs=dict.fromkeys(track.costs, zero),
        weights=np.zeros_like(track.weights),
        orders=np.zeros_like(track.orders),
        turnover=zero,
    )
    evidence = replace(walked_evidence, tracks=(idle,), sampled=idle, at_costs=dict.fromkeys((0.0, 1.0), zero), late=zero)
    page = parsed(report.html(evidence))
    assert "It never traded." in "".join(page.text)
