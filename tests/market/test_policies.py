import itertools
import math

import numpy as np
import pytest
import torch

from quantail.market import policies
from quantail.market.synthetic import BullBear, HiddenDrift

G = torch.Generator().manual_seed(0)
CLOSE = 100 * (0.02 * torch.randn(12, 3, generator=G, dtype=torch.float64)).cumsum(0).exp()


def smoothed(returns, first, step, likelihood):
    """P(state of the next bar is 0 | returns), by summing over every path that two states can take."""
    total = [0.0, 0.0]
    for path in itertools.product((0, 1), repeat=len(returns)):
        weight = first[path[0]] * math.prod(step[a][b] for a, b in itertools.pairwise(path))
        weight *= math.prod(likelihood(s, r) for s, r in zip(path, returns, strict=True))
        for after in (0, 1):
            total[after] += weight * (step[path[-1]][after] if len(path) else first[after])
    return total[0] / sum(total)


@pytest.mark.parametrize(
    "model", [HiddenDrift(drift=2.0, mean_days=7.0, vol=0.3), BullBear((1.0, -2.0), (0.3, 0.5), (9.0, 4.0))]
)
def test_filters_are_bayes_rule_over_every_path(model):
    """All 2ⁿ paths of the hidden state, weighed one by one."""
    if isinstance(model, HiddenDrift):
        drifts, vols, leave, first = (2.0, -2.0), (0.3, 0.3), (1 / 7, 1 / 7), (0.5, 0.5)
        odds = policies.hidden_drift_odds(model, CLOSE)
    else:
        drifts, vols, leave, first = model.drift, model.vol, (1 / 9, 1 / 4), (9 / 13, 4 / 13)
        odds = policies.bull_bear_odds(model, CLOSE)
    step = ((1 - leave[0], leave[0]), (leave[1], 1 - leave[1]))

    def likelihood(s, r):
        variance = vols[s] ** 2 / 252
        return math.exp(-0.5 * (r - drifts[s] / 252 + variance / 2) ** 2 / variance) / math.sqrt(variance)

    for p in range(3):
        returns = np.diff(np.log(CLOSE[:, p].numpy()))
        for t in (1, 5, 11):
            truth = smoothed(returns[:t], first, step, likelihood)
            assert float(torch.sigmoid(odds[t, p])) == pytest.approx(truth, rel=1e-10)
    view = policies.expected_drift(model, odds)
    bull = torch.sigmoid(odds)
    torch.testing.assert_close(view, drifts[0] * bull + drifts[1] * (1 - bull))


def test_simple_rules_are_their_words():
    moved = CLOSE.log()
    assert torch.equal(policies.momentum(CLOSE, 4)[4:], torch.sign(moved[4:] - moved[:-4]))
    assert torch.equal(policies.reversal(CLOSE, 4), -policies.momentum(CLOSE, 4))
    assert (policies.momentum(CLOSE, 4)[:4] == 0).all()
    assert (policies.buy_and_hold(CLOSE) == 1).all()
    drawn = policies.random_positions(torch.rand(4000, generator=torch.Generator().manual_seed(1)))
    assert [int((drawn == side).sum()) // 100 for side in (-1, 0, 1)] == pytest.approx([13, 13, 13], abs=1)
    weights = policies.vol_target(CLOSE, 252.0, 0.3, bars=5, leverage=2.0)
    truth = np.std(np.diff(moved[:9, 1].numpy())[-5:], ddof=1) * math.sqrt(252)
    assert float(weights[8, 1]) == pytest.approx(min(0.3 / truth, 2.0), rel=1e-12)
    assert (weights[:5] == 0).all()


def test_bands_and_adjustment_are_their_loops():
    view = torch.randn(30, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    signs, scaled = policies.sign_with_band(view, 0.7), policies.scaled_with_band(view, 0.8, 0.3)
    slow = policies.partial_adjustment(view, 0.3)
    for p in range(2):
        side = held = aim = 0.0
        for t in range(30):
            v = float(view[t, p])
            side = math.copysign(1.0, v) if abs(v) > 0.7 else side
            wanted = min(max(0.8 * v, -1.0), 1.0)
            held = wanted if t == 0 or abs(wanted - held) >= 0.3 else held
            aim += 0.3 * (v - aim)
            assert (float(signs[t, p]), float(scaled[t, p])) == pytest.approx((side, held))
            assert float(slow[t, p]) == pytest.approx(aim)


def test_net_returns_are_a_loop_and_the_sharpe_ratio_its_definition():
    weights = torch.randn(12, 3, generator=G, dtype=torch.float64)
    net, before = policies.net_returns(weights, CLOSE, 5.0), 0.0
    for t in range(11):
        gained = float(weights[t, 1]) * float(CLOSE[t + 1, 1] / CLOSE[t, 1] - 1) - 5e-4 * abs(float(weights[t, 1]) - before)
        assert float(net[t, 1]) == pytest.approx(gained, rel=1e-12, abs=1e-16)
        before = float(weights[t, 1])
    r = net[:, 1].numpy()
    assert float(policies.sharpe(net, 252.0)[1]) == pytest.approx(r.mean() / r.std(ddof=1) * math.sqrt(252), rel=1e-12)
