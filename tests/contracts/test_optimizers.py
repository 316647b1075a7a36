"""One list of optimizers, one contract for all of them."""

import copy
import io
import itertools
import math

import pytest
import torch
from scipy import stats

from oracles.upgd import Slow
from quantail.errors import ConfigError
from quantail.optim import UPGD, UPGDW, AdaptiveUPGD, hutchinson
from quantail.optim.noise import PLACES, Tape, mixed

EXACT = {"rtol": 1e-12, "atol": 1e-12}
KINDS = {"upgd": UPGD, "upgdw": UPGDW, "adaptive": AdaptiveUPGD}
OPTIONS = {
    "plain": {},
    "tanh": {"gate": "tanh"},
    "strong": {"strength": 3.0},
    "reference": {"normaliser": "reference"},
    "tensor": {"scale": "tensor"},
    "tensor reference": {"scale": "tensor", "normaliser": "reference"},
    "unit": {"scale": "unit"},
    "unit reference": {"scale": "unit", "normaliser": "reference"},
    "not protecting": {"protecting": False},
    "tracked": {"noise": "tracked", "sigma": 0.3},
    "decayed": {"weight_decay": 0.2},
}
CASES = [(kind, option) for kind in KINDS for option in OPTIONS]
SHAPES = ((4, 3), (5,), ())


