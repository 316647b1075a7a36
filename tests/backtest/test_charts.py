"""Charts: where things lie, what is written beside them, and that nothing foreign is in them."""

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from quantail.backtest import charts, metrics
from quantail.backtest.charts import axis, frame
from quantail.errors import InputError

ROOT = Path(__file__).parents[2]
DAYS = np.arange("2020-01-01", "2022-05-03", dtype="datetime64[D]")
WAVE = np.sin(np.arange(len(DAYS)) / 40)

spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


def parsed(figure):
    return ElementTree.fromstring(figure)


def texts(figure, kind):
    return [node.text for node in parsed(figure).iter("text") if kind in node.get("class").split()]


def paths(figure, kind):
    """Places of every run of the paths of a class, in [0, 1], y upwards."""
    found = []
    for node in parsed(figure).iter("path"):
        if kind in node.get("class").split():
            for run in re.findall(r"M([^MZh]*)", node.get("d")):
                numbers = np.array(run.replace("L", " ").split(), dtype=float).reshape(-1, 2)
                found.append(np.column_stack([numbers[:, 0] / frame.WIDTH, 1 - numbers[:, 1] / frame.HEIGHT]))
    return found


def percents(node, *names):
    return [float(node.get(name).rstrip("%")) / 100 for name in names]


# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-6, 1e9), most=st.integers(3, 12), unit=st.sampled_from(["", "%"]))
def test_ticks_are_round_few_and_say_where_they_are(low, span, most, unit):
    found = axis.ticks(axis.Axis(low, low + span), unit, most)
    assert len(found) <= most + 1
    assert len(found) >= 2 or most < 6
    assert all(-1e-6 <= tick.at <= 1 + 1e-6 for tick in found)
    steps = np.diff([tick.at for tick in found]) * span
    if len(steps):
        assert np.ptp(steps) < 1e-3 * steps[0] + 1e-6 * abs(low)
    assert len({tick.label for tick in found}) == len(found) or abs(low) > 1e6 * span


def value_of(label):
    text = label.replace("−", "-").replace(",", "").replace("\u202f", "")
    scale = 0.01 if text.endswith("%") else 1.0
    text = text.removesuffix("%")
    for letter, factor in (("k", 1e3), ("M", 1e6), ("B", 1e9)):
        if text.endswith(letter):
            return float(text[:-1]) * factor * scale
    return float(text) * scale


