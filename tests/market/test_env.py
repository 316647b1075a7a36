import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from market.ledger import ledger
from market.scenes import actions_of, bars_of, env_of, features_of, noise_of, play
from quantail.config import Config, PpoConfig
from quantail.envs.contract import check_step
from quantail.errors import ConfigError, InputError
from quantail.loop import train
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.series import Bars
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded, Synthetic
from quantail.types import Box, Discrete, MultiDiscrete

FACTORS = ("overnight", "gap", "cost", "intrabar", "financing", "liquidation")
SHORT = Episode(length=6)
EVERY = {
    "grid": {},
    "three assets": {"bars": bars_of(1, assets=3, gaps=0.2), "episode": Episode(length=7, random_position=True)},
    "continuous": {"rules": Rules(actions="long_short", leverage=2.0, maintenance=0.2), "episode": SHORT},
    "simplex": {"bars": bars_of(2, assets=2), "rules": Rules(actions="simplex", band=0.03), "episode": SHORT},
    "tanh": {"bars": bars_of(2, assets=2), "rules": Rules(actions="tanh", cooldown=2), "episode": SHORT},
    "long only": {
        "rules": Rules(actions="long_only", sizing="exact", cooldown=3),
        "episode": replace(SHORT, random_position=True),
    },
    "costly": {"costs": Costs(slippage_bps=5, borrow_per_year=0.1, credit_per_year=0.03, funding_bps=1, randomized_to=2.0)},
    "impact": {"bars": bars_of(3, volume=True), "costs": Costs(impact_y=0.6), "rules": Rules("next_close", lot_size=1.0)},
    "sharpe": {"reward": Reward("sharpe"), "episode": replace(SHORT, starts="stratified")},
    "downside": {"reward": Reward("downside", rate=0.1), "episode": SHORT},
    "excess": {"bars": bars_of(1, assets=3), "reward": Reward("excess", 50.0), "episode": SHORT},
    "mean variance": {"reward": Reward("mean_variance", risk_aversion=3.0), "rules": Rules("next_close"), "episode": SHORT},
}


def made(name, **more):
    options = {"episode": SHORT, **EVERY[name], **more}
    return env_of(**options)


@pytest.mark.parametrize("name", EVERY)
def test_rows_are_what_the_contract_promises_and_factors_multiply_to_the_change(name):
    env = made(name)
    noise = noise_of(env, 41)
    obs, rows = play(env, actions_of(env, 40), noise)
    assert obs.shape == (5, *env.observation_space.shape)
    equity = torch.full((5,), 1e5, dtype=torch.float64)
    done = torch.zeros(5, dtype=torch.bool)
    for _, step in rows:
        check_step(env, step)
        assert all(bool(x.isfinite().all()) for x in (step.obs, step.reward, *step.info.values()))
        equity = torch.where(done, 1e5, equity)
        product = math.prod(step.info[f] for f in FACTORS if f in step.info)
        torch.testing.assert_close(equity * product, step.info["equity"], rtol=1e-12, atol=0)
        torch.testing.assert_close(step.pnl.double(), product.log(), rtol=1e-5, atol=1e-9)
        parts = sum(step.info[p] for p in ("fee", "spread", "impact", "slippage") if p in step.info)
        torch.testing.assert_close(step.info["cost"], 1 + parts, rtol=1e-12, atol=1e-12)
        for idle in ("reward", "pnl", "policy_weight"):
            assert (getattr(step, idle)[done] == 0).all()
        equity, done = step.info["equity"], step.terminated | step.truncated
    assert sum(int((s.truncated | s.terminated).sum()) for _, s in rows) > 5