def normal(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(shapes=SHAPES, dtype=torch.float64, seed=1):
    return [torch.nn.Parameter(normal(shape, seed + i).to(dtype)) for i, shape in enumerate(shapes)]


def give(params, seed):
    """Gradients that depend on the seed alone."""
    for i, p in enumerate(params):
        p.grad = normal(p.shape, 100 * seed + i).to(p.dtype)


def build(kind, params, **options):
    return KINDS[kind](params, **{"lr": 0.1, "weight_decay": 0.05, "utility_beta": 0.9, "sigma": 0.2, "seed": 3} | options)


def values(params):
    return [p.detach().clone() for p in params]


def nested(tensors):
    """As the slow judge has them: a list of units for each."""
    return {i: x.reshape(-1, x.shape[-1]).tolist() if x.ndim > 1 else [x.reshape(-1).tolist()] for i, x in enumerate(tensors)}


def flat(units):
    return torch.tensor(list(itertools.chain(*units)), dtype=torch.float64)


# --- the formulas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_steps_are_those_of_a_slow_loop(kind, option):
    params, settings = parameters(), {"sigma": 0.2, "weight_decay": 0.05} | OPTIONS[option]
    optimizer = build(kind, params, **settings)
    slow = Slow(nested(values(params)), kind=kind, lr=0.1, utility_beta=0.9, **settings, eps=1e-5)
    tape, begins = Tape(3, 18, params[0].detach()), (0, 12, 17)
    for t in range(1, 7):
        give(params, t)
        views, sign = tape.read(t, begins, [p.shape for p in params])
        slow.step(nested([p.grad for p in params]), nested([sign * view for view in views]))
        optimizer.step()
        for found, units in zip(values(params), slow.w.values(), strict=True):
            torch.testing.assert_close(found.flatten(), flat(units), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_adds_half_h_w_squared_to_the_utility(kind):
    params = parameters()
    optimizer = build(kind, params, sigma=0.0)
    slow = Slow(nested(values(params)), kind=kind, lr=0.1, utility_beta=0.9, weight_decay=0.05, eps=1e-5)
    for t in range(1, 5):
        give(params, t)
        h = [normal(p.shape, 50 + t) for p in params]
        slow.step(nested([p.grad for p in params]), h=nested(h))
        optimizer.step(curvature=h)
    for found, units in zip(values(params), slow.w.values(), strict=True):
        torch.testing.assert_close(found.flatten(), flat(units), **EXACT)
    with pytest.raises(ConfigError, match="curvature has 1 tensors; needs one for each of 3"):
        optimizer.step(curvature=h[:1])


def test_hutchinson_is_exact_for_a_diagonal_and_right_in_the_mean():
    x, y = parameters(((3,), (2,)))
    signs = [[normal(p.shape, 10 * i + j).sign() for j, p in enumerate((x, y))] for i in range(2000)]
    found = hutchinson((x**4).sum() + 3 * (y**2).sum(), [x, y], signs[:1])
    torch.testing.assert_close(found, [12 * x.detach() ** 2, torch.full((2,), 6.0, dtype=torch.float64)], **EXACT)
    a = normal((3, 3), 7)
    found = hutchinson(x @ a @ x + 0 * y.sum(), [x, y], signs)
    torch.testing.assert_close(found[0], 2 * a.diag(), rtol=0, atol=0.3)
    assert not found[1].any()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_neutral_gate_is_torchs_own_step(foreach, decay):
    adam = {"betas": (0.8, 0.95), "eps": 1e-6}
    pairs = [
        (UPGD, torch.optim.SGD, {}, {"weight_decay": decay}),
        (UPGDW, torch.optim.SGD, {}, {}),
        (AdaptiveUPGD, torch.optim.AdamW, adam, adam | {"weight_decay": decay}),
        (AdaptiveUPGD, torch.optim.Adam, adam, adam),
    ]
    for (ours, theirs, own, other), gate in itertools.product(pairs, ("sigmoid", "tanh")):
        if theirs is torch.optim.Adam and decay:
            continue
        params, twins = parameters(), parameters()
        mine = ours(params, 0.03, weight_decay=decay, strength=0.0, sigma=0.0, gate=gate, foreach=foreach, **own)
        judge = theirs(twins, 0.03, **other)
        for t in range(1, 9):
            give(params, t)
            give(twins, t)
            mine.step()
            if ours is UPGDW:
                with torch.no_grad():
                    for p in twins:
                        p *= 1 - 0.03 * decay
            judge.step()
        torch.testing.assert_close(values(params), values(twins), rtol=0, atol=1e-12)


# --- protection -------------------------------------------------------------------------------------------------------


def moved(utilities, **options):
    """How far each weight goes at the first step, in steps of SGD, when these are the utilities: w = 1, g = −U."""
    p = torch.nn.Parameter(torch.ones(len(utilities), dtype=torch.float64))
    p.grad = -torch.tensor(utilities, dtype=torch.float64)
    UPGD([p], 1.0, sigma=0.0, **options).step()
    return ((1 - p.detach()) / p.grad).tolist()


@pytest.mark.parametrize("normaliser", ["corrected", "reference"])
@pytest.mark.parametrize("scale", ["global", "tensor", "unit"])
@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
@pytest.mark.parametrize("shift", [0.0, -7.0, 7.0])
def test_the_more_useful_a_weight_the_less_it_moves_whatever_the_signs(normaliser, scale, gate, shift):
    utilities = [shift + x for x in (-3.0, -1.0, 0.5, 2.0, 3.5)]
    found = moved(utilities, normaliser=normaliser, scale=scale, gate=gate)
    assert all(one >= other for one, other in itertools.pairwise(found))
    assert all((k < 1) == (u > 0) for k, u in zip(found, utilities, strict=True))


def test_the_first_step_saturates_nothing_but_in_the_reference():
    utilities = normal((400,), 2).tolist()
    corrected, reference = (moved(utilities, normaliser=name) for name in ("corrected", "reference"))
    assert 0.53 < min(corrected) < max(corrected) < 1.47
    assert sum(k < 1e-3 or k > 2 - 1e-3 for k in reference) / 400 > 0.9


def test_nothing_known_is_a_plain_step():
    assert moved([1.0, 1.0, 1.0]) == pytest.approx([2 / (1 + math.e)] * 3)
    for option in OPTIONS.values():
        p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        p.grad = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
        UPGD([p], 0.5, **{**option, "sigma": 0.0}).step()
        assert p.tolist() == pytest.approx([-0.5, 1.0, 0.0], abs=1e-15)


@pytest.mark.parametrize(("kind", "option"), CASES)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-20, 1e15])
def test_gradients_of_any_size_break_nothing(kind, option, size):
    for dtype in (torch.float32, torch.float64):
        params = parameters(dtype=dtype)
        optimizer = build(kind, params, **OPTIONS[option])
        for t in range(1, 4):
            give(params, t)
            for p in params:
                p.grad *= size
            optimizer.step()
        assert all(p.isfinite().all() for p in params)


# --- noise ------------------------------------------------------------------------------------------------------------


