"""What an agent says from outside: as many environments together or one at a time, with the state it returned, in raw units."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from envs.toys import Spaces
from oracles.categorical import first_above
from oracles.risk import exact_cvar, integrated_cvar, probit_linear
from quantail.algorithm import DistributionalPPO
from quantail.config import Config, CriticConfig, InputConfig, NetConfig
from quantail.envs.oracles.cartpole import CartPole
from quantail.errors import InputError
from quantail.types import Moments, Scale

ROWS, ENVS = 7, 3
VECTOR = spaces.Box(-9.0, 9.0, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 10), np.uint8)
SEEN = {
    "Mlp": VECTOR,
    "Cnn": IMAGE,
    "MultiInput": spaces.Dict({"numbers": VECTOR, "regime": spaces.Discrete(3, start=5), "picture": IMAGE}),
}
ACTIONS = {
    "real": spaces.Box(np.array([-0.1, 0.0]), np.array([0.2, 3.0]), dtype=np.float64),
    "choice": spaces.Discrete(3, start=4),
    "choices": spaces.MultiDiscrete([2, 3]),
    "switches": spaces.MultiBinary(3),
}


def model(action="real", policy="MlpLstmPolicy", seen=None, seed=1, config=None, **nets):
    """Weights that are anything but symmetric."""
    kind = policy.replace("Lstm", "").replace("Policy", "")
    given = {"net_arch": [6], **({"lstm_hidden_size": 5} if "Lstm" in policy else {}), **nets}
    found = DistributionalPPO(
        policy, Spaces(seen or SEEN[kind], ACTIONS[action]), seed=seed, config=config, policy_kwargs=None if config else given
    )
    source = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in found.policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=source)
    return found


def sample(space, count, seed=0):
    space.seed(seed)
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows)


def at(obs, i):
    return {name: part[i] for name, part in obs.items()} if isinstance(obs, dict) else obs[i]


# --- actions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"])
def test_environments_together_are_environments_one_at_a_time(policy, action):
    one = model(action, policy)
    one.policy.double()
    starts = np.random.default_rng(0).random((ROWS, ENVS)) < 0.3
    starts[0] = True
    states, together = None, None
    alone = [None] * ENVS
    for t in range(ROWS):
        obs = sample(one.observation_space, ENVS, seed=t)
        actions, together = one.predict(obs, state=together, episode_start=starts[t], deterministic=True)
        assert actions.shape == (ENVS, *one.action_space.shape)
        for i in range(ENVS):
            single, alone[i] = one.predict(at(obs, i), state=alone[i], episode_start=starts[t, i : i + 1], deterministic=True)
            assert single.shape == one.action_space.shape
            assert one.action_space.contains(single[()] if action == "choice" else single)
            np.testing.assert_allclose(single, actions[i], rtol=1e-10, atol=1e-12)
        if "Lstm" in policy:
            assert all(part.shape == (1, ENVS, 5) for part in together)
            for part, *parts in zip(together, *alone, strict=True):
                np.testing.assert_allclose(part, np.concatenate(parts, 1), rtol=1e-10, atol=1e-12)
        else:
            assert together is None
    assert states is None


def test_the_state_matters_and_a_start_empties_it():
    one = model()
    obs = sample(VECTOR, ENVS)
    _, state = one.predict(obs, episode_start=np.ones(ENVS), deterministic=True)
    fresh = one.predict(obs, episode_start=np.ones(ENVS), deterministic=True)[0]
    later = one.predict(obs, state=state, episode_start=np.zeros(ENVS), deterministic=True)[0]
    mixed = one.predict(obs, state=state, episode_start=np.array([True, False, False]), deterministic=True)[0]
    unsaid = one.predict(obs, state=state, deterministic=True)[0]
    assert not np.allclose(fresh, later)
    np.testing.assert_array_equal(mixed[0], fresh[0])
    np.testing.assert_array_equal(mixed[1:], later[1:])
    np.testing.assert_array_equal(unsaid, later)


def test_what_is_played_is_what_was_learned_from():
    """Row by row through `predict`: its deterministic actions are the modes that the agent computes over whole sequences."""
    learner = DistributionalPPO("MlpLstmPolicy", CartPole(3), n_steps=20, batch_size=20, n_epochs=1, seed=0)
    learner.learn(120)
    carry, agent = learner.progress.carry, learner.policy
    obs = torch.randn(ROWS, ENVS, 4) * 0.3
    start = torch.rand(ROWS, ENVS) < 0.3
    start[0] = True
    moments = carry.obs_moments[""]
    seen = ((obs.double() - moments.mean) / moments.variance.sqrt()).clamp(-10, 10).float()
    outputs, _ = agent.unroll(seen, agent.initial_memory(ENVS), start)
    state = None
    for t in range(ROWS):
        actions, state = learner.predict(obs[t].numpy(), state=state, episode_start=start[t].numpy(), deterministic=True)
        assert actions.tolist() == outputs.policy.logits[t].argmax(-1).tolist()


def test_actions_in_a_box_lie_within_it_in_its_dtype():
    one = model(log_std_init=2.0)
    obs = sample(VECTOR, 200)
    drawn, _ = one.predict(obs, episode_start=np.ones(200))
    assert drawn.dtype == np.float64
    assert (drawn >= one.action_space.low).all()
    assert (drawn <= one.action_space.high).all()
    assert (drawn == one.action_space.low).any(0).all()  # cut off there
    assert (drawn == one.action_space.high).any(0).any()


def test_draws_follow_the_seed_and_the_law():
    obs = np.repeat(sample(VECTOR, 1), 4000, 0)
    ones = np.ones(4000)
    one, same, other = model("choice"), model("choice"), model("choice")
    other.set_random_seed(8)
    first, again, different = (each.predict(obs, episode_start=ones)[0] for each in (one, same, other))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, different)
    assert not np.array_equal(first, one.predict(obs, episode_start=ones)[0])  # every call draws anew
    row = torch.tensor(obs[:1])[None]
    outputs, _ = one.policy.unroll(row, one.policy.initial_memory(1), torch.ones(1, 1, dtype=torch.bool))
    chances = outputs.policy.logits[0, 0].softmax(-1).tolist()
    for choice, chance in enumerate(chances):
        assert (first == 4 + choice).mean() == pytest.approx(chance, abs=0.03)


def test_forbidden_choices_are_not_taken():
    one = model("choice")
    obs, masks = sample(VECTOR, ENVS), np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)
    assert one.predict(obs, episode_start=np.ones(ENVS), action_masks=masks)[0].tolist() == [4, 5, 6]
    assert int(one.predict(obs[0], episode_start=[True], action_masks=masks[2])[0]) == 6


def test_images_may_have_their_channels_in_front_or_behind():
    one = model("choice", "CnnLstmPolicy")
    obs, ones = sample(IMAGE, ENVS), np.ones(ENVS)
    expected, state = one.predict(obs, episode_start=ones, deterministic=True)
    turned, other = one.predict(np.moveaxis(obs, 1, -1), episode_start=ones, deterministic=True)
    assert np.array_equal(expected, turned)
    assert all(np.array_equal(a, b) for a, b in zip(state, other, strict=True))


# --- forgetting -------------------------------------------------------------------------------------------------------


def told(one, *questions):
    obs = sample(VECTOR, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = None
        for question in questions:
            given = dict(question)
            given["state"] = state if given.get("state") else None
            _, state = one.predict(obs, **given)
    return len(caught)


START, ON, UNSAID, GOOD = {"episode_start": [True]}, {"episode_start": [False]}, {}, {"state": True}


@pytest.mark.parametrize(
    ("questions", "count"),
    [
        ((UNSAID,), 0),  # may well be the first row
        ((UNSAID, UNSAID), 1),
        ((UNSAID, UNSAID, UNSAID, ON), 1),  # once
        ((ON,), 1),
        ((START, START, START), 0),
        ((START, ON), 1),
        ((UNSAID, GOOD, GOOD, UNSAID, GOOD), 0),  # two episodes, each begun without a word
        ((START, {**GOOD, **ON}), 0),
    ],
)
def test_a_forgetful_question_is_remarked_once(questions, count):
    assert told(model(), *questions) == count


def test_a_policy_without_memory_has_nothing_to_forget():
    assert told(model(policy="MlpPolicy"), UNSAID, UNSAID, ON) == 0


# --- bad questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"observation": (np.zeros(4), {})}, "observation is a tuple"),
        ({"observation": np.zeros(5)}, r"Unexpected observation shape \[5\]; needs \[4\], or \['n', 4\] for n environments"),
        ({"observation": np.zeros((2, 2, 4))}, r"Unexpected observation shape \[2, 2, 4\]"),
        ({"observation": {"a": np.zeros(4)}}, "Unexpected observation shape"),
        ({"observation": np.zeros((2, 4)), "episode_start": [True]}, "episode_start has 1 entries; needs 2"),
        (
            {"observation": np.zeros(4), "state": (np.zeros((1, 1, 5)),) * 2},
            r"state has shapes .*pass on what predict returned",
        ),
    ],
)
def test_a_bad_question_is_refused(question, words):
    with pytest.raises(InputError, match=words):
        model().predict(**question)


def test_parts_that_are_missing_are_named():
    one = model(policy="MultiInputLstmPolicy")
    with pytest.raises(InputError, match=r"observation is \['numbers'\]; needs a mapping with"):
        one.predict({"numbers": np.zeros(4)})
    obs = sample(one.observation_space, 2)
    with pytest.raises(InputError, match=r"parts of the observation have \[1, 2\] rows"):
        one.predict({**obs, "numbers": obs["numbers"][0]})


# --- the law ahead ----------------------------------------------------------------------------------------------------


def lawful(kind, twin_reduce="mean", reward_scale=1.0, twin=True):
    critic = CriticConfig(kind=kind, atoms=6, twin=twin, twin_reduce=twin_reduce)
    net = NetConfig(hidden=5, encoder_sizes=(4,), actor_sizes=(6,), critic_sizes=(6,))
    one = model("choice", config=Config(critic=critic, net=net, input=InputConfig(reward_scale=reward_scale)))
    moments = Moments(torch.full((4,), 0.5).double(), torch.full((4,), 4.0).double(), torch.ones(4).double())
    scale = Scale(torch.tensor(3.0).double(), torch.tensor(2.0).double())
    carry = one.progress.carry._replace(scale=scale, obs_moments={"": moments})
    one.progress = one.progress._replace(carry=carry)
    return one


def outputs(one, obs):
    """What one critic says by itself, in normalised units: [envs, atoms]."""
    row = (torch.as_tensor(obs) - 0.5) / 2.0
    start = torch.ones(1, len(obs), dtype=torch.bool)
    return one.policy.unroll(row[None].float(), one.policy.initial_memory(len(obs)), start)[0].critics[0, 0].detach().double()


@pytest.mark.parametrize("reward_scale", [1.0, 10.0])
def test_quantiles_are_read_in_raw_units(reward_scale):
    one, obs = lawful("quantile", reward_scale=reward_scale, twin=False), sample(VECTOR, ENVS)
    found = one.distribution(obs, episode_start=np.ones(ENVS))
    taus = one.policy.values.exact_taus.tolist()
    for i, row in enumerate(outputs(one, obs)):
        raw = sorted(((row * 2.0 + 3.0) / reward_scale).tolist())
        on_the_probit_axis = probit_linear(taus, raw)

        def read(level, at=on_the_probit_axis):
            return at(float(stats.norm.ppf(level)))

        for level in (0.02, 0.5, 0.93):
            assert found.quantile(level)[i] == pytest.approx(read(level), rel=1e-5)
        np.testing.assert_allclose(found.quantile([0.2, 0.6])[i], [read(0.2), read(0.6)], rtol=1e-5)
        assert found.cvar(0.05)[i] == pytest.approx(integrated_cvar(taus, raw, 0.05), rel=1e-4)
        masses = one.policy.values.exact_masses.tolist()
        assert found.mean[i] == pytest.approx(sum(m * x for m, x in zip(masses, raw, strict=True)), rel=1e-5)


def test_laws_on_atoms_are_read_in_raw_units():
    one, obs = lawful("categorical", twin=False), sample(VECTOR, ENVS)
    found = one.distribution(obs, episode_start=np.ones(ENVS))
    atoms = (one.policy.values.exact_atoms * 2.0 + 3.0).tolist()
    for i, row in enumerate(outputs(one, obs).softmax(-1)):
        weights = row.tolist()
        assert found.mean[i] == pytest.approx(sum(p * z for p, z in zip(weights, atoms, strict=True)), rel=1e-5)
        assert abs(found.quantile(0.3)[i] - atoms[first_above(weights, 0.3)]) <= (atoms[1] - atoms[0]) / 2  # within its cell
        assert found.cvar(0.3)[i] == pytest.approx(exact_cvar(atoms, 0.3, weights), rel=1e-5)


def test_twins_are_pooled_and_a_scalar_critic_says_one_number():
    obs = sample(VECTOR, ENVS)
    least, middle = (
        lawful("quantile", reduce).distribution(obs, episode_start=np.ones(ENVS)).mean for reduce in ("min", "mean")
    )
    assert (least <= middle).all()
    assert (least < middle).any()
    one = lawful("scalar", twin=False)
    found = one.distribution(obs, episode_start=np.ones(ENVS))
    np.testing.assert_allclose(found.mean, outputs(one, obs)[:, 0] * 2.0 + 3.0, rtol=1e-6)
    with pytest.raises(InputError, match="a scalar critic predicts a mean and nothing else"):
        found.cvar(0.1)


def test_one_observation_has_one_law_and_the_state_counts():
    one, obs = lawful("quantile"), sample(VECTOR, ENVS)
    together = one.distribution(obs, episode_start=np.ones(ENVS))
    alone = one.distribution(obs[1], episode_start=[True])
    assert np.ndim(alone.mean) == np.ndim(alone.cvar(0.1)) == np.ndim(alone.quantile(0.5)) == 0
    assert alone.quantile([0.1, 0.5]).shape == (2,)
    np.testing.assert_allclose(alone.cvar(0.1), together.cvar(0.1)[1], rtol=1e-5)
    _, state = one.predict(obs, episode_start=np.ones(ENVS))
    later = one.distribution(obs, state=state)
    assert not np.allclose(later.mean, together.mean)
    np.testing.assert_array_equal(one.distribution(obs, state=state, episode_start=np.ones(ENVS)).mean, together.mean)


@pytest.mark.parametrize("u", [0.0, 1.0, -0.1, [0.5, 2.0], [[0.5]]])
def test_levels_outside_of_the_unit_interval_are_refused(u):
    with pytest.raises(InputError, match=r"u=.* is outside|u has shape \[1, 1\]; needs a number"):
        lawful("quantile").distribution(np.zeros(4)).quantile(u)
