import math

import pytest
import torch

from market.scenes import bars_of, features_of
from quantail.errors import ConfigError
from quantail.market import costs
from quantail.market.costs import Costs
from quantail.market.tape import Needs, financing, impact, tape, trailing_mean
from quantail.market.terms import Rules


@pytest.mark.parametrize("name", costs.PRESETS)
def test_presets_are_named(name):
    assert isinstance(costs.preset(name), Costs)


def test_the_default_charges_six_basis_points_and_free_nothing():
    assert Costs().one_way_bps == 6.0
    assert costs.preset("free").one_way_bps == 0.0
    with pytest.raises(ConfigError, match="did you mean perps"):
        costs.preset("perp")


def test_scaling_touches_what_trading_costs_only():
    once = Costs(4.0, 2.0, 0.5, 3.0, 0.1, 0.2, 0.3, 1.0)
    twice = costs.scaled(once, 2.0)
    assert twice == Costs(8.0, 4.0, 1.0, 6.0, 0.1, 0.2, 0.3, 1.0)


def test_funding_falls_due_at_its_stamps():
    """Hourly bars over two days: 0, 8 and 16 h, wherever a bar ends at or spans them; a day's bar pays three times."""
    hourly = bars_of(bars=48)
    hourly = type(hourly)(**{**vars(hourly), "time": torch.arange(48) * 3_600_000_000_000, "bar_seconds": 3600.0})
    due = financing(hourly, Costs(funding_bps=2.0))
    assert [t + 2 for t in range(48) if due["funding"][t, 0]] == [8, 16, 24, 32, 40, 48]
    assert float(due["funding"].max()) == pytest.approx(2e-4)
    assert "idle_funding" not in due
    daily = financing(bars_of(), Costs(funding_bps=2.0))["funding"]
    assert torch.allclose(daily[:-1], torch.tensor(6e-4, dtype=torch.float64))


def test_what_falls_due_between_two_bars_is_apart():
    """Bars from 9 to 17 h on Friday and Monday: 2⅔ days lie between, with 8 stamps, and ⅓ of a day within, with one."""
    day, hour = 86_400 * 10**9, 3600 * 10**9
    bars = bars_of(bars=2)
    bars = type(bars)(**{**vars(bars), "time": torch.tensor([day + 9 * hour, 4 * day + 9 * hour]), "bar_seconds": 8 * 3600.0})
    found = financing(bars, Costs(borrow_per_year=0.1, funding_bps=2.0))
    assert float(found["idle_years"][0]) * 365.25 == pytest.approx(8 / 3, rel=1e-12)
    assert float(found["years"][0]) * 365.25 == pytest.approx(1 / 3, rel=1e-12)
    assert float(found["idle_funding"][0, 0]) == pytest.approx(8 * 2e-4)
    assert float(found["funding"][0, 0]) == pytest.approx(2e-4)


def test_impact_is_the_square_root_law_of_the_bars_before():
    bars = bars_of(3, bars=30, volume=True)
    found = impact(bars, Costs(impact_y=0.6))[:, 0]
    t = 27
    returns = (bars.close[1:, 0] / bars.close[:-1, 0]).log()[t - 20 : t]
    sigma = math.sqrt(float((returns**2).mean()))
    adv = float((bars.volume[t - 19 : t + 1, 0] * bars.close[t - 19 : t + 1, 0]).mean())
    assert float(found[t]) == pytest.approx(2 / 3 * 0.6 * sigma / math.sqrt(adv), rel=1e-12)


def test_nothing_is_traded_where_no_size_has_a_price():
    """No volume in the first ten bars: the square-root law divides by zero, so an order there does not happen."""
    bars = bars_of(3, bars=30, volume=True)
    bars.volume[:10] = 0.0
    laid = tape(bars, features_of(bars), Needs(Rules(), Costs(impact_y=0.6), 0, False))
    assert laid.can[1:].tolist() == [False] * 10 + [True] * 19 + [False]
    assert bool(laid.impact.isfinite().all())
    assert bool((laid.impact[11:] > 0).all())


def test_trailing_means_are_their_loop():
    x = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means = trailing_mean(x, 4)
    for t in range(9):
        torch.testing.assert_close(means[t], x[max(0, t - 3) : t + 1].mean(0), rtol=1e-12, atol=1e-15)


def test_a_tape_has_no_price_where_no_bar_is():
    """Missing bars stand still, and the next one is measured from the last price that was there."""
    bars = bars_of(0, bars=40, gaps=0.3)
    laid = tape(bars, features_of(bars), Needs(Rules(maintenance=0.1), Costs(), 2, True))
    for t in range(39):
        if bars.valid[t + 1, 0]:
            whole = float(laid.gap[1 + t] * laid.move[1 + t])
            assert whole == pytest.approx(float(bars.close[t + 1, 0] / bars.close[t, 0]), rel=1e-12)
        else:
            assert (float(laid.gap[1 + t]), float(laid.move[1 + t]), bool(laid.can[1 + t])) == (1.0, 1.0, False)
            assert (float(laid.low[1 + t]), float(laid.high[1 + t])) == (1.0, 1.0)
    assert not laid.can[0]
    assert not laid.can[-1]
    assert laid.seen.shape == (41, 2 + 2)


@pytest.mark.filterwarnings("ignore:fill='same_close'")
def test_a_fill_needs_the_bar_that_it_happens_in():
    """At the next open or close the next bar has to be there; at the same close, the bar itself."""
    bars = bars_of(0, bars=40, gaps=0.3)
    there = bars.valid[:, 0]
    for fill, needed in (("next_open", there[1:]), ("next_close", there[1:]), ("same_close", there[:-1])):
        laid = tape(bars, features_of(bars), Needs(Rules(fill, lot_size=1.0, maintenance=0.1), Costs(), 0, False))
        assert laid.can[1:-1].tolist() == needed.tolist()
        closes = laid.can if laid.closes is None else laid.closes  # margin always needs the next bar
        assert closes[1:-1].tolist() == there[1:].tolist()
        price = {"next_open": bars.open[1:], "next_close": bars.close[1:], "same_close": bars.close[:-1]}[fill][:, 0]
        torch.testing.assert_close(laid.price[1:-1][needed], price[needed], rtol=0, atol=0)