@pytest.mark.parametrize("name", EVERY)
def test_the_future_does_not_reach_back(name):
    """Bars after row t + 1 reversed in time and shaken: everything up to t is the same, byte for byte."""
    options = {
        "episode": Episode(length=30, starts="fixed"),
        **{k: v for k, v in EVERY[name].items() if k not in ("bars", "episode")},
    }
    bars, cut = EVERY[name].get("bars", bars_of()), 20
    future = torch.cat([torch.arange(cut), torch.arange(len(bars) - 1, cut - 1, -1)])
    shaken = {
        k: (getattr(bars, k) * torch.where(torch.arange(len(bars)) < cut, 1.0, 1.7)[:, None])[future]
        for k in ("open", "high", "low", "close")
    }
    other = replace(bars, **shaken, valid=bars.valid[future], volume=None if bars.volume is None else bars.volume[future])
    seen = features_of(bars)
    changed = replace(seen, values=seen.values[future] + 3 * (torch.arange(len(bars)) >= cut)[:, None, None])
    envs = MarketEnv(1, bars, seen, **options), MarketEnv(1, other, changed, **options)
    actions, noise = actions_of(envs[0], 25), noise_of(envs[0], 26)
    (first, a), (second, b) = (play(env, actions, noise) for env in envs)
    assert torch.equal(first, second)
    start = 1 + seen.warmup
    differs = False
    for (state, x), (_, y) in zip(a, b, strict=True):
        same = torch.equal(x.obs, y.obs) and torch.equal(x.reward, y.reward) and torch.equal(x.pnl, y.pnl)
        if int(state.row) - 1 + 1 < cut:  # this step's fill and close lie before the cut
            assert same
            assert torch.equal(x.policy_weight, y.policy_weight)
            assert x.action_mask is None or torch.equal(x.action_mask, y.action_mask)
            assert all(torch.equal(x.info[k], y.info[k]) for k in x.info)
        differs |= not same
    assert differs
    assert start < cut


def test_an_episode_is_the_book_kept_by_hand():
    """From actions to equity: default rules on gapless bars, one portfolio, against the ledger of units and cash."""
    bars = bars_of(7, bars=30)
    env = MarketEnv(1, bars, features_of(bars), episode=Episode(length=0), dtype=torch.float64)
    actions = torch.tensor([2, 3, 0, 1, 2, 3, 3, 0, 0, 2] * 3)[:26, None]  # −1, 0, 1 or hold
    _, rows = play(env, actions, noise_of(env, 27))
    _units, weights = 0.0, []
    for t, (_, _step) in enumerate(rows):  # a hold is a target that happens to be where the weight has drifted
        weights.append([float(env.levels[actions[t]])])
    plain = [
        {
            "open": bars.open[3 + t].tolist(),
            "close": bars.close[3 + t].tolist(),
            "can": [True],
            "luck": [0.0],
            "years": 0.0,
            "funding": [0.0],
        }
        for t in range(27)
    ]
    for t in range(26):
        plain[t + 1]["can"] = [int(actions[t]) != 3]
    curve, _units = ledger(plain, weights, cash=1e5, fee=5e-4, spread=1e-4)
    assert [float(s.info["equity"]) for _, s in rows] == pytest.approx(curve, rel=1e-12)
    assert [float(s.reward) for _, s in rows] == pytest.approx(np.diff(np.log([1e5, *curve])), rel=1e-9, abs=1e-13)
    assert rows[-1][1].truncated.all()
    assert not any(s.truncated.any() for _, s in rows[:-1])


def test_buying_and_holding_is_the_price_ratio_less_one_entry():
    """E_T/E_0 = P_T/P_entry − k, k what one purchase of everything costs; the naive size pays it on credit."""
    bars = bars_of(8, bars=30)
    env = MarketEnv(1, bars, features_of(bars), episode=Episode(length=0), dtype=torch.float64)
    _, rows = play(env, torch.tensor([[2], *[[3]] * 25]), noise_of(env, 27))
    entry, f, s = float(bars.open[4, 0]), 5e-4, 1e-4
    for t, (_, step) in enumerate(rows):
        ratio = float(bars.close[4 + t, 0]) / entry
        assert float(step.info["equity"]) / 1e5 == pytest.approx(ratio - (s + f * (1 + s)), rel=1e-12)