@pytest.mark.parametrize(
    ("low", "high", "unit", "labels"),
    [
        (-0.43, 0.02, "%", ["−40 %", "−30 %", "−20 %", "−10 %", "0 %"]),
        (0.92, 1.08, "", ["0.95", "1.00", "1.05"]),
        (-3.0, 12.0, "", ["0", "5", "10"]),
        (0, 1_900_000, "", ["0", "0.5M", "1.0M", "1.5M"]),
        (65_000, 71_000, "", ["65,000", "66,000", "67,000", "68,000", "69,000", "70,000", "71,000"]),
        (-250_000, 50_000, "", ["−250k", "−200k", "−150k", "−100k", "−50k", "0", "50k"]),
        (0, 3e9, "", ["0", "0.5B", "1.0B", "1.5B", "2.0B", "2.5B", "3.0B"]),
        (0, 3e-8, "", ["0", "5e−09", "1e−08", "1.5e−08", "2e−08", "2.5e−08", "3e−08"]),
    ],
)
def test_known_ticks(low, high, unit, labels):
    found = axis.ticks(axis.Axis(low, high), unit)
    assert [tick.label.replace("\u202f", " ") for tick in found] == labels
    for tick in found:
        assert low + tick.at * (high - low) == pytest.approx(value_of(tick.label), abs=1e-9 * (high - low))


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.6, 3.3, ["0.7", "1", "1.5", "2", "3"]),
        (0.09, 120, ["0.1", "0.3", "1", "3", "10", "30", "100"][::2]),
        (0.9, 1.2, ["0.9", "0.95", "1", "1.05", "1.1", "1.15", "1.2"]),
        (1e-6, 1e9, None),
    ],
)
def test_ticks_of_a_logarithmic_axis(low, high, labels):
    on = axis.Axis(low, high, True)
    found = axis.ticks(on)
    if labels is not None:
        assert [tick.label for tick in found] == labels
    assert 2 <= len(found) <= 7
    for tick in found:
        assert tick.at == pytest.approx(np.log(value_of(tick.label) / low) / np.log(high / low), abs=1e-9)


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [
        ("2016-01-04", "2024-01-01", ["2017", "2018", "2019", "2020", "2021", "2022", "2023", "2024"]),
        ("1990-05-01", "2022-01-01", ["1995", "2000", "2005", "2010", "2015", "2020"]),
        ("1870-01-01", "2020-01-01", ["1880", "1900", "1920", "1940", "1960", "1980", "2000", "2020"]),
        ("2023-11-10", "2024-03-02", ["Dec 2023", "Jan 2024", "Feb 2024", "Mar 2024"]),
        ("2022-11-10", "2024-05-02", ["Jan 2023", "Apr 2023", "Jul 2023", "Oct 2023", "Jan 2024", "Apr 2024"]),
        ("2024-01-03", "2024-02-20", ["08 Jan", "15 Jan", "22 Jan", "29 Jan", "05 Feb", "12 Feb", "19 Feb"]),
        ("2024-03-01T01", "2024-03-03T02", ["06:00", "12:00", "18:00", "02 Mar", "06:00", "12:00", "18:00", "03 Mar"]),
        ("2024-03-01T22:30", "2024-03-02T02:10", ["23:00", "02 Mar", "01:00", "02:00"]),
    ],
)
def test_ticks_of_the_clock(first, last, labels):
    low, high = np.datetime64(first), np.datetime64(last)
    found = axis.time_ticks(low, high)
    assert [tick.label for tick in found] == labels
    for tick in found:
        stamp = (pd.Timestamp(first) + (pd.Timestamp(last) - pd.Timestamp(first)) * tick.at).round("s")
        assert tick.label in {stamp.strftime(form) for form in ("%Y", "%b %Y", "%d %b", "%H:%M")}
        assert stamp == stamp.floor("h")


def test_values_keep_a_little_air_and_zero_stays_at_the_edge():
    assert axis.around([1.0, 3.0]) == (0.92, 3.08, False)
    assert axis.around([-3.0, -1.0], include=(0.0,)) == (-3.12, 0.0, False)
    assert axis.around([2.0, np.nan, 2.0]) == pytest.approx((1.8, 2.2, False))
    assert axis.around([0.0]) == (-1.0, 1.0, False)
    assert axis.around([0.0], include=(0.0,)) == (0.0, 1.0, False)
    low, high, _ = axis.around([1.0, 100.0, 0.0, -5.0], log=True)
    assert (low, high) == pytest.approx((100**-0.04, 100**1.04))
    with pytest.raises(InputError, match="none of 2 values can be drawn; needs finite ones, above 0"):
        axis.around([0.0, -1.0], log=True)


# --- curves ----------------------------------------------------------------------------------------------------------


def test_a_curve_lies_where_its_values_are():
    figure = charts.line("wave", DAYS, {"wave": WAVE})
    (run,) = paths(figure, "first")
    on = axis.around(WAVE)
    np.testing.assert_allclose(run[:, 0], np.linspace(0, 1, len(DAYS)), atol=1 / frame.WIDTH)
    np.testing.assert_allclose(run[:, 1], (WAVE - on.low) / (on.high - on.low), atol=1 / frame.HEIGHT)
    assert texts(figure, "y") == ["−1.0", "−0.5", "0", "0.5", "1.0"]
    grid = [1 - percents(node, "y1")[0] for node in parsed(figure).iter("line") if node.get("class") == "grid"]
    assert grid == pytest.approx([(v - on.low) / (on.high - on.low) for v in (-1, -0.5, 0, 0.5, 1)], abs=1e-4)
    rule = next(node for node in parsed(figure).iter("line") if node.get("class") == "rule")
    assert 1 - percents(rule, "y1")[0] == pytest.approx(grid[2], abs=1e-9)


