"""The sequence kernels against torch's own cells, run one environment and one episode at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.judges import B, F, H, P, T, by_episode, mingru_by_row, normal, ragged, results_and_gradients
from quantail.errors import InputError
from quantail.kernels import gru_sequence, linear_scan, lstm_sequence, mingru_sequence
from quantail.kernels.lstm import CELL_ENVS

KERNELS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "lstm": lstm_sequence,
    "gru": gru_sequence,
    "mingru": mingru_sequence,
}
STATES = {"lstm": 2, "gru": 1, "mingru": 1}
STARTS = {
    "never": torch.zeros(T, B, dtype=torch.bool),
    "always": torch.ones(T, B, dtype=torch.bool),
    "first row": torch.arange(T)[:, None].expand(T, B) == 0,
    "ragged": ragged(),
}


def inputs(kind: str, dtype: torch.dtype = torch.float64, rows: int = T, envs: int = B) -> list[Tensor]:
    """x, states, weights."""
    blocks = {"lstm": 4, "gru": 3, "mingru": 2}[kind]
    x, states = normal(rows, envs, F), [normal(envs, H) for _ in range(STATES[kind])]
    weights = [normal(blocks * H, F), normal(blocks * H, H), normal(blocks * H), normal(H)]
    if kind == "lstm":
        weights = weights[:3]
    if kind == "mingru":
        weights = [weights[0], weights[2]]
    return [tensor.to(dtype) for tensor in [x, *states, *weights]]


def judge(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    """The slow road, of the same arguments."""
    if kind == "mingru":
        return mingru_by_row

    def call(x: Tensor, start: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        states, (w_x, w_h, b, *inner) = rest[: STATES[kind]], rest[STATES[kind] :]
        module = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(F, H, dtype=x.dtype)
        second = torch.zeros_like(b)
        if inner:
            second = torch.cat([second[: 2 * H], inner[0]])
        weights = {"weight_ih_l0": w_x, "weight_hh_l0": w_h, "bias_ih_l0": b, "bias_hh_l0": second}

        def run(*arguments: Any) -> Any:
            return torch.func.functional_call(module, weights, arguments)

        return by_episode(run, x, start, states)

    return call


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("kind", KERNELS)
def test_values_and_gradients_are_those_of_separate_episodes(kind: str, starts: str) -> None:
    arguments = inputs(kind)
    ours = results_and_gradients(KERNELS[kind], arguments, STARTS[starts])
    theirs = results_and_gradients(judge(kind), arguments, STARTS[starts])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("kind", KERNELS)
def test_float32_is_right_to_five_digits_of_the_largest(kind: str, share: float) -> None:
    """Also where few starts let torch's fused layer take the stretches between them; and the kernel itself (a population)."""
    arguments, start = inputs(kind, torch.float32, rows=64), torch.rand(64, B) < share
    exact = results_and_gradients(judge(kind), [tensor.double() for tensor in arguments], start)
    ours = results_and_gradients(KERNELS[kind], arguments, start)
    alone = results_and_gradients(KERNELS[kind], [tensor[None] for tensor in arguments], start[None])
    for one, other, theirs in zip(ours, alone, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - theirs).abs().max() <= 1e-5 * theirs.abs().max()
        assert (other[0] - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_float32_memory_of_a_lost_episode_may_be_nan_between_stretches_of_the_fused_layer() -> None:
    x, h0, c0, *weights = inputs("lstm", torch.float32, rows=16)
    start = torch.zeros(16, B, dtype=torch.bool)
    start[0, 1] = start[9] = True
    h0, c0 = (state.index_fill(0, torch.tensor([1]), torch.nan) for state in (h0, c0))
    x[5] = torch.nan
    h, h_last, c_last = lstm_sequence(x, start, h0, c0, *weights)
    assert h[:5, 1].isfinite().all()
    assert h[5:9].isnan().all()
    assert all(part.isfinite().all() for part in (h[9:], h_last, c_last))


@pytest.mark.parametrize("envs", [CELL_ENVS, CELL_ENVS + 1])
def test_rows_of_a_rollout_are_those_of_the_sequence(envs: int) -> None:
    """Row by row in float32 and without gradients, where few environments take torch's cell; what is discarded may be NaN."""
    x, h, c, *weights = inputs("lstm", torch.float32, rows=5, envs=envs)
    start = torch.rand(5, envs) < 0.3
    start[0, 1], start[3] = True, False
    exact = lstm_sequence(x.double(), start, h.double(), c.double(), *(w.double() for w in weights))
    h[1] = c[1] = torch.nan
    rows = []
    with torch.no_grad():
        for t in range(5):
            row, h, c = lstm_sequence(x[t : t + 1], start[t : t + 1], h, c, *weights)
            rows.append(row)
    for ours, theirs in zip((torch.cat(rows), h, c), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KERNELS)
def test_without_gradients_the_numbers_are_the_same(kind: str) -> None:
    arguments, start = inputs(kind), ragged()
    values = KERNELS[kind](arguments[0].requires_grad_(), start, *arguments[1:])
    with torch.no_grad():
        torch.testing.assert_close(KERNELS[kind](arguments[0], start, *arguments[1:]), values, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KERNELS)
def test_gradients_by_finite_differences(kind: str) -> None:
    arguments = [tensor.requires_grad_() for tensor in inputs(kind, rows=4, envs=2)]
    start = torch.tensor([[False, True], [False, False], [True, False], [False, True]])
    torch.autograd.gradcheck(lambda x, *rest: KERNELS[kind](x, start, *rest), arguments)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("kind", KERNELS)
def test_one_row_after_the_other_is_the_whole_sequence(kind: str, rows: int) -> None:
    x, *rest = inputs(kind, rows=rows)
    states, weights, start = rest[: STATES[kind]], rest[STATES[kind] :], torch.rand(rows, B) < 0.3
    whole = KERNELS[kind](x, start, *states, *weights)
    steps = []
    for t in range(rows):
        y, *states = KERNELS[kind](x[t : t + 1], start[t : t + 1], *states, *weights)
        steps.append(y)
    torch.testing.assert_close([torch.cat(steps), *states], list(whole), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", KERNELS)
def test_what_a_start_discards_may_be_nan(kind: str) -> None:
    """Memory of a lost episode: before the first row, and after rows whose inputs were broken."""
    x, *rest = inputs(kind)
    start = torch.zeros(T, B, dtype=torch.bool)
    start[0, 1] = start[4] = True
    states, weights = rest[: STATES[kind]], rest[STATES[kind] :]
    clean = KERNELS[kind](x, start, *states, *weights)
    bad_states = [state.index_fill(0, torch.tensor([1]), torch.nan) for state in states]
    leaves = [tensor.clone().requires_grad_() for tensor in [x, *bad_states, *weights]]
    dirty = KERNELS[kind](leaves[0], start, *leaves[1:])
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    gradients = torch.autograd.grad(dirty[0].sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[1] == 0).all() for gradient in gradients[1 : 1 + len(states)])
    broken = x.index_fill(0, torch.tensor([3]), torch.nan)
    after = KERNELS[kind](broken, start, *states, *weights)
    assert after[0][3].isnan().all()
    torch.testing.assert_close(after[0][4:], clean[0][4:], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KERNELS)
def test_gradients_of_the_last_state_alone_reach_every_input(kind: str) -> None:
    arguments = [tensor.requires_grad_() for tensor in inputs(kind)]
    start = torch.zeros(T, B, dtype=torch.bool)
    for index in range(1, 1 + STATES[kind]):
        value = KERNELS[kind](arguments[0], start, *arguments[1:])[index].sum()
        theirs = judge(kind)(arguments[0], start, *arguments[1:])[index].sum()
        ours = torch.autograd.grad(value, arguments)
        torch.testing.assert_close(ours, torch.autograd.grad(theirs, arguments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KERNELS)
def test_population_axis_is_separate_agents(kind: str) -> None:
    agents = [inputs(kind) for _ in range(P)]
    starts = torch.stack([ragged(), torch.rand(T, B) < 0.3])
    apart = [results_and_gradients(KERNELS[kind], each, start) for each, start in zip(agents, starts, strict=True)]
    leaves = [torch.stack(tensors).requires_grad_() for tensors in zip(*agents, strict=True)]
    values = KERNELS[kind](leaves[0], starts, *leaves[1:])
    total = sum((value * torch.cos(torch.arange(value[0].numel()).to(value)).view(value[0].shape)).sum() for value in values)
    together = [*(value.detach() for value in values), *torch.autograd.grad(total, leaves)]
    for ours, each in zip(together, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(each), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KERNELS)
def test_vmap_over_weights_is_the_population_axis(kind: str) -> None:
    """Agents with weights of their own on the same rows: mapped tensors beside shared ones; twice nested; its gradient."""
    x, *rest = inputs(kind)
    count, start = 1 + STATES[kind], ragged()
    states = rest[: count - 1]
    agents = [inputs(kind)[count:] for _ in range(P)]
    stacked = [torch.stack(tensors) for tensors in zip(*agents, strict=True)]

    def loss(*weights: Tensor) -> Tensor:
        return KERNELS[kind](x, start, *states, *weights)[0].square().sum()

    def run(*weights: Tensor) -> tuple[Tensor, ...]:
        return KERNELS[kind](x, start, *states, *weights)

    apart = [run(*weights) for weights in agents]
    expected = tuple(torch.stack(each) for each in zip(*apart, strict=True))
    torch.testing.assert_close(torch.vmap(run)(*stacked), expected, rtol=1e-12, atol=1e-12)
    twice = torch.vmap(torch.vmap(run))(*(tensor[None] for tensor in stacked))
    torch.testing.assert_close(twice, tuple(each[None] for each in expected), rtol=1e-12, atol=1e-12)
    places = tuple(range(len(stacked)))
    mapped = torch.vmap(torch.func.grad(loss, argnums=places))(*stacked)
    for each, weights in enumerate(agents):
        leaves = [tensor.clone().requires_grad_() for tensor in weights]
        alone = torch.autograd.grad(loss(*leaves), leaves)
        torch.testing.assert_close(tuple(gradient[each] for gradient in mapped), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KERNELS)
def test_second_derivative_is_refused(kind: str) -> None:
    x, *rest = inputs(kind)
    w = rest[-2].requires_grad_()
    y, *_ = KERNELS[kind](x.requires_grad_(), ragged(), *rest)
    (gradient,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    with pytest.raises(InputError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does it to trace
@pytest.mark.parametrize("kind", KERNELS)
def test_traces_as_one_graph(kind: str) -> None:
    arguments, start = inputs(kind, rows=4), ragged(4)
    torch.compiler.reset()
    traced = torch.compile(KERNELS[kind], fullgraph=True, backend="aot_eager")
    plain = results_and_gradients(KERNELS[kind], arguments, start)
    torch.testing.assert_close(results_and_gradients(traced, arguments, start), plain, rtol=1e-12, atol=1e-12)


def test_memory_of_the_minimal_gru_stays_within_its_candidates() -> None:
    x, h0, w_x, b = inputs("mingru")
    h, _ = mingru_sequence(100 * x, ragged(), 0 * h0, w_x, b)
    candidates = 100 * x @ w_x[H:].T + b[H:]
    assert (h.abs() <= candidates.abs().amax(0)).all()


# --- refusals --------------------------------------------------------------------------------------------------------

GOOD = {
    lstm_sequence: dict(zip(("x", "start", "h0", "c0", "w_x", "w_h", "b"), [0] * 7, strict=True)),
    gru_sequence: dict(zip(("x", "start", "h0", "w_x", "w_h", "b", "b_hn"), [0] * 7, strict=True)),
    mingru_sequence: dict(zip(("x", "start", "h0", "w_x", "b"), [0] * 5, strict=True)),
}
REFUSED = [
    (kernel, name, word)
    for kernel, names in GOOD.items()
    for name in names
    for word in (["bool", "shape"] if name == "start" else ["shape", "list", "int64", "float32"])
    if (name, word) != ("x", "float32")
]


@pytest.mark.parametrize(("kernel", "name", "what"), REFUSED, ids=lambda value: getattr(value, "__name__", value))
def test_bad_argument_is_named(kernel: Callable[..., Any], name: str, what: str) -> None:
    kind = kernel.__name__.removesuffix("_sequence")
    x, *rest = inputs(kind)
    good = dict(zip(GOOD[kernel], [x, ragged(), *rest], strict=True))
    bad = good[name]
    spoiled = {
        "shape": bad[0] if name in ("x", "h0", "c0") else torch.cat([bad, bad], -1),
        "list": [bad],
        "int64": bad.long(),
        "float32": bad.float(),
        "bool": bad.long(),
    }[what]
    kernel(**good)
    with pytest.raises(InputError, match=f"^{name}\\b|^start has shape" if name == "x" else f"^{name}\\b"):
        kernel(**{**good, name: spoiled})


@pytest.mark.parametrize("name", ["decay", "inflow", "start", "h0"])
def test_scan_names_its_bad_argument(name: str) -> None:
    good = {"decay": normal(T, B, H), "inflow": normal(T, B, H), "start": ragged(), "h0": normal(B, H)}
    linear_scan(**good)
    with pytest.raises(InputError, match="x" if name == "decay" else name):
        linear_scan(**{**good, name: good[name][..., :-1] if name != "decay" else normal(H)})