def test_the_row_after_an_end_shows_the_final_state_and_does_nothing():
    """NEXT_STEP: the final observation, an action without effect, then a start."""
    env = env_of(4, episode=Episode(length=3))
    noise, actions = noise_of(env, 10), actions_of(env, 9)
    _, rows = play(env, actions, noise)
    seen = env.ground.tape.seen
    for t in (2, 6):
        assert rows[t][1].truncated.all()
        final = rows[t][1].obs
        assert torch.equal(final[:, :2], seen[rows[t][0].row + 1, :2])
        assert (final[:, -1] == 0).all()  # no time left
        idle = rows[t + 1][1]
        assert not (idle.terminated | idle.truncated).any()
        assert torch.equal(idle.obs[:, 2:], torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(4, -1))
        other = env.step(rows[t + 1][0], 2 - actions[t + 1].clamp(max=2), noise[t + 2])[1]
        assert torch.equal(other.obs, idle.obs)
    starts = torch.stack([rows[t][0].row for t in (0, 4, 8)])
    assert (starts >= 1 + 3).all()
    assert (starts <= 40 - 3).all()
    assert len(starts.unique()) > 3


def test_ruin_terminates_with_what_was_lost():
    """A market that halves in every bar: long, equity falls below a fifth in the third and the loss is in the reward."""
    close = 100 * 0.5 ** torch.arange(8, dtype=torch.float64)[:, None]
    bars = replace(bars_of(0, bars=8), open=close, high=close, low=close, close=close)
    env = MarketEnv(1, bars, features_of(bars, warmup=0), costs="free", episode=Episode(length=6, starts="fixed"))
    _, rows = play(env, torch.tensor([[2], [3], [3], [3]]), noise_of(env, 5))
    # Bought at the first open, after the first fall: then a half, a quarter, an eighth.
    assert [bool(s.terminated) for _, s in rows] == [False, False, False, True]
    assert float(rows[-1][1].reward) == pytest.approx(math.log(0.5))
    env = MarketEnv(
        1,
        replace(bars, open=bars.open * 1e9 ** (torch.arange(8) == 2).double()[:, None], high=bars.high * 1e9),
        features_of(bars, warmup=0),
        episode=Episode(length=6, starts="fixed"),
    )
    _, rows = play(env, torch.tensor([[0], [0]]), noise_of(env, 3))
    assert float(rows[1][1].reward) == -10.0
    assert rows[1][1].terminated.all()


# --- actions and masks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "assets", "space", "said", "weights"),
    [
        ("grid", 1, Discrete(4), 0, [-1.0]),
        ("grid", 3, MultiDiscrete((4, 4, 4)), [0, 2, 1], [-0.5, 0.5, 0.0]),
        ("long_only", 1, Box((1,), 0.0, 1.0), [0.3], [0.3]),
        ("long_only", 2, Box((2,), 0.0, 1.0), [1.0, 3.0], [0.5, 0.5]),
        ("long_short", 1, Box((1,), -1.0, 1.0), [-7.0], [-1.0]),
        ("long_short", 2, Box((2,), -1.0, 1.0), [-0.8, 0.8], [-0.5, 0.5]),
        ("long_short", 2, Box((2,), -1.0, 1.0), [-0.3, 0.2], [-0.3, 0.2]),
        ("tanh", 1, Box((1,)), [0.5], [math.tanh(0.5)]),
        ("simplex", 1, Box((2,)), [1.0, 0.0], [1 / (1 + math.exp(-1))]),
        ("simplex", 2, Box((3,)), [0.0, math.log(2), math.log(3)], [1 / 6, 1 / 3]),
    ],
)
def test_actions_become_weights(actions, assets, space, said, weights):
    """At an open that equals the close, without costs, the weights of the next observation are those that were asked for."""
    bars = bars_of(0, assets=assets)
    flat = replace(bars, **{name: torch.full_like(bars.close, 7.0) for name in ("open", "high", "low", "close")})
    env = env_of(2, flat, rules=Rules(actions=actions), costs="free", episode=SHORT, dtype=torch.float64)
    assert env.action_space == space
    state, _ = env.reset(noise_of(env, 1)[0])
    action = torch.tensor([said, said], dtype=torch.int64 if actions == "grid" else torch.float64)
    _, step = env.step(state, action, noise_of(env, 1)[0])
    assert step.obs[0, 2 * assets : 3 * assets].tolist() == pytest.approx(weights, rel=1e-12)