def test_the_first_curve_is_on_top_and_names_are_in_the_legend():
    figure = charts.line("two", DAYS, {"agent": WAVE, "buy & hold": WAVE * 2, **dict.fromkeys("abcdef", WAVE)})
    kinds = [node.get("class") for node in parsed(figure).iter("path")]
    assert kinds[-1] == "s1 first"
    assert kinds[0] == "s1 dash"  # the eighth
    assert [node.text for node in parsed(figure).iter("li")][:2] == ["agent", "buy & hold"]
    assert list(parsed(charts.line("one", DAYS, {"agent": WAVE})).iter("li")) == []


def test_gaps_are_gaps_and_single_values_are_dots():
    values = np.where(np.isin(np.arange(9), [3, 5, 6]), np.nan, 1.0)
    figure = charts.line("gaps", np.arange(9), {"x": values})
    assert [len(run) for run in paths(figure, "first")] == [3, 1, 2]
    assert "h0" in figure
    ruined = charts.line("ruin", np.arange(4), {"equity": [1.0, 0.5, 0.0, 0.0]}, log=True)
    assert [len(run) for run in paths(ruined, "first")] == [2]


def test_numbers_and_times_run_along_x():
    steps = np.array([0.0, 1.0, 4.0])
    (run,) = paths(charts.line("steps", steps, {"x": steps}), "first")
    assert run[:, 0] == pytest.approx([0, 0.25, 1])
    assert texts(charts.line("steps", steps, {"x": steps}), "x") == [
        "0",
        "0.5",
        "1.0",
        "1.5",
        "2.0",
        "2.5",
        "3.0",
        "3.5",
        "4.0",
    ]
    assert texts(charts.line("days", DAYS, {"x": WAVE}), "x")[0] == "Jan 2020"


def test_segments_meet_at_their_borders():
    figure = charts.line("segments", DAYS, {"x": WAVE}, borders=DAYS[[0, 100, len(DAYS) - 1]])
    at = [percents(node, "x1")[0] for node in parsed(figure).iter("line") if node.get("class") == "border"]
    assert at == pytest.approx([0, 100 / (len(DAYS) - 1), 1], abs=1e-4)


def test_underwater_is_filled_down_from_zero():
    falls = metrics.drawdown_curve(np.diff(WAVE) / 10)
    figure = charts.underwater("below", DAYS[1:], {"agent": falls})
    (run,), (shape,) = paths(figure, "first"), paths(figure, "area")
    assert run[:, 1].max() == pytest.approx(1, abs=1e-3)  # 0 is the upper edge
    assert len(shape) == 2 * len(falls)
    half = len(falls)
    np.testing.assert_allclose(shape[:half], run, atol=1e-9)
    np.testing.assert_allclose(shape[half:, 1], 1, atol=1e-9)
    np.testing.assert_allclose(shape[half:, 0], run[::-1, 0], atol=1e-9)
    assert [percents(node, "y1") for node in parsed(figure).iter("line") if node.get("class") == "rule"] == [[0.0]]
    assert texts(figure, "y")[-1] == "0\u202f%"


def test_weights_stand_until_they_change():
    figure = charts.weights_with_price("held", DAYS[:4], [10.0, 11, 12, 11], [0.0, 1.0, 1.0, -0.5])
    (stairs,) = paths(figure, "good")[1:]  # the first is the area
    on = axis.around([0.0, 1.0, -0.5], include=(0.0,))
    heights = [0, 0, 1, 1, 1, 1, 0]
    np.testing.assert_allclose(stairs[:, 0], np.array([0, 1, 1, 2, 2, 3, 3]) / 3, atol=1e-3)
    np.testing.assert_allclose(stairs[:, 1], [(h - on.low) / (on.high - on.low) for h in heights], atol=1e-3)
    assert len(paths(figure, "bad")) == 2
    assert paths(charts.weights_with_price("long", DAYS[:2], [10.0, 11], [1.0, 1.0]), "bad") == []
    assert len(list(parsed(figure).iter("div"))) == 2


