"""The console: what it shows is what was reported; in a pipe without control codes, in a terminal within its width."""

import io
import math
import re

import pytest
from rich.console import Console

from monitor.reports import report
from quantail.monitor import console
from quantail.monitor.console import ConsoleSink, picture
from quantail.monitor.health import Health, examine
from quantail.monitor.shown import PHASES, Shown, duration, number, plain_line, thinned

BAD = "reward was not finite in environments [0, 3]: zeroed, and they weigh nothing until their next start"


class Terminal(io.StringIO):
    """What a screen would get."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when it is told to."""
    now = [1000.0]
    monkeypatch.setattr(console.time, "perf_counter", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return now


def at(i, **metrics):
    """The i-th iteration of a run with 100 steps each, at 50 steps a second; a quarter of the time goes into the rollout."""
    times = {"time__time_elapsed": 2.0 * (i + 1), "time__fps": 50.0, "time__collect_seconds": 0.5, "time__update_seconds": 1.5}
    return report(i, rollout__ep_rew_mean=10.0 * i, train__approx_kl=0.0123, **times, **metrics)


def rendered(shown, width, **options):
    to = Console(width=width, file=io.StringIO(), record=True, **options)
    to.print(picture(shown))
    return to.export_text().splitlines()


# --- plain ------------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_plain_lines_one_for_each_interval(clock):
    out = io.StringIO()
    sink = ConsoleSink(2000, file=out, interval=10.0)
    for i in range(12):
        sink(at(i))
        clock[0] += 3.0
    sink.sync()
    sink.close()
    sink.close()
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["100/2,000", "500/2,000", "900/2,000", "1,200/2,000"]
    assert (
        lines[1] == "step 500/2,000 (25%) 50/s 0:30 left | return 40 | kl 0.0123 | collect 25% estimate 0% update 75% other 0%"
    )
    assert re.fullmatch(r"[ -~\n]*", out.getvalue())  # no control codes, nothing but ASCII


def test_the_last_line_is_not_said_twice(clock):
    out = io.StringIO()
    sink = ConsoleSink(100, file=out)
    sink(at(0))
    sink.close()
    assert len(out.getvalue().splitlines()) == 1
    ConsoleSink(100, file=out).close()  # nothing was reported: nothing to say
    assert len(out.getvalue().splitlines()) == 1


def test_a_dumb_terminal_gets_plain_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    sink = ConsoleSink(100, file=out)
    sink(at(0))
    sink.close()
    assert "\x1b" not in out.getvalue()


def test_a_finding_is_told_when_it_comes_up_and_counted_at_the_end(clock):
    out = io.StringIO()
    sink = ConsoleSink(10_000, file=out)
    for i in range(30):
        sink(report(i, train__clip_fraction=0.8 if i > 9 else 0.1, findings=(BAD,) if i in (3, 7) else ()))
    told = [line for line in out.getvalue().splitlines() if line.startswith("finding: ")]
    assert [line.split(": ")[2] for line in told] == ["odd input", "clipped policy"]
    assert "since step 1,100; try: lower optim.learning_rate" in told[1]
    sink.close()
    summary = out.getvalue().splitlines()[-2:]
    assert summary[0] == "finding: warning: clipped policy: 80% of the rows are clipped, 20x since step 1,100"
    assert summary[1].endswith("2x since step 400")


def test_what_was_known_before_a_resume_is_not_told_again(clock):
    health = Health()
    for i in range(9):
        health = examine(health, i, 100 * (i + 1), {"train/clip_fraction": 0.8})
    out = io.StringIO()
    sink = ConsoleSink(10_000, health=health, file=out)
    sink(report(9, train__clip_fraction=0.8))
    assert "finding" not in out.getvalue()
    sink.close()
    assert "10x since step 100" in out.getvalue()


def test_the_curve_of_a_resumed_run_begins_where_the_run_did(clock):
    returns = [math.nan, *map(float, range(500))]
    whole = Shown("", 10**6)
    for i, value in enumerate(returns):
        whole = whole.after(report(i, rollout__ep_rew_mean=value))
    assert ConsoleSink(10**6, returns=returns, file=io.StringIO()).shown.returns == whole.returns


# --- live -------------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_picture_that_is_drawn_over_itself(clock):
    out = Terminal()
    sink = ConsoleSink(1000, "runs/first", file=out)
    for i in range(3):
        sink(at(i))
        clock[0] += 1.0
    assert out.getvalue().count("\x1b[2K") > 5  # lines that were drawn over
    sink.close()
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert "300 of 1,000 steps" in out.getvalue()


def test_pictures_take_a_small_share_of_the_time(clock, monkeypatch):
    """Each costs 20 ms on this clock, an iteration 100 ms."""
    drawn = []

    def draw(shown):
        clock[0] += 0.02
        drawn.append(shown.env_steps)
        return ""

    monkeypatch.setattr(console, "picture", draw)
    sink = ConsoleSink(10**6, file=Terminal())
    began = clock[0]
    for i in range(1000):
        sink(at(i))
        clock[0] += 0.1
    assert 15 <= len(drawn) <= 1 + (clock[0] - began) * 0.004 / 0.02
    sink.close()
    assert drawn[-1] == 100_000


def test_pictures_that_cost_nothing_come_four_times_a_second(clock):
    out = Terminal()
    sink = ConsoleSink(10**6, file=out)
    for i in range(100):
        sink(at(i))
        clock[0] += 1 / 16
    assert out.getvalue().count(" of 1,000,000 steps") == 25
    sink.close()


# --- the picture ------------------------------------------------------------------------------------------------------


def full(iterations=40):
    """A run with everything to show."""
    shown = Shown("runs/a-run-with-quite-a-long-name-as-they-have-when-they-are-named-after-their-settings", 10**6)
    names = """rollout__ep_len_mean rollout__success_rate eval__mean_reward train__std policy__entropy_mean
    train__explained_variance train__value_loss optim__grad_norm risk__cvar risk__limit risk__multiplier risk__tail_samples
    train__clip_fraction health__not_finite_info"""
    values = (20.5, 0.25, -1e7, 0.5, 0.7, -0.5, 1e-9, 0.0, -1.25, -1.0, 3.0, 4.0, 0.7, 1.0)
    figures = dict(zip(names.split(), values, strict=True))
    for i in range(iterations):
        shown = shown.after(at(i, **figures)._replace(findings=(BAD,)))
    return shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_the_picture_fits_any_width(width):
    lines = rendered(full(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    if width >= 60:
        assert "4,000 of 1,000,000 steps" in text
        for label, value in (
            ("CVaR", "-1.25"),
            ("explained", "-0.5"),
            ("length", "20.5"),
            ("success", "25.0%"),
            ("KL", "0.0123"),
        ):
            assert re.search(rf"{label} +{re.escape(value)}", text)
        assert "warning clipped policy: 70% of the rows are clipped" in text


def test_groups_of_figures_stand_side_by_side_where_there_is_room():
    def rows_with_titles(width):
        return [
            [word for word in line.split() if word in ("episodes", "policy", "critic", "risk")]
            for line in rendered(full(), width)
        ]

    assert ["episodes", "policy", "critic", "risk"] in rows_with_titles(120)
    assert [row for row in rows_with_titles(80) if len(row) > 1] == [["episodes", "policy"], ["critic", "risk"]]
    assert ["episodes"] in rows_with_titles(40)


def test_bars_are_as_long_as_what_they_show():
    lines = rendered(full(), 80)
    (progress,) = [line for line in lines if "╌" in line]
    assert len(progress) == 80
    assert progress.count("━") == round(0.004 * 80)
    half = Shown("", 200).after(at(0))
    (progress,) = [line for line in rendered(half, 60) if "╌" in line]
    assert (progress.count("━"), progress.count("╌")) == (30, 30)
    assert any(line.startswith("collect 25%   estimate 0%   update 75%   other 0%") for line in lines)
    assert "▄" * 80 in lines


def test_the_trend_goes_from_the_first_to_the_latest_return():
    (trend,) = [line for line in rendered(full(), 80) if line.startswith("return 0 ")]
    curve = trend.split()[2]
    assert trend.split() == ["return", "0", curve, "390"]
    assert list(curve) == sorted(curve)
    assert (curve[0], curve[-1]) == ("▁", "█")
    flat = Shown("", 100)._replace(returns=(2.0, 2.0))
    assert set(next(line for line in rendered(flat.after(report(0)), 60) if "▁" in line).split()[2]) == {"▁"}


def test_a_terminal_without_unicode_gets_plain_lines_that_it_can_show(clock):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    out.isatty = lambda: True
    sink = ConsoleSink(100, "Läufe", file=out)
    sink(report(0, findings=("ν was odd",)))
    sink.close()
    assert raw.getvalue().startswith(b"finding: warning: ? was odd, since step 100\nstep 100/100 (100%)\n")
    out.detach()


def test_a_run_that_has_just_begun_has_a_picture_too():
    empty = Shown("", 100).after(report(0, train__loss=math.nan))
    assert "100 of 100 steps" in "\n".join(rendered(empty, 60))
    assert plain_line(empty) == "step 100/100 (100%)"


# --- figures ----------------------------------------------------------------------------------------------------------


def test_speed_and_phases_are_those_of_late():
    shown, elapsed = Shown("", 10_000), 0.0
    for i in range(60):
        elapsed += 1.0 if i < 30 else 4.0
        collect = 0.9 if i < 30 else 1.0
        shown = shown.after(report(i, time__time_elapsed=elapsed, time__collect_seconds=collect, time__update_seconds=3.0))
    assert shown.steps_per_second == pytest.approx(25.0)
    assert shown.seconds_left == pytest.approx(4000 / 25)
    assert shown.phase_shares() == pytest.approx(dict(zip(PHASES, (0.25, 0, 0.75, 0), strict=True)))


def test_a_figure_that_is_not_there_keeps_its_latest_value():
    shown = (
        Shown("", 100).after(report(0, eval__mean_reward=3.0, train__approx_kl=0.1)).after(report(1, train__approx_kl=math.nan))
    )
    assert dict(shown.groups()) == {"episodes": [("evaluation", "eval", "3")], "policy": [("KL", "kl", "0.1")]}


NUMBERS = {
    0.0: "0",
    147.25: "147.2",
    -1.0: "-1",
    0.4227341: "0.4227",
    0.001: "0.001",
    3.88e-4: "0.00039",
    1e-9: "1e-09",
    9999.0: "9,999",
    12345.6: "12,346",
    999_999.0: "999,999",
    1.5e6: "1.5e+06",
    -2.5e7: "-2.5e+07",
}


@pytest.mark.parametrize(("value", "text"), NUMBERS.items())
def test_numbers(value, text):
    assert number(value) == text


def test_shares():
    assert number(0.1234, "%") == "12.3%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (13.4, "0:13"),
        (71, "1:11"),
        (3600, "1:00:00"),
        (172_799, "47:59:59"),
        (360_000, "4 days 4 h"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_long_run_is_thinned_out():
    values: tuple[float, ...] = ()
    for i in range(5000):
        values = thinned((*values, float(i)))
        assert len(values) <= 240
        assert values[-1] == i
    assert list(values) == sorted(values)
    assert values[0] < 500
    assert thinned((1.0, 2.0, 3.0, 4.0), 3) == (2.0, 4.0)
    assert thinned((1.0, 2.0, 3.0), 2) == (1.0, 3.0)
