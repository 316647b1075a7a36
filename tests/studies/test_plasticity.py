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
    nets = study.Nets((4, 5, 3, 2), 6, seed=1, dtype=torch.float64)
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
    found = study.run(study.Job("digits", name, 3, samples, digits))["scores"]
    for i, rate in enumerate(study.RATES[name]):
        nets = study.Nets(study.SIZES["digits"], 1, seed=3)
        layers = []
        for w in nets.params:
            layer = torch.nn.Linear(w.shape[2] - 1, w.shape[1])
            with torch.no_grad():
                layer.weight.copy_(w[0, :, :-1])
                layer.bias.copy_(w[0, :, -1])
            layers += [layer, torch.nn.ReLU()]
        net = torch.nn.Sequential(*layers[:-1])
        optimizer = kind(net.parameters(), rate, **({} if name == "SGD" else {"eps": 1e-5}))
        right = 0
        for x, judge, _ in study.digits_task(study.Job("digits", name, 3, samples, digits), 1):
            out = net(x)
            _, correct = judge(out.detach())
            label = label_of(judge)
            right += int(correct)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(out, torch.tensor([label])).backward()
            optimizer.step()
        assert found[i][0] * study.PERIOD == pytest.approx(right, abs=2)  # float32 sums in another order


def label_of(judge):
    """The class whose logit the slope pulls up."""
    return int(judge(torch.zeros(1, 10))[0].argmin())


def test_pixels_move_every_period_and_seeds_differ(digits, monkeypatch):
    monkeypatch.setattr(study, "PERIOD", 40)

    def rows(seed):
        return torch.stack([x[0] for x, *_ in study.digits_task(study.Job("digits", "SGD", seed, 120, digits), 2)])

    first, other = rows(0), rows(1)
    torch.testing.assert_close(rows(0), first, rtol=0, atol=0)
    assert not torch.equal(first, other)
    images = {tuple(sorted(row.tolist())) for row in first}
    assert len(images) > 80  # the same pictures, but for the order of their pixels
    spread = [first[40 * i : 40 * i + 40].var(0) for i in range(3)]
    assert all(not torch.allclose(a, b) for a, b in itertools.pairwise(spread))


def test_the_market_pays_what_it_says_and_its_slope_is_the_rewards():
    torch.manual_seed(1)
    held = torch.zeros(3)
    returns = []
    for x, judge, _ in study.market_task(study.Job("market", "SGD", 5, 60, ""), 3):
        returns.append(float(x[0, 0]))
        assert torch.equal(x[:, 4], held)
        out = torch.randn(3, 1, requires_grad=True)
        (expected,) = torch.autograd.grad(judge(out)[1].sum(), out)
        slope, _ = judge(out.detach())
        torch.testing.assert_close(slope, -expected)
        held = out.detach()[:, 0].tanh()
    assert np.std(returns) > 0.5


def test_the_oracle_knows_the_best_position(monkeypatch):
    """Against a search over positions of the mean reward, which is known given the last return."""
    monkeypatch.setattr(study, "REGIMES", ((0.6, 1.5),))
    source = np.random.default_rng([4, 2])
    source.integers(1)
    shocks, last, held, expected = source.standard_normal(study.PERIOD), 0.0, 0.0, []
    grid = np.linspace(-1, 1, 200_001)
    for t in range(50):
        mean = 0.6 * last
        best = grid[np.argmax(grid * mean - 0.75 * (grid - held) ** 2 - 0.5 * grid**2)]
        last = mean + shocks[t]
        expected.append(best * last - 0.75 * (best - held) ** 2 - 0.5 * best**2)
        held = best
    found = [earned for *_, earned in study.market_task(study.Job("market", "SGD", 4, 50, ""), 1)]
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


def test_intervals_are_students():
    values = [0.3, 0.5, 0.1, 0.9, 0.4]
    mean, half = study.interval(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
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
    assert record["samples"] == {"digits": 60, "market": 30}
    assert len(record["rows"]) == 2 * 2 * 4
    for row in record["rows"]:
        assert row["whole"] == row["rates"][f"{row['rate']:g}"]
        assert np.mean(row["whole"]) == max(np.mean(v) for v in row["rates"].values())
        assert (row["factor"] == 1.0) == (row["scaling"] == "none" or row["factor_sd"] == 0.0)
    assert study.main(["--table", str(tmp_path / "plasticity.json")]) == 0
    assert capsys.readouterr().out.strip() in first
    assert (tmp_path / "plasticity.svg").read_text().count("<svg") == 1
