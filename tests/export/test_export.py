"""The graph says what the agent says: onnxruntime, row by row in float32, against torch over whole sequences in float64."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nets.cases import ACTIONS, MANY, OBS, B, T, make, observe, ragged
from quantail.config import Config, CriticConfig
from quantail.types import Box, Discrete, Moments, MultiDiscrete, Scale

export = pytest.importorskip("quantail.export", reason="needs onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def seen(size):
    """Statistics of observations; the last never moved."""
    variance = torch.rand(size, dtype=torch.float64) + 0.2
    variance[-1] = 0.0
    return Moments(torch.randn(size, dtype=torch.float64), variance, torch.ones(size, dtype=torch.float64))


def agent_of(action="tanh", critic="quantile", space=OBS, reward_scale=1.0, normalize=True, masked=False, **options):
    """A float64 agent whose weights are far from where they began, and what it was trained with."""
    of_critic = {name: options.pop(name) for name in ("twin_reduce", "sorting", "noncrossing", "twin") if name in options}
    torch.manual_seed(7)
    agent = make(action, critic, space, **options, **{k: v for k, v in of_critic.items() if k in ("twin", "noncrossing")})
    agent.values.sorting = of_critic.get("sorting", False)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        if of_critic.get("noncrossing"):  # as a change of units leaves them
            agent.values.gain.copy_(torch.rand(agent.values.count) + 0.5)
            agent.values.shift.copy_(torch.randn(agent.values.count))
    config = Config(critic=CriticConfig(kind=critic, atoms=None if critic == "scalar" else 6, **of_critic))
    config = replace(config, input=replace(config.input, reward_scale=reward_scale, normalize_observations=normalize))
    moments = {"": seen(OBS.shape[0])} if space is OBS else {"velocity": seen(OBS.shape[0])} if space is MANY else {}
    scale = Scale(*(torch.tensor(x, dtype=torch.float64) for x in (0.4, 2.5)))
    return export.Trained(agent, space, moments, scale, config, masked)


def session(what):
    """onnxruntime's, from bytes alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(export.to_onnx(what).SerializeToString(), options)


def inputs(obs, t):
    """A row of observations under the graph's names."""
    parts = obs if isinstance(obs, dict) else {"": obs}
    rows = {f"observation.{name}" if name else "observation": part[t].numpy() for name, part in parts.items()}
    return {name: row.astype(np.float32) if row.dtype == np.float64 else row for name, row in rows.items()}


def by_graph(what, obs, start, memory, masks=None):
    """Every output over all rows, [T, ...] each, its memory carried by hand."""
    run = session(what)
    names = [one.name for one in run.get_outputs()]
    carried = {f"memory_{i}": part.float().numpy() for i, part in enumerate(memory)}
    rows = []
    for t in range(len(start)):
        given = inputs(obs, t) | ({"start": start[t].numpy(), **carried} if carried else {})
        given |= {} if masks is None else {"action_mask": masks[t].numpy()}
        rows.append(dict(zip(names, run.run(None, given), strict=True)))
        carried = {name: rows[-1][f"{name}_after"] for name in carried}
    return {name: np.stack([row[name] for row in rows]) for name in names}


def standardised(what, obs):
    """(x − μ)/σ within ±10, and 0 where nothing ever moved; in plain numpy."""
    if not isinstance(obs, dict):
        seen = what.moments.get("")
        if seen is None or not what.config.input.normalize_observations:
            return obs
        std = np.sqrt(seen.variance.numpy())
        x = np.where(std > 0, (obs.float().double().numpy() - seen.mean.numpy()) / np.where(std > 0, std, 1), 0.0)
        return torch.from_numpy(x.clip(-10, 10))
    one = what._replace(moments={"": what.moments["velocity"]})
    return obs | {"velocity": standardised(one, obs["velocity"])}


