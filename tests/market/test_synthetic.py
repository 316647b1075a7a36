import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from market.scenes import bars_of
from quantail.errors import ConfigError, InputError
from quantail.market import synthetic as syn
from quantail.market.candles import block_bootstrap, candles, simulate
from quantail.market.presets import MARKETS

T, P = 260, 700


def noise(model, bars=T, paths=P, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(model.draws, bars, paths, generator=g, dtype=torch.float64)


def within(samples, truth, odds=4.5):
    """The mean of independent samples lies within so many standard errors of the truth."""
    samples = np.asarray(samples, dtype=float)
    assert abs(samples.mean() - truth) <= odds * samples.std() / math.sqrt(len(samples)), (samples.mean(), truth)


@pytest.mark.parametrize("nu", [3.0, 6.0, 40.0])
def test_student_numbers_have_students_law(nu):
    """Kolmogorov–Smirnov against SciPy's, scaled to variance 1; independent seeds would fail once in 10 000."""
    a, b = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = syn.student(a, b, nu).numpy() / math.sqrt((nu - 2) / nu)
    assert stats.kstest(x, stats.t(nu).cdf).pvalue > 1e-4
    assert stats.kstest(x, stats.norm.cdf).pvalue < 1e-4 or nu > 30
    assert torch.equal(syn.student(a, b, math.inf), a)


def test_recursions_are_their_loops():
    """GARCH, AR(1) and Heston's variance, path by path in plain Python."""
    g = torch.Generator().manual_seed(2)
    shock = torch.randn(30, 4, generator=g, dtype=torch.float64)
    h, x = syn.garch(shock.clone(), 0.1, 0.85), syn.autoregressive(shock, 0.9)
    heston = syn.Heston(xi=3.0)
    z = noise(heston, 30, 4, 3)
    made = heston.returns(z.clone())
    for p in range(4):
        variance, level, v = 1.0, float(shock[0, p]), heston.theta
        for t in range(30):
            assert float(h[t, p]) == pytest.approx(variance, rel=1e-12)
            assert float(x[t, p]) == pytest.approx(level, rel=1e-12)
            variance = 0.05 + variance * (0.1 * float(shock[t, p]) ** 2 + 0.85)
            level = 0.9 * level + float(shock[min(t + 1, 29), p])
            up, dt = max(v, 0.0), heston.dt
            moved = (heston.drift - 0.5 * up) * dt + math.sqrt(up * dt) * float(z[0, t, p])
            assert float(made.log_return[t, p]) == pytest.approx(moved, rel=1e-9, abs=1e-15)
            twin = -0.7 * float(z[0, t, p]) + math.sqrt(1 - 0.49) * float(z[1, t, p])
            v += heston.kappa * (heston.theta - up) * dt + heston.xi * math.sqrt(up * dt) * twin
    assert bool((made.sigma == 0).any())  # the truncation was needed


@pytest.mark.parametrize(
    ("model", "drift", "variance"),
    [
        (syn.GBM(drift=0.3, vol=0.2), 0.3, 0.04),
        (syn.Garch(drift=-0.2, vol=0.3, nu=8.0), -0.2, 0.09),
        (syn.HiddenDrift(vol=0.2), 0.0, 0.04 + 0.16 / 252),
        (syn.Jumps(drift=0.1, jump_mean=-0.02, jump_sd=0.03, jumps_per_year=60), 0.1, 0.083**2 + 60 * (0.02**2 + 0.03**2)),
        (syn.Jumps(0.1, 0.2, 2000.0, 0.0, 0.01), 0.1, 0.04 + 2000 * 0.0001),
        (syn.Heston(drift=0.1, xi=0.1), 0.1, 0.036),
        (syn.Signal(drift=0.06, ic=0.2), 0.06, 0.16**2),
        (syn.Anchored(drift=0.2, half_life=5.0), 0.2, None),
        (syn.BullBear(), 0.3 * 250 / 330 - 0.4 * 80 / 330, None),
    ],
)
def test_drift_and_variance_per_year_are_those_asked_for(model, drift, variance):
    """The price grows by drift·dt a bar on average, the log return has variance·dt; independent paths judge."""
    made = model.returns(noise(model))
    within((made.log_return.exp() - 1).mean(0) * 252, drift)
    if variance is not None:
        within(((made.log_return - drift / 252 + variance / 504) ** 2).mean(0) * 252, variance)


def test_regimes_last_as_long_as_they_should():
    """Share of time and mean length; hidden drift: switches once in mean_days."""
    drifting = syn.HiddenDrift(mean_days=20.0)
    sign = drifting.returns(noise(drifting)).hidden
    within((sign[1:] != sign[:-1]).double().mean(0), 1 / 20)
    within((sign > 0).double().mean(0), 0.5)
    model = syn.BullBear(mean_days=(30.0, 10.0))
    made = model.returns(noise(model))
    bear = made.hidden < 0
    within(bear.double().mean(0), 0.25)
    left = (bear[:-1] & ~bear[1:]).sum(0).double() - bear[:-1].sum(0) / 10
    within(left, 0.0)
    assert made.sigma.unique().tolist() == pytest.approx([0.12 / math.sqrt(252), 0.28 / math.sqrt(252)], rel=1e-12)
    assert torch.equal(made.sigma > 0.01, bear)


def test_the_signal_correlates_with_the_next_return_alone():
    model = syn.Signal(ic=0.3, half_life=5.0, nu=1e9, alpha=0.0, beta=0.0)
    made = model.returns(noise(model))
    r, s = made.log_return, made.signal
    within((s[:-1] * r[1:]).mean(0) / (0.16 / math.sqrt(252)), 0.3)
    within((s[1:] * r[1:]).mean(0) / (0.16 / math.sqrt(252)), 0.3 * 2 ** (-1 / 5))
    within((s[1:] * s[:-1]).mean(0), 2 ** (-1 / 5))
    within((s * s).mean(0), 1.0)
    assert torch.equal(made.hidden[1:], s[:-1])


def test_an_anchor_pulls_with_its_half_life():
    """Distance from the anchor: autocorrelation φ and, without clusters, variance σ²/(1 − φ²) in the long run."""
    model = syn.Anchored(half_life=4.0, anchor_vol=0.05, nu=1e9, alpha=0.0, beta=0.0)
    x = model.returns(noise(model)).hidden[50:]
    phi = 2 ** (-1 / 4)
    within((x[1:] * x[:-1]).mean(0), phi * 0.16**2 / 252 / (1 - phi**2))
    within((x * x).mean(0), 0.16**2 / 252 / (1 - phi**2))


# --- candles ----------------------------------------------------------------------------------------------------------


def test_extremes_are_those_of_a_brownian_bridge():
    """Mean and law of the highest point against 4,000-step bridges, by Kolmogorov–Smirnov; the lowest by symmetry."""
    sigma, b, n = 0.02, 0.015, 3000
    g = torch.Generator().manual_seed(4)
    luck = torch.rand(2, 1, n, generator=g, dtype=torch.float64)
    _, high, low, close = candles(
        torch.full((1, n), b, dtype=torch.float64), torch.full((1, 1), sigma, dtype=torch.float64), luck, price=1.0
    )
    steps = torch.randn(4000, n, generator=g, dtype=torch.float64) * sigma / math.sqrt(4000)
    walk = steps.cumsum(0)
    line = torch.linspace(0, 1, 4001, dtype=torch.float64)[1:, None]
    bridge = walk - line * walk[-1] + line * b
    top, bottom = bridge.max(0).values.clamp(min=0), bridge.min(0).values.clamp(max=0)
    # Between the points of a walk the path goes 0.58·σ/√n further on average (Chernoff 1965).
    beyond = 0.5826 * sigma / math.sqrt(4000)
    assert stats.ks_2samp(high[0].log().numpy(), (top + beyond).clamp(min=b).numpy()).pvalue > 1e-3
    assert stats.ks_2samp(low[0].log().numpy(), (bottom - beyond).numpy()).pvalue > 1e-3
    assert torch.allclose(close[0].log(), torch.tensor(b, dtype=torch.float64))


@pytest.mark.parametrize("overnight", [0.0, 0.4])
def test_bars_hold_together_and_the_night_has_its_share(overnight):
    made = simulate(MARKETS["gbm"](), 300, 300, torch.Generator().manual_seed(0), overnight)
    bars = made.bars(86_400.0)  # refuses bars that do not hold together
    night = (bars.open[1:] / bars.close[:-1]).log()
    whole = (bars.close[1:] / bars.close[:-1]).log()
    within((night.square() - overnight * whole.square()).mean(0), 0.0)
    within((night * (whole - night)).mean(0), 0.0)  # the night says nothing of the day
    assert bool((night == 0).all()) == (overnight == 0)


def test_paths_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch):
    from quantail.market import candles as module

    monkeypatch.setattr(module, "BLOCK", 50 * 64)
    made = simulate(MARKETS["sp500"](), 50, 150, torch.Generator().manual_seed(0))
    assert made.close.shape == (50, 150)
    assert len(made.close[-1].unique()) == 150