def test_a_fan_holds_every_seed_their_median_and_the_middle_half():
    curves = np.cumsum(np.random.default_rng(0).standard_normal((7, 30)), axis=1)
    figure = charts.fan("seeds", np.arange(30), curves)
    on = axis.around(curves)
    (median,) = paths(figure, "first")
    np.testing.assert_allclose(median[:, 1], on.place(np.median(curves, axis=0)), atol=1e-3)
    assert len(paths(figure, "faint")) == 7
    (band,) = paths(figure, "area")
    np.testing.assert_allclose(band[:30, 1], on.place(np.quantile(curves, 0.75, axis=0)), atol=1e-3)
    np.testing.assert_allclose(band[30:, 1][::-1], on.place(np.quantile(curves, 0.25, axis=0)), atol=1e-3)
    assert "median of 7 seeds" in figure


def test_a_long_curve_keeps_its_peaks_its_ends_and_its_gaps():
    noise = np.random.default_rng(0).standard_normal(90_000)
    noise[[123, 45_678]] = 50, -50
    noise[70_000:70_020] = np.nan
    x, y = frame.thinned(np.arange(90_000.0), noise)
    assert len(y) <= 5 * frame.BUCKETS
    assert (x[0], x[-1]) == (0, 89_999)
    assert {123, 45_678} <= set(x)
    assert np.isnan(y[(x >= 70_000) & (x < 70_020)]).any()
    for part in np.array_split(np.arange(90_000), frame.BUCKETS):
        kept = y[(x >= part[0]) & (x <= part[-1])]
        assert np.nanmax(kept) == np.nanmax(noise[part])
        assert np.nanmin(kept) == np.nanmin(noise[part])
    short = np.arange(4.0 * frame.BUCKETS)
    assert frame.thinned(short, short)[1] is short
    figure = charts.line("long", np.arange(90_000), dict.fromkeys("abcdef", noise))
    assert len(figure) < 150_000


# --- amounts ---------------------------------------------------------------------------------------------------------


def rects(figure):
    return list(parsed(figure).iter("rect"))


def test_bars_begin_at_zero_and_whiskers_reach_their_ends():
    values = {"agent": 0.8, "down": -0.4, "cash": np.nan}
    figure = charts.bars("sharpe", values, {"agent": (0.1, 1.6)})
    on = axis.around([0.8, -0.4], [0.1, 1.6], include=(0.0,))
    zero = float(on.place(0.0))
    agent, down = rects(figure)
    assert (agent.get("class"), down.get("class")) == ("s1", "soft thin")
    assert percents(agent, "x", "width") == pytest.approx([zero, float(on.place(0.8)) - zero], abs=1e-4)
    assert percents(down, "x", "width") == pytest.approx([float(on.place(-0.4)), zero - float(on.place(-0.4))], abs=1e-4)
    whisker = next(node for node in parsed(figure).iter("line") if node.get("class") == "whisker")
    assert percents(whisker, "x1", "x2") == pytest.approx([float(on.place(0.1)), float(on.place(1.6))], abs=1e-4)
    assert [node.text for node in parsed(figure).iter("span")] == ["agent", "0.80", "down", "−0.40", "cash", "–"]
    assert agent.find("title").text == "agent: 0.80 [0.10, 1.60]"