def test_hold_does_not_trade_what_has_drifted():
    env = env_of(3, costs="free", episode=Episode(length=20), dtype=torch.float64)
    noise = noise_of(env, 12)
    _, rows = play(env, torch.tensor([[0] * 3] + [[3] * 3] * 10), noise)
    assert (rows[0][1].info["turnover"] > 0.9).all()
    assert all((s.info["turnover"] == 0).all() for _, s in rows[1:])
    assert all((s.info["leverage"] != 1).all() for _, s in rows[1:])


def test_a_calendar_forbids_and_says_so_but_a_missing_bar_is_not_foretold():
    """Closed by the calendar: masked before. Missing from the data: nobody knew, but the row does not count for the policy."""
    bars = bars_of(0, bars=12)
    missing = replace(bars, valid=bars.valid & (torch.arange(12) != 6)[:, None])
    calendar = (torch.arange(12) != 4)[:, None]
    world = Recorded(missing, features_of(bars, warmup=0), calendar)
    env = MarketEnv(2, world, episode=Episode(length=0))
    state, _ = env.reset(noise_of(env, 1)[0])
    masks, weights, trades = [env.first_mask(state)], [], []
    for t in range(11):
        state, step = env.step(state, torch.tensor([0, 2] if t % 2 else [2, 0]), noise_of(env, 1)[0])
        masks.append(step.action_mask)
        weights.append(float(step.policy_weight[0]))
        trades.append(float(step.info["turnover"][0]))
    assert [bool(m[0, 0]) for m in masks[:11]] == [t + 1 != 4 for t in range(11)]
    assert all(bool(m[:, 3].all()) for m in masks)
    assert [w == 0 for w in weights] == [t + 1 in (4, 6) for t in range(11)]
    assert [x == 0 for x in trades] == [t + 1 in (4, 6) for t in range(11)]


def test_after_a_trade_the_asset_rests():
    env = env_of(3, rules=Rules(cooldown=2), episode=Episode(length=15))
    _, rows = play(env, torch.tensor([[2] * 3, [0] * 3] * 6), noise_of(env, 13))
    traded = [bool((s.info["turnover"] > 0).all()) for _, s in rows]
    assert traded == [t % 3 == 0 for t in range(12)]
    assert [bool(s.action_mask[0, 0]) for _, s in rows] == [t % 3 == 2 for t in range(12)]
    assert [float(s.policy_weight[0]) for _, s in rows] == [float(t % 3 == 0) for t in range(12)]


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sharpe", "downside"])
def test_differential_rewards_are_the_derivative_of_their_ratio(kind):
    """d/dη of the ratio of running means at η = 0, by a central difference; the memory then moves on by η."""
    from quantail.market.numbers import FLOATS
    from quantail.market.rewards import Earned, Memory, rewarded

    def ratio(mean, square, eta, r):
        a = mean + eta * (r - mean)
        b = square + eta * ((r * r if kind == "sharpe" else min(r, 0) ** 2) - square)
        return a / math.sqrt(b - a * a if kind == "sharpe" else b)

    for r in (0.03, -0.02, 0.0):
        mean, square, h = 0.001, 4e-4, 1e-5
        d, memory = rewarded(FLOATS, Reward(kind, rate=0.04), Earned(0.0, r, False), Memory(mean, square))
        slope = (ratio(mean, square, h, r) - ratio(mean, square, -h, r)) / (2 * h)
        assert d == pytest.approx(slope, rel=1e-8)
        assert memory.mean == pytest.approx(mean + 0.04 * (r - mean), rel=1e-12)