def noise_of(steps=60, numbers=700, **options):
    """The noise of each step, in units of σ: gradients are 0, every gate is 1."""
    p = torch.nn.Parameter(torch.zeros(numbers, dtype=torch.float64))
    optimizer = UPGD([p], 1.0, sigma=0.5, strength=0.0, **options)
    found, before = [], p.detach().clone()
    for _ in range(steps):
        p.grad = torch.zeros_like(p)
        optimizer.step()
        found.append((before - p.detach()) / 0.5)
        before = p.detach().clone()
    return torch.stack(found)


def test_noise_is_normal_and_fresh():
    found = noise_of()
    assert stats.kstest(found.flatten().numpy(), "norm").pvalue > 0.01
    between = torch.corrcoef(found)[torch.triu_indices(60, 60, 1).unbind()]
    assert float(between.mean().abs()) < 5 / math.sqrt(700 * len(between))
    assert float(between.std()) == pytest.approx(1 / math.sqrt(700), rel=0.15)
    assert float(torch.corrcoef(found.T)[torch.triu_indices(700, 700, 1).unbind()].mean().abs()) < 2e-3


def test_noise_is_a_function_of_seed_and_step():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = noise_of(seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    torch.testing.assert_close(noise_of(seed=2), one, rtol=0, atol=0)
    assert abs(float(torch.corrcoef(torch.stack([noise_of(seed=3).flatten(), one.flatten()]))[0, 1])) < 0.03
    torch.testing.assert_close(noise_of(seed=2, capturable=True), one, rtol=0, atol=1e-12)


def test_tracked_noise_follows_the_size_of_the_steps():
    def shaken(size):
        p = torch.nn.Parameter(torch.zeros(300, dtype=torch.float64))
        optimizer = UPGD([p], 1.0, sigma=0.1, strength=0.0, noise="tracked")
        for _ in range(3):
            p.grad = torch.full_like(p, size)
            before = p.detach().clone()
            optimizer.step()
        return before - size - p.detach()

    torch.testing.assert_close(shaken(50.0), 50 * shaken(1.0), rtol=1e-9, atol=1e-12)
    assert float(shaken(1.0).std()) == pytest.approx(0.1, rel=0.1)


def test_places_and_signs_of_the_steps_look_random():
    words = [mixed(t) for t in range(1, 4001)]
    assert stats.kstest([word % PLACES / PLACES for word in words], "uniform").pvalue > 0.01
    assert abs(sum(1 - 2 * (word >> 31) for word in words)) < 4 * math.sqrt(4000)
    assert len(set(words)) == 4000
    assert mixed(torch.tensor([1, 77, 10**6])).tolist() == [mixed(1), mixed(77), mixed(10**6)]


# --- torch.optim.Optimizer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_a_run_that_was_saved_goes_on_bit_for_bit(kind, option):
    def run(params, optimizer, steps):
        for t in steps:
            give(params, t)
            if t % 3 == 0:
                params[1].grad = None
            optimizer.step()

    params, twins = parameters(dtype=torch.float32), parameters(dtype=torch.float32)
    optimizer = build(kind, params, **OPTIONS[option])
    run(params, optimizer, range(1, 6))
    file = io.BytesIO()
    torch.save([values(params), optimizer.state_dict()], file)
    run(params, optimizer, range(6, 12))
    file.seek(0)
    weights, state = torch.load(file)
    with torch.no_grad():
        for p, value in zip(twins, weights, strict=True):
            p.copy_(value)
    other = KINDS[kind](twins, lr=9.0, seed=77)
    other.load_state_dict(state)
    run(twins, other, range(6, 12))
    torch.testing.assert_close(values(twins), values(params), rtol=0, atol=0)


def test_two_optimizers_never_share_a_moment():
    params, twins = parameters(), parameters()
    one, other = AdaptiveUPGD(params, 0.1), AdaptiveUPGD(twins, 0.1)
    give(params, 1)
    one.step()
    other.load_state_dict(one.state_dict())
    known = copy.deepcopy(other.state_dict()["state"])
    give(params, 2)
    one.step()
    torch.testing.assert_close(other.state_dict()["state"], known, rtol=0, atol=0)
    assert float(other.state[twins[0]]["step"]) == 1


@pytest.mark.parametrize(("kind", "option"), CASES)
@pytest.mark.parametrize("change", [{"foreach": False}, {"capturable": True}])
def test_roads_to_the_same_step(kind, option, change):
    params, twins = parameters(), parameters()
    one, other = (build(kind, ps, **OPTIONS[option] | extra) for ps, extra in ((params, {}), (twins, change)))
    for t in range(1, 6):
        give(params, t)
        give(twins, t)
        one.step()
        other.step()
    torch.testing.assert_close(values(twins), values(params), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learning_rate_on_the_device_is_the_one_used(kind):
    rate = torch.tensor(7.0, dtype=torch.float64)
    params, twins = parameters(), parameters()
    one, other = build(kind, params), build(kind, twins, lr=rate, capturable=True)
    rate.fill_(0.1)
    for t in range(1, 4):
        give(params, t)
        give(twins, t)
        one.step()
        other.step()
    torch.testing.assert_close(values(twins), values(params), **EXACT)
    with pytest.raises(ConfigError, match="only capturable=True"):
        build(kind, twins, lr=rate)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_population_is_its_agents_one_by_one(kind, option):
    agents, settings = 3, {"sigma": 0.0} | {k: v for k, v in OPTIONS[option].items() if k not in ("sigma", "noise")}
    whole = parameters(((agents, 4, 2), (agents, 5), (agents,)))
    alone = [[torch.nn.Parameter(p.detach()[i].clone()) for p in whole] for i in range(agents)]
    together = build(kind, whole, population=True, **settings)
    each = [build(kind, params, **settings) for params in alone]
    for t in range(1, 6):
        give(whole, t)
        for i in range(agents):
            for p, mine in zip(whole, alone[i], strict=True):
                mine.grad = p.grad[i].clone()
            each[i].step()
        together.step()
    for p, *mine in zip(whole, *alone, strict=True):
        torch.testing.assert_close(p.detach(), torch.stack([m.detach() for m in mine]), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_gradient_stands_still_and_counts_its_own_steps(kind):
    params, alone = parameters(), parameters()
    optimizer, single = build(kind, params, sigma=0.0, scale="tensor"), build(kind, alone[:1], sigma=0.0, scale="tensor")
    optimizer.step()
    assert not optimizer.state
    for t in range(1, 8):
        give(params, t)
        give(alone, t)
        if t in (1, 3, 4):
            params[0].grad = None
            before = values(params)[0]
        else:
            single.step()
        optimizer.step()
        if t in (1, 3, 4):
            assert torch.equal(params[0], before)
    torch.testing.assert_close(params[0], alone[0], **EXACT)
    assert [int(optimizer.state[p]["step"]) for p in params] == [4, 7, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_settings_of_their_own(kind):
    params, twins = parameters(), parameters()
    optimizer = KINDS[kind](
        [{"params": params[:1], "lr": 0.5}, {"params": params[1:], "gate": "tanh"}], 0.1, sigma=0.0, scale="tensor"
    )
    apart = [
        KINDS[kind](twins[:1], 0.5, sigma=0.0, scale="tensor"),
        KINDS[kind](twins[1:], 0.1, sigma=0.0, gate="tanh", scale="tensor"),
    ]
    for t in range(1, 4):
        give(params, t)
        give(twins, t)
        optimizer.step()
        for one in apart:
            one.step()
    torch.testing.assert_close(values(params), values(twins), **EXACT)
    extra = torch.nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra], "lr": 0.25})
    give(params, 9)
    extra.grad = torch.ones(2)
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1, 0.25]
    assert (extra < 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_dtypes_each_keep_theirs(kind):
    params = [
        torch.nn.Parameter(normal((3, 2), i).to(dtype))
        for i, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16))
    ]
    optimizer = build(kind, params)
    for t in range(1, 4):
        give(params, t)
        optimizer.step()
    for p in params:
        assert all(x.dtype == p.dtype for name, x in optimizer.state[p].items() if name != "step")
        assert p.isfinite().all()