def test_a_waterfall_ends_with_what_is_left():
    figure = charts.waterfall("net", ("gross", 0.12), {"fee": -0.03, "carry": 0.01}, "net")
    on = axis.around([0.12, 0.09, 0.10], include=(0.0,))
    expected = [(0, 0.12), (0.09, 0.12), (0.09, 0.10), (0, 0.10)]
    for rect, (low, high) in zip(rects(figure), expected, strict=True):
        left, width = percents(rect, "x", "width")
        assert (left, left + width) == pytest.approx((float(on.place(low)), float(on.place(high))), abs=2e-4)
    assert [rect.get("class") for rect in rects(figure)] == ["s1", "bad", "good", "s1"]
    written = [node.text.replace("\u202f", " ") for node in parsed(figure).iter("span")]
    assert written == ["gross", "12.0 %", "fee", "−3.0 %", "carry", "1.0 %", "net", "10.0 %"]
    assert charts.waterfall("nothing", ("gross", 0.0), {"fee": 0.0}, "net")
    money = charts.waterfall("money", ("gross", 1250.0), {"fee": -30.0}, "net", unit="")
    assert [node.text for node in parsed(money).iter("span")][1::2] == ["1,250", "−30", "1,220"]
    cents = charts.waterfall("cents", ("gross", 0.0125), {"fee": -0.0003}, "net", unit="")
    assert [node.text for node in parsed(cents).iter("span")][1::2] == ["0.0125", "−0.0003", "0.0122"]


def test_a_histogram_counts_every_value():
    values = stats.t(4).rvs(1000, random_state=1) / 100
    marks = {"VaR": metrics.value_at_risk(values), "CVaR": metrics.expected_shortfall(values)}
    figure = charts.histogram("returns", values, marks, tail=marks["VaR"])
    counts = [int(rect.find("title").text.rpartition(": ")[2]) for rect in rects(figure)]
    edges = np.histogram_bin_edges(values, "fd")
    expected, _ = np.histogram(values, min(len(edges) - 1, 80))
    assert counts == expected.tolist()
    assert sum(counts) == 1000
    heights = [percents(rect, "height")[0] for rect in rects(figure)]
    assert heights == pytest.approx([count / max(counts) / 1.05 for count in counts], abs=1e-4)
    for rect, height in zip(rects(figure), heights, strict=True):
        assert percents(rect, "y")[0] + height == pytest.approx(1, abs=1e-3)
    on = axis.around(values, list(marks.values()))
    lines = [node for node in parsed(figure).iter("line") if node.get("class").startswith("mark")]
    assert [percents(node, "x1")[0] for node in lines] == pytest.approx(on.place(list(marks.values())).tolist(), abs=1e-4)
    ends = [percents(rect, "x", "width") for rect in rects(figure) if rect.get("class") == "bad"]
    assert 0 < len(ends) < len(counts)
    assert max(sum(end) for end in ends) <= float(on.place(marks["VaR"])) + 1e-3
    assert "CVaR: −" in figure


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0, 3.0], [1.0, 2.0], [*([0.0] * 99), 5.0]])
def test_a_histogram_of_nearly_nothing(values):
    counts = [int(rect.find("title").text.rpartition(": ")[2]) for rect in rects(charts.histogram("x", values, unit=""))]
    assert sum(counts) == len(values)
    assert len(counts) <= 80


def test_months_are_coloured_by_their_sign_and_size():
    times = pd.date_range("2020-03-01", "2021-02-01", freq="MS")
    returns = np.array([0.01, -0.02, 0.05, -0.3, 0, 0.001, 0.02, 0.03, -0.01, -0.04, 0.06, -0.05])
    figure = charts.monthly_table("months", metrics.monthly_returns(times, returns))
    rows = [list(row.iter("td")) for row in parsed(figure).iter("tr")][1:]
    assert [len(row) for row in rows] == [13, 13]
    assert [cell.get("style") is None for cell in rows[0][:12]] == [True] * 2 + [False] * 10
    assert "--good) 12%" in rows[0][2].get("style")  # 1 % of 5.9 %, the 90th percentile of the sizes
    assert "--bad) 70%" in rows[0][5].get("style")
    assert rows[0][5].get("title") == "Jun 2020: −30.00\u202f%"
    assert [node.text for node in rows[0][5].iter("span")] == ["−30.0", "−30"]
    total = np.prod(1 + returns[:10]) - 1
    assert rows[0][12].find("span").text == f"{100 * total:.1f}".replace("-", "−")
    assert charts.monthly_table("cash", metrics.monthly_returns(times, returns * 0))


# --- points ----------------------------------------------------------------------------------------------------------


