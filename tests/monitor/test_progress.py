"""The line that says how far long work has come: drawn where somebody watches, nowhere else, and gone at the end."""

import io
import re

import numpy as np
import pytest
import torch

from quantail import MarketEnv, evaluation
from quantail.backtest import steps
from quantail.backtest.course import course
from quantail.backtest.track import told
from quantail.envs.oracles import CartPole
from quantail.functional.moments import no_moments
from quantail.loop import make_agent
from quantail.market.synthetic import HiddenDrift
from quantail.market.terms import Episode
from quantail.market.world import Synthetic
from quantail.monitor import progress
from rivers import configured


class Terminal(io.StringIO):
    """Keeps what a terminal is sent."""

    def isatty(self):
        return True

    def screen(self):
        """What is to be seen on the line in the end."""
        return re.split(r"\r\x1b\[K", self.getvalue())[-1]


class Clock:
    """A second passes each time it is looked at."""

    def __init__(self, step=1.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_pipe_gets_nothing_and_the_items_come_all_the_same():
    pipe = io.StringIO()
    assert list(progress.track(range(5), "items", file=pipe, clock=Clock())) == [0, 1, 2, 3, 4]
    assert pipe.getvalue() == ""


def test_a_dumb_terminal_gets_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    there = Terminal()
    assert list(progress.track("abc", "letters", file=there, clock=Clock())) == ["a", "b", "c"]
    assert there.getvalue() == ""


def test_a_terminal_sees_every_item_with_the_time_left_and_a_clean_line_at_the_end():
    there = Terminal()
    for _ in progress.track(range(4), "folds", file=there, clock=Clock()):
        assert "folds" in there.screen()
    frames = re.split(r"\r\x1b\[K", there.getvalue())[1:]
    # One second an item; at the third look two are done after three seconds: 1.5 s each, so three seconds are left.
    assert [frame.split()[1] for frame in frames[:-1]] == ["0/4", "1/4", "2/4", "3/4"]
    assert frames[2].endswith("0:03 left")
    assert frames[-1] == ""


def test_the_bar_is_as_full_as_the_work_is_done():
    for done, full in ((0, 0), (1, 4), (3, 12), (6, 24)):
        text = progress.line("x", done, 6, 1.0)
        assert text.count("█") == full
        assert text.count("█") + text.count("─") == progress.BAR


def test_items_that_do_not_know_their_number_are_counted():
    there = Terminal()
    for _ in progress.track(iter("ab"), "rows", file=there, clock=Clock(100.0)):
        pass
    assert "rows  1  3:20" in there.getvalue()
    assert "left" not in there.getvalue()


def test_a_total_can_be_given():
    there = Terminal()
    list(progress.track(iter("ab"), "rows", 2, file=there, clock=Clock()))
    assert "1/2" in there.getvalue()


def test_what_is_over_soon_and_what_comes_fast_is_not_drawn_each_time():
    short, fast = Terminal(), Terminal()
    list(progress.track(range(4), "x", file=short, clock=Clock(0.1)))
    assert short.getvalue() == ""
    list(progress.track(range(1000), "x", file=fast, clock=Clock(0.001)))
    assert 4 <= fast.getvalue().count("/1,000") <= 6  # the first after half a second, then ten a second


def test_the_line_is_gone_where_the_caller_breaks_off_or_fails():
    broken, failed = Terminal(), Terminal()
    for item in progress.track(range(9), "x", file=broken, clock=Clock()):
        if item == 2:
            break
    with pytest.raises(ZeroDivisionError):
        list(progress.track((1 / (3 - item) for item in range(9)), "x", 9, file=failed, clock=Clock()))
    for there in (broken, failed):
        assert "2/9" in there.getvalue()
        assert there.screen() == ""


def test_the_line_fits_into_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    there = Terminal()
    list(progress.track(range(3), "a very long name for a kind of work", file=there, clock=Clock()))
    assert max(len(frame) for frame in re.split(r"\r\x1b\[K", there.getvalue())) == 19


def test_a_game_shows_its_rows_to_who_watches():
    agent, seen = make_agent(configured("choice", {}), CartPole(2)), []
    asked = (CartPole(2), agent, {"": no_moments((4,))}, configured("choice", {}), 30)
    watched = evaluation.play(*asked, watch=lambda rows: (seen.append(row) or row for row in rows))
    assert seen == list(range(30))
    assert torch.equal(watched.reward, evaluation.play(*asked).reward)


def test_a_backtest_shows_its_bars(monkeypatch):
    there, clock = Terminal(), Clock()
    monkeypatch.setattr(steps, "track", lambda items, what: progress.track(items, what, file=there, clock=clock))
    along = course(MarketEnv(3, Synthetic(HiddenDrift(), paths=3, bars=90), episode=Episode(20)))
    told(along, np.zeros((along.periods, 3, 1)), "cash")
    assert f"bars  {along.periods - 1}/{along.periods}" in there.getvalue()
