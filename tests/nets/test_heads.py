"""Policy heads against torch.distributions, and against integrals where that has nothing."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as laws

from quantail.config import NetConfig
from quantail.errors import ConfigError, InputError
from quantail.nets.heads import ChoiceHead, GaussianHead, HeldGaussian, policy_head
from quantail.types import Box, Discrete, MultiDiscrete

ROWS, ENVS, D, A = 6, 5, 4, 3
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def latent(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, ENVS, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(space: Box | None = None, **net) -> GaussianHead:
    head = policy_head(space or Box((A,), -2.0, 4.0), D, NetConfig(**net)).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head


def noise(*front: int) -> Tensor:
    return torch.randn(*front, ROWS, ENVS, A, dtype=torch.float64)


KINDS = [{}, {"state_dependent_std": True}, {"gsde": True}]


@pytest.mark.parametrize("squash", ["none", "tanh", "sigmoid"])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_is_torchs(kind, squash) -> None:
    head = gaussian(squash=squash, **kind)
    params, other = head(latent()), head(latent(1))
    normal, second = (laws.Independent(laws.Normal(p.mean, p.log_std.exp()), 1) for p in (params, other))
    xi = noise()
    raw = head.sample(params, xi)
    torch.testing.assert_close(raw, normal.mean + normal.stddev * xi, **EXACT)
    transforms = {"none": [], "tanh": [laws.TanhTransform()], "sigmoid": [laws.SigmoidTransform()]}[squash]
    squashed = laws.TransformedDistribution(normal, [laws.IndependentTransform(t, 1) for t in transforms])
    y = {"none": raw, "tanh": raw.tanh(), "sigmoid": raw.sigmoid()}[squash]
    torch.testing.assert_close(head.log_prob(params, raw), squashed.log_prob(y), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(head.kl(params, other), laws.kl_divergence(normal, second), **EXACT)
    assert torch.equal(head.mode(params), params.mean)
    assert head.noise_dim == A
    assert head.noise_kind == "normal"
    assert head.needs_entropy_noise == (squash != "none")
    entropy = head.entropy(params, noise(7))
    assert entropy.shape == (ROWS, ENVS)
    if squash == "none":
        torch.testing.assert_close(entropy, normal.entropy(), **EXACT)
        torch.testing.assert_close(head.entropy(params), normal.entropy(), **EXACT)


@pytest.mark.parametrize("squash", ["tanh", "sigmoid"])
def test_entropy_of_a_squashed_action_is_its_integral(squash) -> None:
    head = gaussian(Box((1,), 0.0, 1.0), squash=squash)
    params = head(latent())
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None, None, None]
    normal = laws.Normal(params.mean, params.log_std.exp())
    slope = 1 - grid.tanh() ** 2 if squash == "tanh" else grid.sigmoid() * (1 - grid.sigmoid())
    density = normal.log_prob(grid).exp()
    exact = -torch.trapezoid(density * (normal.log_prob(grid) - slope.log()), dx=24 / 4000, dim=0)[..., 0]
    sampled = head.entropy(params, torch.randn(20000, ROWS, ENVS, 1, dtype=torch.float64))
    torch.testing.assert_close(sampled, exact, rtol=0, atol=0.05)


def test_deviation_is_free_or_follows_the_state() -> None:
    free, bound = gaussian(log_std_init=-1.0), gaussian(state_dependent_std=True, log_std_init=-1.0)
    assert (free(latent()).log_std.std((0, 1)) < 1e-12).all()
    assert (bound(latent()).log_std.std((0, 1)) > 1e-3).all()
    for state_dependent in (False, True):
        for start in (-1.0, 0.5):
            fresh = policy_head(Box((A,)), D, NetConfig(log_std_init=start, state_dependent_std=state_dependent))
            assert torch.allclose(fresh(latent().float()).log_std, torch.tensor(start), atol=0.2)
    assert bound(1e6 * latent()).log_std.abs().max() <= 20


def test_exploration_noise_that_follows_the_state() -> None:
    """stable-baselines3: noise = latent @ E with E ~ N(0, σ²) held, and the variance latent² @ σ² + 1e-6 it induces."""
    head = gaussian(gsde=True)
    state, matrices = latent(), torch.randn(ENVS, D, A, dtype=torch.float64)
    params = head(state, explore=matrices)
    sigma = head.log_std.exp()
    assert isinstance(params, HeldGaussian)
    raw = head.sample(params, noise())
    for t in range(ROWS):
        for env in range(ENVS):
            deviation = state[t, env] @ (sigma * matrices[env])
            torch.testing.assert_close(raw[t, env], params.mean[t, env] + deviation, **EXACT)
    variance = state.square() @ sigma.square() + 1e-6
    expected = laws.Independent(laws.Normal(params.mean, variance.sqrt()), 1).log_prob(raw)
    torch.testing.assert_close(head.log_prob(params, raw), expected, **EXACT)
    without = head(state)
    torch.testing.assert_close(without.log_std, params.log_std, **EXACT)
    torch.testing.assert_close(head.log_prob(without, raw), expected, **EXACT)
    many = torch.stack([head(state, explore=torch.randn(ENVS, D, A).double()).shift for _ in range(4000)])
    torch.testing.assert_close(many.var(0), variance, rtol=0.2, atol=0)
    assert head.explore_shape(ENVS) == (ENVS, D, A)


def test_exploration_does_not_shape_the_features() -> None:
    head, state = gaussian(gsde=True), latent().requires_grad_()
    (gradient,) = torch.autograd.grad(head(state).log_std.sum() + 0 * state.sum(), state)
    assert not gradient.any()


def test_actions_arrive_inside_the_box() -> None:
    raw = torch.tensor([[-50.0, 0.0], [50.0, 0.0]], dtype=torch.float64)
    bounds = {"low": (-1.0, 2.0), "high": (3.0, 10.0)}
    tanh, sigmoid, none = (gaussian(Box((2,), **bounds), squash=kind) for kind in ("tanh", "sigmoid", "none"))
    for head in (tanh, sigmoid):
        assert head.to_env(raw).tolist() == [[-1.0, 6.0], [3.0, 6.0]]
    assert none.to_env(raw).tolist() == [[-1.0, 2.0], [3.0, 2.0]]
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    one = Box((1,), -1.0, 3.0)
    torch.testing.assert_close(gaussian(one, squash="tanh").to_env(x), 1 + 2 * x.tanh(), **EXACT)
    torch.testing.assert_close(gaussian(one, squash="sigmoid").to_env(x), -1 + 4 * x.sigmoid(), **EXACT)
    unbounded = gaussian(Box((2,)))
    assert torch.equal(unbounded.to_env(raw), raw)
    assert gaussian(Box((3, 2))).to_env(torch.zeros(ROWS, ENVS, 6)).shape == (ROWS, ENVS, 3, 2)
    awkward = gaussian(Box((1,), 0.1, 0.7), squash="sigmoid").to_env(torch.full((1,), 40.0)).item()
    assert awkward <= torch.tensor(0.7).item()


SIZES = {"choice": [4], "choices": [2, 3, 4]}


def choice(kind: str) -> ChoiceHead:
    space = Discrete(4) if kind == "choice" else MultiDiscrete((2, 3, 4))
    head = policy_head(space, D, NetConfig()).double()
    with torch.no_grad():
        head.logits.weight.normal_()
    return head


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", SIZES)
def test_choices_are_torchs(kind, masked) -> None:
    head, sizes = choice(kind), SIZES[kind]
    mask = torch.rand(ROWS, ENVS, sum(sizes)) < 0.7
    mask.view(-1, sum(sizes))[:, [0, *(sum(sizes[: i + 1]) for i in range(len(sizes) - 1))]] = True
    params, other = (head(latent(seed), mask if masked else None) for seed in (0, 1))
    plain = head.logits(latent())
    expected, second = (
        [laws.Categorical(logits=block) for block in torch.where(mask | (not masked), p, -math.inf).split(sizes, -1)]
        for p in (plain, head.logits(latent(1)))
    )
    uniform = torch.rand(ROWS, ENVS, head.noise_dim, dtype=torch.float64)
    raw = head.sample(params, uniform)
    assert raw.dtype == torch.int64
    assert raw.shape == ((ROWS, ENVS) if kind == "choice" else (ROWS, ENVS, 3))
    columns = [raw] if kind == "choice" else list(raw.unbind(-1))
    assert (head.noise_dim, head.noise_kind, head.needs_entropy_noise) == (len(sizes), "uniform", False)
    log_prob = sum(law.log_prob(column) for law, column in zip(expected, columns, strict=True))
    torch.testing.assert_close(head.log_prob(params, raw), log_prob, **EXACT)
    assert log_prob.isfinite().all()
    torch.testing.assert_close(head.entropy(params), sum(law.entropy() for law in expected), rtol=1e-6, atol=1e-6)
    if not masked:
        kl = sum(laws.kl_divergence(p, q) for p, q in zip(expected, second, strict=True))
        torch.testing.assert_close(head.kl(params, other), kl, **EXACT)
    assert head.kl(params, other).isfinite().all()
    mode = [law.probs.argmax(-1) for law in expected]
    assert torch.equal(head.mode(params), mode[0] if kind == "choice" else torch.stack(mode, -1))
    assert head.to_env(raw) is raw


@pytest.mark.parametrize("kind", SIZES)
def test_choices_follow_their_probabilities(kind) -> None:
    head, sizes = choice(kind), SIZES[kind]
    params = head(latent())
    uniform = torch.rand(8000, ROWS, ENVS, len(sizes), dtype=torch.float64)
    many = params._replace(logits=params.logits.expand(8000, *params.logits.shape))
    raw = head.sample(many, uniform).view(8000, ROWS, ENVS, len(sizes))
    for d, block in enumerate(params.logits.split(sizes, -1)):
        shares = torch.stack([(raw[..., d] == k).double().mean(0) for k in range(sizes[d])], -1)
        torch.testing.assert_close(shares, block.softmax(-1), rtol=0, atol=0.03)


@pytest.mark.parametrize("kind", SIZES)
def test_a_mask_that_forbids_everything_forbids_nothing(kind) -> None:
    head, state = choice(kind), latent().requires_grad_()
    mask = torch.ones(ROWS, ENVS, sum(SIZES[kind]), dtype=torch.bool)
    mask[0] = mask[1, :, : SIZES[kind][0]] = False
    params, free = head(state, mask), head(state)
    assert torch.equal(params.logits, free.logits)
    mask[2, :, 1:] = False
    hard = head(state, mask)
    total = head.log_prob(hard, head.mode(hard)).sum() + head.entropy(hard).sum() + head.kl(hard, hard).sum()
    assert total.isfinite()
    assert torch.autograd.grad(total, state)[0].isfinite().all()


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("squash", ["tanh", "sigmoid"])
@pytest.mark.parametrize("space", [Box((2,)), Box((2,), -1.0), Box((2,), (0.0, -math.inf), 1.0)])
def test_squash_needs_finite_bounds(space, squash) -> None:
    with pytest.raises(ConfigError, match="needs finite action bounds"):
        policy_head(space, D, NetConfig(squash=squash))


@pytest.mark.parametrize("name", ["low", "high"])
def test_bounds_of_another_length_are_refused(name) -> None:
    with pytest.raises(ConfigError, match=f"{name} of the action space has 3 numbers for 2 entries"):
        policy_head(Box((2,), **{name: (-1.0, 0.0, 1.0)}), D, NetConfig(squash="none"))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose one"):
        policy_head(Box((2,)), D, NetConfig(gsde=True, state_dependent_std=True, squash="none"))
    with pytest.raises(ConfigError, match="not known"):
        policy_head("Box", D, NetConfig())
    with pytest.raises(InputError, match="action_mask has shape"):
        choice("choice")(latent(), torch.ones(ROWS, ENVS, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="cannot be forbidden"):
        gaussian()(latent(), torch.ones(ROWS, ENVS, A, dtype=torch.bool))
    squashed = gaussian(squash="tanh")
    with pytest.raises(InputError, match="noise is None"):
        squashed.entropy(squashed(latent()))
    with pytest.raises(InputError, match="explore is given"):
        choice("choice")(latent(), None, torch.ones(ENVS, D, 4))
    with pytest.raises(InputError, match="explore is given"):
        gaussian()(latent(), None, torch.ones(ENVS, D, A))