def test_a_frontier_joins_its_limits_and_leaves_others_alone():
    limits = np.array([[-0.01, 0.02], [-0.02, 0.05], [-0.03, 0.04]])
    figure = charts.frontier("f", {"limits": limits, "hold": [-0.05, 0.01]}, across="CVaR", up="mean", note="five seeds")
    x, y = axis.around([-0.05, -0.01]), axis.around([0.01, 0.05])
    expected = np.column_stack([x.place(limits[:, 0]), y.place(limits[:, 1])])
    joined, *alone = paths(figure, "s1")
    np.testing.assert_allclose(joined, expected, atol=1e-3)
    np.testing.assert_allclose(np.concatenate(alone), expected, atol=1e-3)
    (hold,) = paths(figure, "s2")
    np.testing.assert_allclose(hold, [[x.place(-0.05), y.place(0.01)]], atol=1e-3)
    assert [node.text for node in parsed(figure).iter("li")] == ["limits", "hold"]
    assert parsed(figure).find("figcaption/span").text == "across: CVaR; up: mean; five seeds"
    assert "\u202f%" in texts(figure, "y")[0]


@pytest.mark.parametrize("rows", [50, 3000])
def test_a_qq_chart_is_that_of_scipy(rows):
    values = stats.t(4).rvs(rows, random_state=2)
    places = np.concatenate(paths(charts.qq("qq", values), "dots"))
    expected = stats.norm.ppf((np.arange(rows) + 0.5) / rows)
    order = np.sort((values - values.mean()) / values.std(ddof=1))
    across, up = axis.around(expected), axis.around(order, expected)
    every = np.column_stack([across.place(expected), up.place(order)])
    assert len(places) == (50 if rows == 50 else 400)
    for place in places:
        assert np.abs(every - place).max(axis=1).min() < 1e-3
    np.testing.assert_allclose(places[[0, -1]], every[[0, -1]], atol=1e-3)  # the outermost are there
    ((a, b),) = paths(charts.qq("qq", values), "dash")
    assert across.low + a[0] * (across.high - across.low) == pytest.approx(up.low + a[1] * (up.high - up.low), abs=0.01)
    assert across.low + b[0] * (across.high - across.low) == pytest.approx(up.low + b[1] * (up.high - up.low), abs=0.01)


def test_three_returns_are_enough_for_a_qq_chart():
    assert len(paths(charts.qq("three", [1.0, 2.0, 4.0]), "dots")) == 3


def test_calibration_shows_levels_against_shares_and_the_band_of_luck():
    levels, coverage = [0.1, 0.5, 0.9], [0.2, 0.5, 0.95]
    figure = charts.calibration("calibration", levels, coverage, samples=100)
    np.testing.assert_allclose(np.concatenate(paths(figure, "dots")), np.column_stack([levels, coverage]), atol=1e-3)
    (band,) = paths(figure, "area")
    at = np.abs(band[:101, 0] - 0.5).argmin()
    assert band[at, 1] == pytest.approx(0.5 + 1.96 * 0.05, abs=1e-3)
    assert band[:, 1].min() >= 0
    assert band[:, 1].max() <= 1
    assert paths(charts.calibration("alone", levels, coverage), "area") == []


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    return gallery.page()


def test_the_gallery_shows_every_chart(page):
    source = (ROOT / "tools" / "gallery.py").read_text(encoding="utf-8")
    assert all(f"charts.{name}(" in source for name in charts.__all__ if name != "STYLE")
    assert page.count("<figure") == source.count("        charts.")


def test_a_page_is_whole_small_and_speaks_to_nobody(page):
    assert len(page.encode()) < 700_000
    for foreign in ("<script", "http", "url(", "@import", "<link", "<img", "javascript"):
        assert foreign not in page
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        parsed(figure)  # well-formed
        assert not re.search(r"\b(nan|inf|None)\b", figure)