def case(what, rows=3 * T):
    """Observations, starts and a memory that is not empty, with NaN in a lane whose memory the first row discards."""
    obs = observe(what.space, rows)
    start = torch.cat([ragged(), ragged(), ragged()])[:rows]
    memory = tuple(torch.randn_like(part) for part in what.agent.initial_memory(B))
    for part in memory:
        part[:, 1] = torch.nan
    return obs, start, memory


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("memory", "layers"), [("lstm", 2), ("gru", 2), ("mingru", 3), ("none", 1)])
def test_actions_and_their_laws_over_episodes(action, memory, layers):
    what = agent_of(action, memory=memory, layers=layers, trunks="each" if layers == 3 else "actor_critic")
    obs, start, before = case(what)
    with torch.no_grad():
        outputs, after = what.agent(standardised(what, obs), before, start)
    found = by_graph(what, obs, start, before)
    for name, value in outputs.policy._asdict().items():
        np.testing.assert_allclose(found[name], value.detach().numpy(), err_msg=name, **CLOSE)
    wanted = what.agent.policy.to_env(what.agent.policy.mode(outputs.policy)).numpy()
    np.testing.assert_allclose(found["action"], wanted, **CLOSE)
    for i, part in enumerate(after):
        np.testing.assert_allclose(found[f"memory_{i}_after"][-1], part.numpy(), **CLOSE)
    assert len(found) == 2 + len(outputs.policy) + 1 + len(after)  # action, value, quantiles


@pytest.mark.parametrize("activation", ["relu", "elu", "gelu", "silu", "leaky_relu"])
def test_images_choices_and_numbers_side_by_side_through_every_activation(activation):
    what = agent_of("choices", space=MANY, activation=activation, memory="gru", trunks="shared")
    obs, start, before = case(what, rows=4)
    with torch.no_grad():
        outputs, _ = what.agent(standardised(what, obs), before, start)
    np.testing.assert_allclose(by_graph(what, obs, start, before)["logits"], outputs.policy.logits.numpy(), **CLOSE)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 4)), Box((2, 3))], ids=["index", "indices", "matrix"])
def test_observations_of_one_part(space):
    what = agent_of("choice", space=space, memory="none")
    obs, start, before = case(what, rows=3)
    with torch.no_grad():
        outputs, _ = what.agent(obs, before, start)
    found = by_graph(what, obs, start, before)
    np.testing.assert_allclose(found["logits"], outputs.policy.logits.numpy(), **CLOSE)


def law_by_hand(what, critics):
    """[C, T, B, N] in normalised units -> locations, masses and mean in raw ones, in numpy and by the definition."""
    config, values = what.config.critic, what.agent.values
    std, mean = (float(x) / what.config.input.reward_scale for x in (what.scale.std, what.scale.mean))
    said = critics.numpy()
    if config.kind == "categorical":
        odds = np.exp(said - said.max(-1, keepdims=True))
        laws, weights = odds / odds.sum(-1, keepdims=True), np.linspace(-5, 5, said.shape[-1]) * std + mean
    else:
        laws = said * std + mean
        laws = np.sort(laws, -1) if config.twin_reduce == "mean" else laws
        weights = values.exact_masses.numpy()
    means = (laws * weights).sum(-1)
    pooled = laws.mean(0) if config.twin_reduce == "mean" else np.where((means[1] < means[0])[..., None], laws[1], laws[0])
    return pooled, (pooled * weights).sum(-1)


