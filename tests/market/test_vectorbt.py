"""The accounting against vectorbt's `from_orders(targetpercent)`: another library, another road, the same equity."""

import warnings

import numpy as np
import pytest
import torch

from market.scenes import bars_of, features_of, noise_of, play
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.terms import Episode, Rules

FEE_BPS, SPREAD_BPS, BARS = 12.0, 7.0, 60


@pytest.mark.slow
@pytest.mark.parametrize("assets", [1, 20])
@pytest.mark.parametrize("fill", ["next_open", "next_close"])
def test_equity_equals_vectorbt(assets, fill):
    """Fees, slippage at a fixed rate, long and short targets that cash can pay for, to 1e-9 at every close."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it and its packages warn of when they are imported is not ours
        pandas, vectorbt = (pytest.importorskip(name) for name in ("pandas", "vectorbt"))
    bars = bars_of(5, bars=BARS, assets=assets)
    generator = torch.Generator().manual_seed(6)
    shares = torch.rand(BARS - 1, 1, assets, generator=generator, dtype=torch.float64) * 1.6 - 0.6
    targets = shares * 0.9 / assets
    env = MarketEnv(
        1,
        bars,
        features_of(bars, warmup=0),
        costs=Costs(FEE_BPS, SPREAD_BPS),
        rules=Rules(fill=fill, actions="long_short", ruin=0.0),
        episode=Episode(length=0),
        dtype=torch.float64,
    )
    _, rows = play(env, targets, noise_of(env, BARS))
    ours = np.array([float(step.info["equity"]) for _, step in rows])
    price = (bars.open if fill == "next_open" else bars.close).numpy()
    size = np.concatenate([np.full((1, assets), np.nan), targets[:, 0].numpy()])  # decided at t, filled in bar t + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        book = vectorbt.Portfolio.from_orders(
            pandas.DataFrame(bars.close.numpy()),
            size=pandas.DataFrame(size),
            size_type="targetpercent",
            price=pandas.DataFrame(price),
            val_price=pandas.DataFrame(price),
            fees=FEE_BPS * 1e-4,
            slippage=SPREAD_BPS * 1e-4,
            init_cash=1e5,
            cash_sharing=True,
            group_by=True,
            call_seq="auto",
            freq="1D",
        )
        theirs = np.asarray(book.value()).reshape(-1)[1:]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert np.abs(np.diff(ours)).max() > 100