def test_volumes_know_nothing_of_what_comes():
    made = simulate(MARKETS["btc_daily"](), 90, 4, torch.Generator().manual_seed(3))
    begun = made._replace(**{name: getattr(made, name)[:37] for name in ("open", "high", "low", "close")})
    assert torch.equal(begun.bars(86400.0).volume, made.bars(86400.0).volume[:37])
    assert (made.bars(86400.0).volume > 0).all()


def test_the_bootstrap_draws_whole_candles_in_geometric_blocks():
    bars = bars_of(0, bars=120)
    made = block_bootstrap(bars, 400, 50, 8.0, torch.Generator().manual_seed(0))
    before = torch.cat([torch.full((1, 50), 100.0, dtype=torch.float64), made.close[:-1]])
    drawn = torch.stack([made.open / before, made.high / before, made.low / before, made.close / before], -1)
    real = torch.cat([column[1:] for column in (bars.open, bars.high, bars.low, bars.close)], 1) / bars.close[:-1]
    distance = (drawn[:, :, None] - real).abs().amax(-1)  # [T, P, n]
    assert float(distance.amin(-1).max()) < 1e-12
    which = distance.argmin(-1)
    follows = which[1:] == (which[:-1] + 1) % len(real)
    within(follows.double().mean(0), 1 - (1 - 1 / len(real)) / 8)
    counts = torch.bincount(which.flatten(), minlength=len(real)).double()
    assert counts.min() > 0