@pytest.mark.parametrize(
    "options",
    [
        {"critic": "quantile", "twin_reduce": "mean"},
        {"critic": "quantile", "twin_reduce": "min", "reward_scale": 0.1},
        {"critic": "quantile", "noncrossing": True},
        {"critic": "quantile", "sorting": True, "twin_reduce": "min"},
        {"critic": "categorical", "twin_reduce": "mean", "reward_scale": 4.0},
        {"critic": "categorical", "twin_reduce": "min"},
        {"critic": "scalar", "twin_reduce": "min"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_what_the_critics_say_in_the_units_of_the_rewards(options):
    what = agent_of(**options)
    obs, start, before = case(what)
    with torch.no_grad():
        outputs, _ = what.agent(standardised(what, obs), before, start)
    law, mean = law_by_hand(what, outputs.critics)
    found = by_graph(what, obs, start, before)
    np.testing.assert_allclose(found["value"], mean, **CLOSE)
    name = {"quantile": "quantiles", "categorical": "probabilities"}.get(options["critic"])
    if name:
        np.testing.assert_allclose(found[name], law, **CLOSE)
    assert {"quantiles", "probabilities"} & set(found) == ({name} if name else set())


def test_metadata_say_at_which_levels_and_atoms():
    quantile, categorical = agent_of(), agent_of(critic="categorical", reward_scale=0.5)
    told = {one.key: json.loads(one.value) for one in export.to_onnx(quantile).metadata_props}
    assert told["levels"] == quantile.agent.values.levels.tolist()
    assert sum(told["masses"]) == pytest.approx(1.0, abs=1e-12)
    assert Config.from_dict(told["config"]) == quantile.config
    told = {one.key: json.loads(one.value) for one in export.to_onnx(categorical).metadata_props}
    np.testing.assert_allclose(told["atoms"], (np.linspace(-5, 5, 6) * 2.5 + 0.4) / 0.5, rtol=1e-12)


def test_masks_forbid_and_one_that_forbids_all_forbids_none():
    what = agent_of("choices", masked=True)
    obs, start, before = case(what)
    masks = torch.rand(len(start), B, 5) < 0.5
    masks[0], masks[1, :, :2] = False, False
    with torch.no_grad():
        outputs, _ = what.agent(standardised(what, obs), before, start, masks)
    found = by_graph(what, obs, start, before, masks)
    np.testing.assert_allclose(found["logits"], outputs.policy.logits.numpy(), **CLOSE)
    assert np.isneginf(found["logits"]).any()
    assert (found["action"] == what.agent.policy.mode(outputs.policy).numpy()).all()


def test_without_masks_there_is_no_input_for_one_and_without_memory_none_for_starts():
    assert {one.name for one in session(agent_of("choice", memory="none")).get_inputs()} == {"observation"}
    wanted = {"observation", "start", "memory_0", "memory_1", "memory_2", "memory_3", "action_mask"}
    assert {one.name for one in session(agent_of("choice", masked=True)).get_inputs()} == wanted


def test_one_lane_alone_is_the_lane_among_others():
    what = agent_of(memory="lstm")
    obs, start, before = case(what)
    together = by_graph(what, obs, start, before)
    for lane in (0, 3):
        alone = by_graph(
            what, obs[:, lane : lane + 1], start[:, lane : lane + 1], tuple(part[:, lane : lane + 1] for part in before)
        )
        np.testing.assert_allclose(alone["action"][:, 0], together["action"][:, lane], rtol=1e-6, atol=1e-6)


def test_observations_are_left_as_they_are_where_training_left_them():
    what = agent_of(normalize=False)
    obs, start, before = case(what, rows=2)
    with torch.no_grad():
        outputs, _ = what.agent(obs, before, start)
    np.testing.assert_allclose(by_graph(what, obs, start, before)["mean"], outputs.policy.mean.numpy(), **CLOSE)


@pytest.mark.parametrize("action", ["gsde", "choices"])
def test_its_own_comparison_sees_no_difference_and_a_changed_weight(action):
    what = agent_of(action, space=MANY, masked=action == "choices")
    model = export.to_onnx(what)
    assert export.difference(model, what, rows=12) < export.TOLERANCE
    with torch.no_grad():
        what.agent.actor[0].weight[0, 0] += 0.01
    assert export.difference(model, what, rows=12) > export.TOLERANCE


def test_the_same_agent_gives_the_same_bytes():
    first, second = (export.to_onnx(agent_of()).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