@pytest.mark.parametrize("kind", ["sharpe", "downside"])
def test_differential_rewards_begin_warm(kind):
    """No first reward of an episode is a thousandfold of the later ones, and the memory is seen."""
    env = env_of(64, bars_of(3, bars=300), warmup=100, reward=Reward(kind), episode=Episode(length=40))
    _, rows = play(env, actions_of(env, 40), noise_of(env, 41))
    first, later = rows[0][1].reward.abs().max(), torch.stack([s.reward for _, s in rows[10:]]).abs().max()
    assert float(first) < 3 * float(later)
    state = rows[20][0]
    seen = rows[19][1].obs[:, -2:]
    torch.testing.assert_close(seen[:, 1].double(), 0.5 * state.square.log(), rtol=1e-6, atol=0)
    torch.testing.assert_close(seen[:, 0].double(), state.mean / state.square.sqrt(), rtol=1e-4, atol=1e-6)


def test_other_rewards_are_their_formulas():
    bars = bars_of(1, assets=3)
    for reward, truth in (
        (Reward(scale=100.0), lambda r, log, market: 100 * log),
        (Reward("excess"), lambda r, log, market: r - market),
        (Reward("mean_variance", 2.0, 4.0), lambda r, log, market: 2 * (log - 2 * log * log)),
    ):
        env = env_of(5, bars, reward=reward, episode=Episode(length=20), dtype=torch.float64)
        _, rows = play(env, actions_of(env, 10), noise_of(env, 11))
        for state, step in rows:
            t = state.row - 1
            market = (bars.close[t + 1] / bars.close[t] - 1).mean(-1)
            r = step.info["equity"] / state.equity - 1
            torch.testing.assert_close(step.reward, truth(r, step.pnl, market), rtol=1e-9, atol=1e-12)


# --- starts -----------------------------------------------------------------------------------------------------------


def test_starts_cover_what_they_promise():
    bars = bars_of(0, bars=103)
    rows = {}
    for starts in ("random", "stratified", "fixed"):
        env = MarketEnv(10, bars, features_of(bars, warmup=2), episode=Episode(length=1, starts=starts))
        _, played = play(env, actions_of(env, 40), noise_of(env, 41))
        rows[starts] = torch.stack([state.row for state, _ in played[::2]]) - 1
        assert rows[starts].min() >= 2
        assert rows[starts].max() <= 101
    assert (rows["fixed"] == 2 + 10 * torch.arange(10)).all()
    part = (rows["stratified"] - 2) // 10
    assert all(len(row.unique()) == 10 for row in part)  # every tenth of the data in every round
    assert all(len(column.unique()) == 10 for column in part.T)  # and every environment comes around
    assert len(rows["random"].unique()) > 60