def test_a_bootstrapped_bar_that_closes_at_its_extreme_does_not_close_beyond_it():
    bars = bars_of(1, bars=300)
    edges = dataclasses.replace(
        bars, high=torch.maximum(bars.open, bars.close), low=torch.minimum(bars.open, bars.close), symbols=("edge",)
    )
    made = block_bootstrap(edges, 500, 20, 1.0, torch.Generator().manual_seed(0))
    assert bool((made.high >= torch.maximum(made.open, made.close)).all())
    assert bool((made.low <= torch.minimum(made.open, made.close)).all())
    assert len(made.bars(edges.bar_seconds)) == 500  # which refuses an impossible bar


def test_a_bootstrap_needs_something_to_draw_from():
    with pytest.raises(InputError, match="one asset"):
        block_bootstrap(bars_of(0, assets=2), 5, 5, 2.0, torch.Generator())


@pytest.mark.parametrize("name", MARKETS)
def test_every_preset_makes_bars(name):
    made = simulate(MARKETS[name](), 40, 6, torch.Generator().manual_seed(0))
    assert bool(made.close.isfinite().all())
    assert len(made.bars(3600.0)) == 40


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match=r"alpha \+ beta"):
        syn.Garch(alpha=0.2, beta=0.8)
    with pytest.raises(ConfigError, match="bars_per_year"):
        syn.GBM(bars_per_year=0.0)
    with pytest.raises(ConfigError, match="nu="):
        syn.Garch(nu=2.0)
    with pytest.raises(InputError, match="draws, bars, paths"):
        syn.GBM().returns(torch.zeros(3))
