"""Noise-to-signal ratios of gradients whose noise is known, and what is done about them."""

import math

import numpy as np
import pytest
import torch

from quantail.errors import ConfigError
from quantail.optim import UPGD, AdaptiveUPGD, VarianceScaler
from quantail.optim.variance import PERCENTILE

EXACT = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = ((40, 6), (30,), (8, 5, 2), (70,))
NOISES = ("iid", "anticorrelated", "shared")


def parameters(shapes=SHAPES):
    return [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]


def noise(kind, count, source, common):
    """Unit variance in every element; all of them the same number, if shared."""
    if kind == "iid":
        return source.normal(size=count)
    if kind == "anticorrelated":  # the mean over the tensor is 0 in every step
        half = source.normal(size=count // 2)
        return np.concatenate([half, -half])
    return np.full(count, common)


def give(params, kind, ratio, source, scale=1.0, add=False):
    """Gradients of 1 with noise of variance `ratio`: ρ = ratio for every tensor and for all of them."""
    common = source.normal()
    for p in params:
        drawn = scale * (1 + math.sqrt(ratio) * noise(kind, p.numel(), source, common)).reshape(p.shape)
        p.grad = torch.from_numpy(drawn) + (p.grad if add else 0.0)


def measured(estimator, kind, ratio, steps=1600, parts=3, every=20, **options):
    """The mean of the ratio over a long run."""
    params, source = parameters(), np.random.default_rng(3)
    scaler, found = VarianceScaler(params, estimator, **options), []
    for t in range(steps):
        if estimator == "elementwise":
            give(params, kind, ratio, source)
        for i in range(parts if estimator == "two_batch" else 0):  # a part's own noise is larger: the batch has `ratio`
            give(params, kind, ratio * parts, source, 1 / parts, add=i > 0)
            scaler.add_part(1 / parts)
        scaler.observe()
        if t > 200 and t % every == 0:
            found.append(float(scaler.ratio()))
    return float(np.mean(found))


@pytest.mark.parametrize("estimator", ["elementwise", "two_batch"])
def test_a_constant_gradient_has_no_noise(estimator):
    params, source = parameters(), np.random.default_rng(0)
    constant = [source.normal(size=p.shape) for p in params]
    scaler = VarianceScaler(params, estimator, warmup=0)
    for _ in range(50):
        for i in range(3):
            for p, value in zip(params, constant, strict=True):
                p.grad = torch.from_numpy(value) / 3 * (i + 1)
            if estimator == "two_batch":
                scaler.add_part(1 / 3)
        scaler.observe()
        assert float(scaler.ratio()) <= 1e-12
    assert float(scaler.factor()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("estimator", "ratio"), [("elementwise", 0.25), ("two_batch", 0.25), ("two_batch", 1.0)])
def test_the_ratio_is_the_true_one(estimator, kind, ratio):
    assert measured(estimator, kind, ratio) == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("kind", NOISES[:2])
@pytest.mark.parametrize("ratio", [1.0, 16.0])
def test_element_by_element_strong_noise_is_measured_too(kind, ratio):
    assert measured("elementwise", kind, ratio) == pytest.approx(ratio, rel=0.1)


def test_noise_that_all_elements_share_is_one_number_and_the_bias_is_known():
    """m has the variance q·σ² of a single number: E 1/(m² − q·σ²) > 1/μ², to first order by 4·q·ρ (docs/optimizers.md)."""
    decay = 0.999
    q = (1 - decay) / (1 + decay)
    found = measured("elementwise", "shared", 4.0, steps=6000, every=20, decay=decay)
    assert 4 * q * 4.0 < 0.01
    assert found == pytest.approx(4.0, rel=0.1)


def test_the_mean_of_each_element_and_its_variance_are_unbiased():
    """Against the weights that the recursion gives to each gradient, written out."""
    decay, steps = 0.8, 12
    params, source = parameters(((7,),)), np.random.default_rng(1)
    scaler, seen = VarianceScaler(params, decay=decay), []
    weights = np.zeros(0)
    for t in range(1, steps + 1):
        seen.append(source.normal(size=7) + 2)
        rate = max(1 / t, 1 - decay)
        weights = np.append(weights * (1 - rate), rate)
        params[0].grad = torch.from_numpy(seen[-1])
        scaler.observe()
    rows = np.array(seen)
    mean = weights @ rows
    spread = weights @ (rows - mean) ** 2
    q = (weights**2).sum()
    sigma = spread / (1 - q)
    assert float(scaler.ratio()) == pytest.approx(sigma.sum() / (mean**2 - q * sigma).sum(), rel=1e-12)


def test_of_many_tensors_the_ninetieth_percentile_counts():
    params, source = parameters(tuple((5 + i,) for i in range(11))), np.random.default_rng(2)
    whole = VarianceScaler(params)
    alone = [VarianceScaler([p]) for p in params]
    for _ in range(30):
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(1 + (0.1 + 0.05 * i) * source.normal(size=p.shape))
        for scaler in (whole, *alone):
            scaler.observe()
    ratios = [float(scaler.ratio()) for scaler in alone]
    assert float(whole.ratio()) == pytest.approx(np.quantile(ratios, PERCENTILE), rel=1e-12)


def test_unequal_parts_are_weighed_by_their_rows():
    """g of a row is μ + noise; batches of 60 rows cut into parts of 5, 15 and 40; 6000 of them."""
    sizes, mu, sigma = (5, 15, 40), 0.5, 2.0
    params, source = parameters(((9,),)), np.random.default_rng(4)
    scaler = VarianceScaler(params, "two_batch", decay=0.9999)
    for _ in range(6000):
        rows = mu + sigma * source.normal(size=(60, 9))
        total = 0.0
        for part in np.split(rows, np.cumsum(sizes)[:-1]):
            total = total + part.sum(0) / 60
            params[0].grad = torch.from_numpy(total)
            scaler.add_part(len(part) / 60)
        scaler.observe()
    assert float(scaler.ratio()) == pytest.approx(sigma**2 / 60 / mu**2, rel=0.05)


def test_one_part_alone_tells_nothing_and_none_is_an_error():
    params = parameters()
    scaler = VarianceScaler(params, "two_batch")
    give(params, "iid", 1.0, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="told of no micro-batch; call add_part"):
        scaler.observe()
    scaler.add_part(1.0)
    scaler.observe()
    assert float(scaler.memory["count"]) == 0


def test_what_was_left_of_a_batch_that_broke_is_forgotten():
    params, scalers = parameters(), []
    for broken in (False, True):
        scaler = VarianceScaler(params, "two_batch")
        if broken:
            give(params, "iid", 1e6, np.random.default_rng(5))
            scaler.parts_of_a_batch()(1.0)
        after = scaler.parts_of_a_batch()
        source = np.random.default_rng(0)
        for i in range(2):
            give(params, "iid", 1.0, source, 0.5, add=i > 0)
            after(0.5)
        scaler.observe()
        scalers.append(float(scaler.ratio()))
    assert scalers[0] == scalers[1] > 0


def test_a_part_without_rows_adds_nothing():
    params = parameters(((6,),))
    scaler = VarianceScaler(params, "two_batch")
    for i, share in enumerate((0.5, 0.0, 0.5)):
        give(params, "iid", 1.0, np.random.default_rng(i), 0.5 * (share > 0), add=i > 0)
        scaler.add_part(share)
    scaler.observe()
    assert 0 <= float(scaler.ratio()) < 1e3


# --- what is done about it --------------------------------------------------------------------------------------------


def test_the_factor_by_hand():
    params = parameters(((2,),))
    scaler = VarianceScaler(params, "two_batch", alpha=0.5, warmup=3, floor=0.2, cap=6.0)
    found = []
    for noise_level in (1.0, 1.0, 1.0, 1.0):
        scaler.observe_pair(torch.tensor(noise_level), torch.tensor(0.5))
        found.append(float(scaler.factor()))
    assert found == pytest.approx([1.0, 1.0, 1.0, 1 / (1 + 0.5 * 2)])
    high = VarianceScaler(params, "two_batch", alpha=0.5, warmup=0, floor=0.2, cap=6.0)
    high.observe_pair(torch.tensor(100.0), torch.tensor(1.0))
    assert float(high.factor()) == pytest.approx(1 / (1 + 0.5 * 6))
    high = VarianceScaler(params, "two_batch", alpha=0.5, warmup=0, floor=0.3, cap=6.0)
    high.observe_pair(torch.tensor(1.0), torch.tensor(-1.0))  # no signal is left
    assert float(high.factor()) == pytest.approx(0.3)


def stepped(make, apply_to, factor, steps=3):
    """Weights after steps with this factor throughout."""
    params = [torch.nn.Parameter(torch.linspace(-1, 2, 6, dtype=torch.float64)), torch.nn.Parameter(torch.ones(2).double())]
    optimizer = make(params)
    scaler = VarianceScaler(params, "two_batch", alpha=1.0, warmup=0, apply_to=apply_to, floor=1e-3)
    for t in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(np.random.default_rng([t, i]).normal(size=p.shape))
        scaler.observe_pair(torch.tensor(1 / factor - 1, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        scaler.scale_gradients()
        scaler.step(optimizer)
    return [p.detach() for p in params]


@pytest.mark.parametrize(
    "kind",
    [
        lambda params, lr: torch.optim.SGD(params, lr, weight_decay=0.1, momentum=0.5),
        lambda params, lr: torch.optim.AdamW(params, lr, weight_decay=0.3),
        lambda params, lr: AdaptiveUPGD(params, lr, weight_decay=0.3, sigma=0.1),
    ],
)
def test_a_shortened_step_is_a_step_at_that_rate_decay_and_noise_included(kind):
    found = stepped(lambda params: kind(params, 0.2), "step", 0.25)
    params = [torch.nn.Parameter(torch.linspace(-1, 2, 6, dtype=torch.float64)), torch.nn.Parameter(torch.ones(2).double())]
    optimizer = kind(params, 0.05)
    for t in range(3):
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(np.random.default_rng([t, i]).normal(size=p.shape))
        optimizer.step()
    torch.testing.assert_close(found, [p.detach() for p in params], **EXACT)


def test_a_scaled_gradient_moves_sgd_and_leaves_adam_alone():
    sgd = [stepped(lambda params: torch.optim.SGD(params, 0.2), "gradient", f) for f in (1.0, 0.25)]
    slow = stepped(lambda params: torch.optim.SGD(params, 0.05), "step", 1.0)
    torch.testing.assert_close(sgd[1], slow, **EXACT)
    adam = [stepped(lambda params: torch.optim.Adam(params, 0.2, eps=1e-300), "gradient", f) for f in (1.0, 0.25)]
    torch.testing.assert_close(adam[1], adam[0], rtol=1e-6, atol=1e-6)


def test_noise_in_units_of_the_step_is_shorter_with_the_gradient_and_fixed_noise_is_not():
    def gated(lr, **noise):
        return lambda params: UPGD(params, lr, **noise)

    tracked, fixed = {"sigma": 0.3, "noise": "tracked"}, {"sigma": 0.3}
    slow = stepped(gated(0.05, **tracked), "step", 1.0)
    torch.testing.assert_close(stepped(gated(0.2, **tracked), "gradient", 0.25), slow, **EXACT)
    louder = stepped(gated(0.05, sigma=4 * 0.3), "step", 1.0)
    torch.testing.assert_close(stepped(gated(0.2, **fixed), "gradient", 0.25), louder, **EXACT)


def test_before_the_warm_up_is_over_nothing_at_all_changes():
    params, twins = (parameters(((3, 2),)) for _ in range(2))
    one, other = torch.optim.Adam(params), torch.optim.Adam(twins)
    scaler = VarianceScaler(params, warmup=5)
    for t in range(7):
        for p in (*params, *twins):
            p.grad = torch.from_numpy(np.random.default_rng(t).normal(size=p.shape))
        scaler.observe()
        scaler.step(one)
        other.step()
        assert torch.equal(params[0], twins[0]) == (t < 5)


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["elementwise", "two_batch"])
def test_a_scaler_that_was_saved_goes_on_bit_for_bit(estimator):
    def run(scaler, params, steps):
        for t in steps:
            source = np.random.default_rng(t)
            for i in range(2):
                give(params, "iid", 2.0, source, 0.5, add=i > 0)
                if estimator == "two_batch":
                    scaler.add_part(0.5)
            scaler.observe()
        return scaler.ratio()

    params, twins = parameters(), parameters()
    scaler = VarianceScaler(params, estimator)
    run(scaler, params, range(5))
    other = VarianceScaler(twins, estimator)
    other.load_state_dict(scaler.state_dict())
    known = other.state_dict()
    expected = run(scaler, params, range(5, 9))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in known.items() if name != "estimator")
    assert torch.equal(run(other, twins, range(5, 9)), expected)
    with pytest.raises(ConfigError, match="does not fit this one"):
        VarianceScaler(parameters(((2,),)), "elementwise").load_state_dict(scaler.state_dict())


def test_new_parameters_are_measured_instead_of_the_old_ones():
    params, twins = parameters(), parameters()
    scaler = VarianceScaler(params)
    for t in range(4):
        give(params, "iid", 1.0, np.random.default_rng(t))
        scaler.observe()
    known = float(scaler.ratio())
    scaler.relink(twins)
    assert float(scaler.ratio()) == known
    give(params, "iid", 100.0, np.random.default_rng(9))
    give(twins, "iid", 1.0, np.random.default_rng(4))
    scaler.observe()
    reference = VarianceScaler(params)
    for t in range(5):
        give(params, "iid", 1.0, np.random.default_rng(t))
        reference.observe()
    assert torch.equal(scaler.ratio(), reference.ratio())
    scaler.relink([torch.nn.Parameter(p.detach().float()) for p in twins])
    assert float(scaler.memory["count"]) == 0
    assert {x.dtype for name, x in scaler.memory.items() if name.startswith("mean")} == {torch.float32}
    scaler.relink(parameters(((3,),)))
    assert float(scaler.memory["count"]) == 0


@pytest.mark.parametrize("estimator", ["elementwise", "two_batch"])
def test_a_population_is_its_agents_one_by_one(estimator):
    agents = 3
    whole = parameters(((agents, 4, 2), (agents, 5), (agents,)))
    alone = [[torch.nn.Parameter(p.detach()[i].clone()) for p in whole] for i in range(agents)]
    together = VarianceScaler(whole, estimator, population=True, warmup=2)
    each = [VarianceScaler(params, estimator, warmup=2) for params in alone]
    for t in range(6):
        source = np.random.default_rng(t)
        for j in range(2):
            give(whole, "iid", 0.3, source, 0.5, add=j > 0)
            for i in range(agents):
                for p, mine in zip(whole, alone[i], strict=True):
                    mine.grad = p.grad[i].clone()
            for scaler in (together, *each) if estimator == "two_batch" else ():
                scaler.add_part(0.5)
        for scaler in (together, *each):
            scaler.observe()
    torch.testing.assert_close(together.ratio(), torch.stack([scaler.ratio() for scaler in each]), **EXACT)
    torch.testing.assert_close(together.factor(), torch.stack([scaler.factor() for scaler in each]), **EXACT)
    before = [p.detach().clone() for p in whole]
    together.step(torch.optim.SGD(whole, 0.1))
    for p, old in zip(whole, before, strict=True):
        expected = old - 0.1 * together.factor().reshape(-1, *[1] * (p.ndim - 1)) * p.grad
        torch.testing.assert_close(p.detach(), expected, **EXACT)


def test_a_parameter_without_a_gradient_has_no_noise():
    params = parameters(((3,), (4,)))
    scaler, alone = VarianceScaler(params), VarianceScaler(params[:1])
    for t in range(5):
        params[0].grad = torch.from_numpy(1 + np.random.default_rng(t).normal(size=3))
        scaler.observe()
        alone.observe()
    scaler.scale_gradients()
    assert float(scaler.ratio()) == pytest.approx(PERCENTILE * float(alone.ratio()), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "elementwize"}, "did you mean elementwise"),
        ({"apply_to": "weights"}, "apply_to='weights'; needs one of step, gradient"),
        ({"alpha": -0.1}, "alpha"),
        ({"decay": 1.0}, "decay"),
        ({"warmup": -1}, "warmup"),
        ({"floor": 0.0}, "floor"),
        ({"cap": 0.0}, "cap"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        VarianceScaler(parameters(), **options)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(TypeError, match="takes no 'beta'; it takes estimator, apply_to, alpha"):
        VarianceScaler(parameters(), beta=0.9)


def test_parameters_that_have_no_ratio_are_refused():
    with pytest.raises(ConfigError, match="given no parameter; pass those that the optimizer steps"):
        VarianceScaler([])
    with pytest.raises(ConfigError, match="population=True with a parameter of no axis"):
        VarianceScaler(parameters(((),)), population=True)
    with pytest.raises(ConfigError, match=r"first axes of \[2, 3\]"):
        VarianceScaler(parameters(((3, 2), (2,))), population=True)