@pytest.mark.parametrize(("kind", "lr"), [("upgd", 0.03), ("upgdw", 0.03), ("adaptive", 0.03)])
@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "decayed"])
def test_it_finds_the_bottom_of_a_bowl_and_of_rosenbrocks_valley(kind, lr, option):
    def bowl(x):
        return 0.5 * (torch.tensor([1.0, 3.0, 9.0], dtype=torch.float64) * (x - 2) ** 2).sum()

    def valley(x):
        return (1 - x[0]) ** 2 + 3 * (x[1] - x[0] ** 2) ** 2

    for function, start, optimum in ((bowl, [0.0, 1.0, -2.0], 2.0), (valley, [-0.5, 1.5], 1.0)):
        x = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
        optimizer = KINDS[kind]([x], lr, **{"weight_decay": 0.0, "sigma": 1e-4} | OPTIONS[option] | {"sigma": 1e-4})

        def closure(x=x, function=function, optimizer=optimizer):
            optimizer.zero_grad()
            loss = function(x)
            loss.backward()
            return loss

        first = closure().item()
        for _ in range(800):
            loss = optimizer.step(closure)
        assert loss.item() < 1e-3 * first
        assert x.tolist() == pytest.approx([optimum] * len(start), abs=0.05)


def test_copies_work_alone():
    params = parameters()
    optimizer = AdaptiveUPGD(params, 0.1)
    give(params, 1)
    optimizer.step()
    twin_params, twin = copy.deepcopy((params, optimizer))
    give(params, 2)
    give(twin_params, 2)
    optimizer.step()
    twin.step()
    torch.testing.assert_close(values(twin.param_groups[0]["params"]), values(params), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 is outside"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"sigma": math.nan}, "sigma"),
        ({"strength": -1.0}, "strength"),
        ({"utility_beta": 1.0}, "utility_beta=1.0 is outside"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\]=1.0 is outside"),
        ({"eps": -1.0}, "eps"),
        ({"seed": -1}, "seed"),
        ({"gate": "sigmod"}, "did you mean sigmoid"),
        ({"scale": "layer"}, "scale='layer'; needs one of global, tensor, unit"),
        ({"normaliser": "x"}, "normaliser"),
        ({"noise": "x"}, "noise"),
        ({"population": True}, "population=True with a parameter of no axis"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AdaptiveUPGD(parameters(), **options)


def test_a_group_that_is_refused_is_not_kept():
    optimizer = UPGD(parameters())
    with pytest.raises(ConfigError, match=r"lr=-1\.0 is outside"):
        optimizer.add_param_group({"params": parameters(), "lr": -1.0})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("scale", ["global", "tensor", "unit"])
def test_a_parameter_without_numbers_stands_by(scale):
    params, twins = parameters(), parameters()
    one, other = UPGD([*params, torch.nn.Parameter(torch.zeros(0, 3))], scale=scale), UPGD(twins, scale=scale)
    give([*params, one.param_groups[0]["params"][-1]], 1)
    give(twins, 1)
    one.step()
    other.step()
    torch.testing.assert_close(values(params), values(twins), rtol=0, atol=0)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(ConfigError, match=r"shape \[2\]; needs one number"):
        UPGD(parameters(), torch.ones(2), capturable=True)
    with pytest.raises(ConfigError, match=r"lr=-1\.0 is outside"):
        UPGD(parameters(), torch.tensor(-1.0), capturable=True)
    with pytest.raises(ConfigError, match="betas has 1 numbers; needs two"):
        AdaptiveUPGD(parameters(), betas=(0.9,))
    with pytest.raises(ConfigError, match=r"first axes of \[2, 3\]; each parameter needs the same number of agents"):
        UPGD(parameters(((3, 2), (2,))), population=True)
    with pytest.raises(ConfigError, match="float16, in which utilities and moments vanish or overflow; use bfloat16"):
        AdaptiveUPGD(parameters(dtype=torch.float16))
    with pytest.raises(TypeError, match="UPGD takes no 'sigm'; it takes lr, weight_decay, utility_beta"):
        UPGD(parameters(), sigm=1.0)
    with pytest.raises(ConfigError, match="real floating-point"):
        UPGD([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    sparse = torch.nn.Parameter(torch.zeros(3))
    sparse.grad = torch.zeros(3).to_sparse()
    with pytest.raises(ConfigError, match="sparse gradient"):
        UPGD([sparse]).step()