def test_names_are_escaped(page):
    assert "Tiny &lt;b&gt;numbers&lt;/b&gt; &amp; &quot;names&quot;" in page
    figure = charts.line('<i>"', DAYS, {"a<b": WAVE, "c&d": WAVE}, note="x > y")
    assert [node.text for node in parsed(figure).iter("li")] == ["a<b", "c&d"]
    assert parsed(figure).find("figcaption").text == '<i>"'
    assert parsed(figure).find("figcaption/span").text == "x > y"


def test_every_colour_is_there_in_light_and_dark():
    light, dark = charts.STYLE.split("@media screen and (prefers-color-scheme:dark)")
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", charts.STYLE)) - {"c"}
    for scheme in (light.split("}")[0], dark.split("}")[0]):
        assert used <= set(re.findall(r"--([a-z0-9]+):#", scheme))
    classes = {f"s{i + 1}" for i in range(frame.COLOURS)} | {"good", "bad", "ink", "soft"}
    assert all(f".{name}{{--c:var(--{name})}}" in charts.STYLE for name in classes)


def contrast(one, other):
    """WCAG 2: (L₁ + 0.05)/(L₂ + 0.05)."""

    def luminance(colour):
        full = "".join(2 * c for c in colour) if len(colour) == 3 else colour
        parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_letters_and_curves_stand_out_from_the_paper():
    light, dark = charts.STYLE.split("@media screen and (prefers-color-scheme:dark)")
    for scheme in (light.split("color-scheme")[0], dark.split("}")[0]):
        colours = dict(re.findall(r"--([a-z0-9]+):#([0-9a-f]+)", scheme))
        for name, colour in colours.items():
            if name not in ("paper", "grid", "rule"):
                assert contrast(colour, colours["paper"]) > (4.5 if name in ("ink", "soft") else 3), name


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: charts.line("x", [3, 1, 2], {"a": [1, 2, 3]}), r"x has shape \[3\]; needs at least two values that increase"),
        (lambda: charts.line("x", [1], {"a": [1]}), r"x has shape \[1\]; needs at least two values"),
        (
            lambda: charts.line("x", DAYS, {"a": [1, 2, 3]}),
            r"'a' has shape \[3\]; needs \[853\], one value for each place on x",
        ),
        (
            lambda: charts.line("x", [1, 2], {"a": [1, 2]}, log=True, fill=True),
            "fill colours the way to 0, which a logarithmic",
        ),
        (lambda: charts.line("x", [1, 2], {}), "none of 0 values can be drawn"),
        (lambda: charts.line("x", [1, 2], {"a": [0, -1]}, log=True), "none of 2 values can be drawn"),
        (lambda: charts.fan("x", [1, 2], [1, 2]), r"curves has shape \[2\]; needs \[S, 2\], a row for each seed"),
        (lambda: charts.bars("x", {"a": 1.0}, {"b": (0.0, 1.0)}), "intervals names b, which has no value; needs some of a"),
        (
            lambda: charts.waterfall("x", ("a", 1.0), {"b": np.nan}, "c"),
            "start and steps hold 1.0 and .*; needs finite amounts",
        ),
        (lambda: charts.histogram("x", []), r"values has shape \[0\]; needs \[T\] finite numbers"),
        (lambda: charts.histogram("x", [np.nan]), r"values has shape \[1\]; needs \[T\] finite numbers"),
        (
            lambda: charts.qq("x", [1.0, 1.0, 1.0]),
            r"values has shape \[3\]; needs \[T\] at least three finite numbers that differ",
        ),
        (
            lambda: charts.frontier("x", {"a": [1.0]}, across="", up=""),
            r"'a' has shape \[1, 1\]; needs \[n, 2\] finite numbers",
        ),
        (lambda: charts.frontier("x", {"a": [1.0, np.inf]}, across="", up=""), r"'a' has shape \[1, 2\]; needs"),
        (lambda: charts.calibration("x", [0.5, 1.0], [0.5, 0.5]), "needs .N. each, levels in"),
        (lambda: charts.calibration("x", [0.5], [0.5, 0.5]), r"levels has shape \[1\] and coverage \[2\]; needs"),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(call, says):
    with pytest.raises(InputError, match=says):
        call()