def test_episodes_may_begin_with_a_position_and_a_cost_of_their_own():
    costs = Costs(randomized_from=0.5, randomized_to=2.0)
    env = env_of(
        300, costs=costs, rules=Rules(leverage=1.5), episode=Episode(length=5, random_position=True), dtype=torch.float64
    )
    state, obs = env.reset(noise_of(env, 1)[0])
    weights = state.holdings / state.equity
    assert -1.5 <= weights.min() < -1.3
    assert 1.3 < weights.max() <= 1.5
    assert torch.equal(obs[:, 2], weights)
    assert 0.5 <= state.cost_factor.min() < 0.55
    assert 1.9 < state.cost_factor.max() <= 2
    _, step = env.step(state, torch.full((300,), 1), noise_of(env, 1)[0])
    rate = (1 - step.info["cost"]) / step.info["turnover"]
    torch.testing.assert_close(rate / state.cost_factor, torch.full((300,), 6e-4, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("levels", "side"), [((0.0, 0.5, 1.0), 1), ((-1.0, 0.0), -1)])
def test_a_position_at_the_start_is_one_that_could_have_been_bought(levels, side):
    """On the side of the grid's levels, and nothing of an asset that has no bar in the first row, also after an end."""
    bars = bars_of(5, assets=2, gaps=0.4)
    env = env_of(200, bars, rules=Rules(levels=levels), episode=Episode(length=1, random_position=True))
    noise = noise_of(env, 3)
    state, _ = env.reset(noise[0])
    again = env.step(env.step(state, torch.full((200, 2), len(levels)), noise[1])[0], torch.zeros(200, 2).long(), noise[2])[0]
    for begun in (state, again):
        there = bars.valid[begun.row - 1]
        assert (side * begun.holdings[there] > 0).all()
        assert (begun.holdings[~there] == 0).all()
        assert 0 < int(there.sum()) < 400


# --- synthetic sources ------------------------------------------------------------------------------------------------


def small(seed=0, **options):
    return Synthetic(MARKETS["hidden_drift"](), paths=12, bars=80, seed=seed, every=2, **options)


def test_paths_are_made_anew_only_where_nobody_is_and_a_resume_finds_them_again():
    env = MarketEnv(5, small(), episode=Episode(length=8))
    noise, actions = noise_of(env, 30), actions_of(env, 30)
    state, _ = env.reset(noise[0])
    for t in range(4):
        state, _ = env.step(state, actions[t], noise[t + 1])
    before = env.ground.tape.move.clone()
    env.renew(state, 1)  # not yet
    assert torch.equal(env.ground.tape.move, before)
    env.renew(state, 2)
    span = env.ground.span
    used = ((state.row - 1) // span).unique()
    same = (env.ground.tape.move[1:].view(12, span) == before[1:].view(12, span)).all(-1)
    assert same.nonzero()[:, 0].tolist() == used.tolist()
    for t in range(4, 10):
        state, _ = env.step(state, actions[t], noise[t + 1])
    env.renew(state, 4)
    again = MarketEnv(5, small(), episode=Episode(length=8))
    there = again.load_state(env.state_dict(state))
    assert torch.equal(again.ground.tape.seen, env.ground.tape.seen)
    for t in range(10, 29):
        state, a = env.step(state, actions[t], noise[t + 1])
        there, b = again.step(there, actions[t], noise[t + 1])
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)


def test_seeds_are_markets_of_their_own_and_generations_depend_on_nothing_else():
    one, two = (MarketEnv(2, small(seed), episode=Episode(length=8)).ground.tape.move for seed in (0, 1))
    assert not torch.equal(one, two)
    skipped = MarketEnv(2, small(), episode=Episode(length=8))
    idle = skipped.reset(noise_of(skipped, 1)[0])[0]._replace(done=torch.ones(2, dtype=torch.bool))
    walked = MarketEnv(2, small(), episode=Episode(length=8))
    for i in (2, 4, 6):
        walked.renew(idle, i)
    skipped.renew(idle, 6)
    assert torch.equal(skipped.ground.tape.seen, walked.ground.tape.seen)


def test_training_renews_the_market():
    """Each iteration is told to the environment; the paths are of the newest generation, but where an episode went on."""
    config = Config(total_timesteps=130, ppo=PpoConfig(n_steps=8, batch_size=32, n_epochs=1))
    env = MarketEnv(4, small(), episode=Episode(length=5))
    born = [set(env.ground.born.tolist()) for _ in train(config, env)]
    assert born[0] == {0}
    assert max(born[-1]) >= 2


def test_on_the_null_market_nobody_earns_more_than_minus_costs():
    """GBM without drift: mean gross return 0 within 4.5 standard errors, and net below it by the costs."""
    env = MarketEnv(512, Synthetic(MARKETS["gbm"](), paths=512, bars=200), episode=Episode(length=100, starts="fixed"))
    _, rows = play(env, actions_of(env, 100), noise_of(env, 101))
    simple = torch.stack([s.info["gap"] * s.info["intrabar"] - 1 for _, s in rows])
    cost = torch.stack([1 - s.info["cost"] for _, s in rows])
    net = torch.stack([s.pnl.double().exp() - 1 for _, s in rows])
    error = float(simple.std()) / simple.numel() ** 0.5
    assert abs(float(simple.mean())) <= 4.5 * error
    assert abs(float(net.mean() + cost.mean())) <= 4.5 * error
    assert float(cost.mean()) > 3e-4


def test_several_assets_of_one_path_lie_side_by_side():
    env = MarketEnv(2, Synthetic(MARKETS["sp500"](), paths=4, bars=90, assets=3), episode=Episode(length=8))
    bars, _ = env.world.drawn(0, torch.device("cpu"))
    path, t, asset = 2, 50, 1
    row = 1 + path * 90 + t
    column = 3 * path + asset
    assert env.ground.tape.move.shape == (1 + 4 * 90, 3)
    truth = bars.close[t + 1, column] / bars.open[t + 1, column]
    assert float(env.ground.tape.move[row, asset]) == pytest.approx(float(truth), rel=1e-12)
    seen = env.ground.tape.seen[row, 4 * asset].double()
    assert float(seen) == pytest.approx(100 * math.log(bars.close[t, column] / bars.close[t - 1, column]), rel=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: env_of(0), "num_envs=0"),
        (lambda: env_of(2, episode=Episode(length=50)), "need 54 bars, there are 40"),
        (lambda: env_of(2, source_costs=1), "unexpected"),
        (lambda: env_of(2, costs=Costs(impact_y=1.0)), "needs volumes"),
        (lambda: MarketEnv(2, "hiden_drift"), "did you mean hidden_drift"),
        (lambda: MarketEnv(2, "gbm", features_of(bars_of())), "of recorded bars"),
        (lambda: MarketEnv(2, bars_of(), features_of(bars_of(bars=39))), "features of the same bars"),
        (lambda: MarketEnv(2, costs="cheap"), "costs='cheap'"),
        (lambda: Costs(fee_bps=-1.0), "fee_bps=-1.0"),
        (lambda: Costs(randomized_from=2.0), "randomized_from=2.0"),
        (lambda: Rules(fill="now"), "fill='now'"),
        (lambda: Rules(levels=(2.0,)), "levels=(2.0,)"),
        (lambda: Rules(leverage=3.0, levels=(1.0,), maintenance=0.5), "liquidated at once"),
        (lambda: Rules(cooldown=-1), "cooldown=-1"),
        (lambda: Rules(ruin=1.0), "ruin=1.0"),
        (lambda: Reward("profit"), "kind='profit'"),
        (lambda: Episode(starts="first"), "starts='first'"),
        (lambda: Episode(parts=("weights", "weights")), "each once"),
    ],
)
def test_nonsense_is_refused_by_name(make, says):
    with pytest.raises((ConfigError, InputError, TypeError), match=says.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_the_same_close_is_allowed_only_with_a_warning_that_stays():
    with pytest.warns(UserWarning, match="cannot be done"):
        rules = Rules("same_close")
    assert "next_open" in rules.warning
    assert Rules().warning == ""


def test_bars_are_not_changed_and_types_are_kept():
    bars = bars_of()
    copy = {name: value.clone() for name, value in vars(bars).items() if isinstance(value, torch.Tensor)}
    env = env_of(3, bars, dtype=torch.float64, episode=SHORT)
    _, rows = play(env, actions_of(env, 5), noise_of(env, 6))
    assert isinstance(bars, Bars)
    assert all(torch.equal(getattr(bars, name), value) for name, value in copy.items())
    assert rows[0][1].obs.dtype == rows[0][1].reward.dtype == torch.float64
