"""The study of plasticity: networks side by side are networks alone, and its figures are what they are called."""

import importlib.util
import itertools
import json

import numpy as np
import pytest
import torch
from scipy import stats

from architecture.rules import ROOT
from quantail.optim import VarianceScaler

spec = importlib.util.spec_from_file_location("plasticity", ROOT / "studies" / "plasticity.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def digits(tmp_path):
    source = np.random.default_rng(0)
    labels = source.integers(10, size=300)
    images = source.normal(size=(10, 64))[labels] + source.normal(size=(300, 64))
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    return str(tmp_path / "digits.npz")


def test_gradients_by_hand_are_autograds():
    nets = study.Nets((4, 5, 3, 2), torch.tensor([0, 1, 0, 1, 0, 1]), dtype=torch.float64)
    assert all(torch.equal(p[0], p[2]) and not torch.equal(p[0], p[1]) for p in nets.params)
    with torch.no_grad():
        for i, p in enumerate(nets.params):
            p += torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
    x, slope = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    with torch.no_grad():
        found = nets.forward(x)
        nets.backward(slope)
    for agent in range(6):
        mine = [p.detach()[agent].clone().requires_grad_() for p in nets.params]
        h = x[agent]
        for w in mine:
            h = w[:, :-1] @ (h.relu() if w is not mine[0] else h) + w[:, -1]
        torch.testing.assert_close(found[agent], h.detach(), **EXACT)
        expected = torch.autograd.grad(h @ slope[agent], mine)
        torch.testing.assert_close([p.grad[agent] for p in nets.params], list(expected), **EXACT)


@pytest.mark.parametrize(("name", "kind"), [("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam), ("AdamW", torch.optim.AdamW)])
def test_an_agent_without_scaling_learns_as_an_ordinary_network_at_its_rate(name, kind, digits):
    samples = 120
    found = study.run(study.Job("digits", name, 2, samples, digits))["scores"]
    for seed, (i, rate) in itertools.product(range(2), enumerate(study.RATES[name])):
        nets = study.Nets(study.SIZES["digits"], torch.tensor([0, 1]))
        layers = []
        for w in nets.params:
            layer = torch.nn.Linear(w.shape[2] - 1, w.shape[1])
            with torch.no_grad():
                layer.weight.copy_(w[seed, :, :-1])
                layer.bias.copy_(w[seed, :, -1])
            layers += [layer, torch.nn.ReLU()]
        net = torch.nn.Sequential(*layers[:-1])
        optimizer = kind(net.parameters(), rate, **({} if name == "SGD" else {"eps": 1e-5}))
        right = 0
        for x, judge, _ in study.digits_task(study.Job("digits", name, 2, samples, digits), torch.tensor([0, 1])):
            out = net(x[seed])
            both = out.detach().expand(2, -1)
            right += int(judge(both)[1][seed])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(out, judge(torch.zeros(2, 10))[0][seed].argmin()).backward()
            optimizer.step()
        assert found[0, seed, i, 0] == pytest.approx(right, abs=1)  # float32 sums in another order


def test_pixels_move_every_period_and_seeds_differ(digits, monkeypatch):
    monkeypatch.setattr(study, "PERIOD", 40)

    def rows():
        job = study.Job("digits", "SGD", 2, 120, digits)
        return torch.stack([x for x, *_ in study.digits_task(job, torch.tensor([0, 1, 0]))], 1)

    first, other, same = rows()
    assert torch.equal(first, same)
    assert torch.equal(rows()[1], other)
    assert not torch.equal(first, other)
    images = {tuple(sorted(row.tolist())) for row in first}
    assert len(images) > 80  # the same pictures, but for the order of their pixels
    spread = [first[40 * i : 40 * i + 40].var(0) for i in range(3)]
    assert all(not torch.allclose(a, b) for a, b in itertools.pairwise(spread))


def test_the_market_pays_what_it_says_and_its_slope_is_the_rewards():
    torch.manual_seed(1)
    held, returns = torch.zeros(3), []
    for x, judge, _ in study.market_task(study.Job("market", "SGD", 2, 60, ""), torch.tensor([0, 1, 1])):
        returns.append(x[:, 0].tolist())
        assert torch.equal(x[:, 4], held)
        out = torch.randn(3, 1, requires_grad=True)
        (expected,) = torch.autograd.grad(judge(out)[1].sum(), out)
        slope, _ = judge(out.detach())
        torch.testing.assert_close(slope, -expected)
        held = out.detach()[:, 0].tanh()
    first, second, third = np.array(returns).T
    assert (second == third).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.5 < first.std()


def test_the_oracle_knows_the_best_position(monkeypatch):
    """Against a search over positions of the mean reward, which is known given the last return."""
    monkeypatch.setattr(study, "REGIMES", ((0.6, 1.5),))
    source = np.random.default_rng([1, 2])
    source.integers(1)
    shocks, last, held, expected = source.standard_normal(study.PERIOD), 0.0, 0.0, []
    grid = np.linspace(-1, 1, 200_001)
    for t in range(50):
        mean = 0.6 * last
        best = grid[np.argmax(grid * mean - 0.75 * (grid - held) ** 2 - 0.5 * grid**2)]
        last = mean + shocks[t]
        expected.append(best * last - 0.75 * (best - held) ** 2 - 0.5 * best**2)
        held = best
    found = [earned[1] for *_, earned in study.market_task(study.Job("market", "SGD", 2, 50, ""), torch.tensor([0, 1]))]
    assert found == pytest.approx(expected, abs=1e-3)


def test_two_samples_and_the_norm_give_the_ratios_they_are_called():
    source = np.random.default_rng(0)
    params = [torch.nn.Parameter(torch.zeros(2, 300)), torch.nn.Parameter(torch.zeros(2, 50, 2))]
    scaler = VarianceScaler(params, "two_batch", population=True, decay=0.999)
    norm = study.NormVariance(params, scaler)
    before, norms = [torch.zeros_like(p) for p in params], []
    for t in range(1500):
        for p in params:
            drawn = 1 + np.array([0.5, 2.0]).reshape(2, *[1] * (p.ndim - 1)) * source.normal(size=p.shape)
            p.grad = torch.from_numpy(drawn).float()
        norm.observe()
        norms.append(torch.cat([p.grad.flatten(1) for p in params], 1).norm(dim=1).numpy())
        noise, signal = study.two_samples(params, before)
        if t:
            scaler.observe_pair(noise, signal)
    assert scaler.ratio().tolist() == pytest.approx([0.25, 4.0], rel=0.05)
    weights = np.zeros(0)
    for t in range(1, 1501):
        rate = max(1 / t, 1 - 0.999)
        weights = np.append(weights * (1 - rate), rate)
    mean = weights @ norms
    ratio = weights @ (norms - mean) ** 2 / mean**2
    assert norm.factor().tolist() == pytest.approx((1 / (1 + 0.1 * ratio)).tolist(), rel=1e-4)


@pytest.mark.parametrize("count", [2, 3, 5, 7, 11, 20])
def test_intervals_are_students(count):
    values = np.random.default_rng(count).normal(1.0, 0.3, count).tolist()
    mean, half = study.interval(values)
    low, high = stats.t.interval(0.95, count - 1, np.mean(values), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-3)


def test_one_command_writes_the_record_the_table_and_the_figure(tmp_path, digits, capsys, monkeypatch):
    monkeypatch.setattr(study, "PERIOD", 20)
    asked = [
        "--seeds",
        "2",
        "--samples",
        "60",
        "--optimizers",
        "SGD",
        "AdaptiveUPGD",
        "--digits",
        digits,
        "--folder",
        str(tmp_path),
    ]
    assert study.main(asked) == 0
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "plasticity.json").read_text())
    assert record["seeds"] == [0, 1]
    assert {(row["task"], row["samples"]) for row in record["rows"]} == {("digits", 60), ("market", 15)}
    assert len(record["rows"]) == 2 * 2 * 4
    for row in record["rows"]:
        assert row["whole"] == row["rates"][f"{row['rate']:g}"]
        assert np.mean(row["whole"]) == max(np.mean(v) for v in row["rates"].values())
        assert (row["factor"] == 1.0) == (row["scaling"] == "none" or row["factor_sd"] == 0.0)
    assert study.main(["--table", str(tmp_path / "plasticity.json")]) == 0
    assert capsys.readouterr().out.strip() in first
    assert (tmp_path / "plasticity.svg").read_text().count("<svg") == 1
