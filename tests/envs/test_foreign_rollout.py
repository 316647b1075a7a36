"""Foreign sources through the real `collect`, judged by slow loops over the plain environments."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envs.toys import FakeVecEnv, Foreseen, Masked, Ragged
from quantail.config import Config, CriticConfig, InputConfig, NetConfig, PpoConfig
from quantail.envs.foreign import seed_of
from quantail.envs.gymnasium import ToVectorEnv, make_env
from quantail.functional.returns import gae
from quantail.loop import begin, make_agent, rollout_noise
from quantail.nets.agent import Agent
from quantail.rollout import collect
from quantail.streams import Stream, generator, normal

B, T = 3, 17


def sources(maker, count=B):
    """The same environments behind every kind of source."""
    makers = [maker] * count
    return {
        **{mode.value: lambda mode=mode: SyncVectorEnv(makers, autoreset_mode=mode) for mode in AutoresetMode},
        **{f"async {mode.value}": lambda mode=mode: AsyncVectorEnv(makers, autoreset_mode=mode) for mode in AutoresetMode},
        "vec env": lambda: FakeVecEnv(makers),
        "there and back": lambda: ToVectorEnv(make_env(SyncVectorEnv(makers))),
        "there and back, same step": lambda: ToVectorEnv(make_env(FakeVecEnv(makers))),
    }


KINDS = list(sources(Ragged))
PLAIN = [kind for kind in KINDS if "back" not in kind]  # the seeds of the others are drawn once more


def lived(env, seed, actions, waits):
    """One environment played by hand: its observations [T + 1], and per step reward, terminated, truncated, start and valid
    of the row, and the final observation where there is one. `waits`: the row after an end shows the final observation and
    its action is lost."""
    obs, _ = env.reset(seed=seed)
    seen, rows, start, ended = [obs], [], True, False
    for action in actions:
        if waits and ended:
            obs, _ = env.reset()
            rows.append((0.0, False, False, start, False, None))
            start, ended = True, False
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
            final = obs if terminated or truncated else None
            rows.append((reward, terminated, truncated and not terminated, start, True, final))
            ended = terminated or truncated
            if ended and not waits:
                obs, _ = env.reset()
            start = ended and not waits
        seen.append(obs)
    return seen, rows


@pytest.mark.parametrize("kind", PLAIN)
def test_rows_are_those_of_the_plain_environments(kind):
    env = make_env(sources(Ragged)[kind](), dtype=torch.float64)
    noise = torch.tensor([[0.5], [-1.0], [2.0]])
    actions = torch.randint(3, (40, B), generator=torch.Generator().manual_seed(1))
    state, obs = env.reset(noise)
    steps = []
    for action in actions:
        state, step = env.step(state, action, noise)
        steps.append(step)
    env.close()
    first = 0
    for b in range(B):
        seen, rows = lived(Ragged(), seed_of(noise) + b, (actions[:, b] - 1).tolist(), waits=not env.same_step)
        assert [obs[b].tolist(), *(step.obs[b].tolist() for step in steps)] == [one.tolist() for one in seen]
        for step, (reward, terminated, truncated, _, _, final) in zip(steps, rows, strict=True):
            got = (step.reward[b].item(), bool(step.terminated[b]), bool(step.truncated[b]))
            assert got == (reward, terminated, truncated)
            if env.same_step and final is not None:
                assert step.final_obs[b].tolist() == final.tolist()
        assert {row[1:3] for row in rows} == {(False, False), (True, False), (False, True)}
        first += any(row[3] and row[5] is not None for row in rows)
    assert first  # an episode of one step is among them


# --- collected --------------------------------------------------------------------------------------------------------


def config(steps=T, memory="lstm", **net):
    sizes = {"encoder_sizes": (6,), "actor_sizes": (5,), "critic_sizes": (7,), "hidden": 4, "memory": memory}
    return Config(
        net=NetConfig(**sizes | net),
        ppo=PpoConfig(n_steps=steps),
        critic=CriticConfig(atoms=5),
        input=InputConfig(normalize_observations=False),
    )


def collected(env, chosen, count, kind=Agent):
    """The agent, and so many rollouts after one another, each with the carry before it."""
    agent = make_agent(chosen, env).double()
    agent.__class__ = kind
    carry, rollouts = begin(chosen, env, agent).carry, []
    for i in range(count):
        noise, before = rollout_noise(chosen, env, agent, i), carry
        rollout, carry = collect(env, agent, carry, noise._replace(act=noise.act.double()), chosen)
        rollouts.append((rollout, before))
    env.close()
    return agent, rollouts


@pytest.mark.parametrize("kind", PLAIN)
def test_collected_rows_are_those_of_the_plain_environments(kind):
    env, chosen = make_env(sources(Ragged)[kind](), dtype=torch.float64), config()
    _, rollouts = collected(env, chosen, 3)
    seed = seed_of(normal((B, 1), generator(chosen.seed, Stream.RESET, 0)))
    whole = {
        name: torch.cat([getattr(rollout, name)[:T] for rollout, _ in rollouts])
        for name in ("obs", "action", "reward", "terminated", "truncated", "start", "valid")
    }
    for b in range(B):
        seen, rows = lived(Ragged(), seed + b, (whole["action"][:, b] - 1).tolist(), waits=not env.same_step)
        assert whole["obs"][:, b].tolist() == [one.tolist() for one in seen[:-1]]
        assert rollouts[-1][0].obs[T, b].tolist() == seen[-1].tolist()
        for name, column in zip(("reward", "terminated", "truncated", "start", "valid"), zip(*rows, strict=True), strict=False):
            assert whole[name][:, b].tolist() == list(column), name


@pytest.mark.parametrize("kind", KINDS)
def test_replay_of_foreign_rollouts_is_exact(kind):
    agent, rollouts = collected(make_env(sources(Ragged)[kind](), dtype=torch.float64), config(), 2)
    rollout, _ = rollouts[1]
    outputs, _ = agent.unroll(rollout.obs[:-1], rollout.memory[0], rollout.start[:-1])
    assert (agent.policy.log_prob(outputs.policy, rollout.action) - rollout.log_prob).abs().max() <= 1e-12
    assert (outputs.critics - rollout.critics[:, :-1]).abs().max() <= 1e-12
    assert rollout.start[1:].any()


class Seer(Agent):
    """Its critics predict what is observed."""

    def unroll(self, obs, *args, **keywords):
        outputs, memory = super().unroll(obs, *args, **keywords)
        return outputs._replace(critics=obs[..., 0].expand_as(outputs.critics[..., 0])[..., None]), memory


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_value_function_has_no_advantages(kind, steps):
    """Everything is exact in binary. Short rollouts, so that many of them close with an episode's last row."""
    env = make_env(sources(Foreseen)[kind](), dtype=torch.float64)
    _, rollouts = collected(env, config(steps), 60 // steps, Seer)
    closing = torch.zeros(2)
    for rollout, _ in rollouts:
        final = None if rollout.final_critics is None else rollout.final_critics[0, ..., 0]
        ends = rollout.terminated, rollout.truncated
        valid = {"valid": rollout.valid, "final_values": final}
        advantages, _ = gae(rollout.reward, rollout.critics[0, ..., 0], *ends, 0.5, 0.75, **valid)
        assert torch.equal(advantages, torch.zeros_like(advantages))
        closing += torch.stack([end[-1].sum() for end in ends])
    assert (closing > 0).all()


# --- masks ------------------------------------------------------------------------------------------------------------


def masked_sources():
    for parts in (False, True):
        for by in ("method", "info", "tuple") if parts else ("method", "info"):
            for kind, make in sources(lambda by=by, parts=parts: Masked(by, parts), 2).items():
                if "async" not in kind and (by == "method" or ("vec env" not in kind and "same" not in kind)):
                    yield pytest.param(make, id=f"{kind} {by} {parts}")


@pytest.mark.parametrize("make", list(masked_sources()))
def test_only_allowed_choices_are_made_from_the_first_row_on(make):
    """The environment fails at any other choice."""
    env = make_env(make(), dtype=torch.float64)
    agent, rollouts = collected(env, config(9), 2)
    for rollout, _ in rollouts:
        assert rollout.action_mask.shape[-1] == (5 if rollout.action.ndim == 3 else 4)
        assert rollout.action_mask.sum(-1)[rollout.valid].unique().tolist() == [2 if rollout.action.ndim == 3 else 1]
        outputs, _ = agent.unroll(rollout.obs[:-1], rollout.memory[0], rollout.start[:-1], rollout.action_mask)
        assert (agent.policy.log_prob(outputs.policy, rollout.action) - rollout.log_prob).abs().max() <= 1e-12
        assert (rollout.terminated | rollout.truncated).any()


def test_masks_of_subprocesses():
    env = make_env(Masked, num_envs=2, options={"by": "method"}, subprocesses=True)
    state, _ = env.reset(torch.zeros(2, 1))
    assert env.first_mask(state).tolist() == [[False, True, False, False]] * 2
    _, step = env.step(state, torch.tensor([1, 1]), torch.zeros(2, 1))
    assert step.action_mask.tolist() == [[False, False, True, False]] * 2
    env.close()


# --- figures that come and go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_figures_that_only_some_rows_report_are_collected(mode):
    recorded = lambda: gymnasium.wrappers.RecordEpisodeStatistics(Ragged())  # noqa: E731
    env = make_env(SyncVectorEnv([recorded] * B, autoreset_mode=mode), dtype=torch.float64)
    _, ((rollout, _),) = collected(env, config(), 1)
    done = rollout.terminated | rollout.truncated
    assert torch.equal(rollout.info["episode/r"].isfinite(), done)
    assert torch.equal(rollout.info["episode/r"][done], rollout.episode_return[done])
    assert torch.equal(rollout.info["episode/l"][done], rollout.episode_length[done].double())


class Hurt(Ragged):
    """Something is not finite in the second step of every episode."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time == 2:
            obs = obs * np.nan if self.what == "obs" else obs
            reward = np.inf if self.what == "reward" else reward
            info["left"] = np.nan if self.what == "info" else 0.0
        return obs, reward, terminated, truncated, info


def test_whole_and_broken_numbers_meet_in_one_figure():
    """Gymnasium makes an array of the first environment's type: others are cut to whole numbers there, or fail."""

    class Mixed(Ragged):
        made = 0

        def __init__(self):
            super().__init__()
            self.number, Mixed.made = Mixed.made, Mixed.made + 1

        def step(self, action):
            return *super().step(action)[:4], {
                "x": [1, 2.5, np.nan][self.number],
                "deep": {"y": [True, 0.5, np.inf][self.number]},
            }

    env = make_env(Mixed, num_envs=3)
    state, _ = env.reset(torch.zeros(3, 1))
    _, step = env.step(state, torch.zeros(3, dtype=torch.int64), torch.zeros(3, 1))
    assert step.info["x"].tolist()[:2] == [1, 2.5]
    assert bool(step.info["x"][2].isnan())
    assert step.info["deep/y"].tolist() == [1, 0.5, np.inf]


@pytest.mark.parametrize("kind", ["NextStep", "SameStep", "Disabled", "vec env"])
@pytest.mark.parametrize("what", ["obs", "reward", "info"])
def test_numbers_that_are_not_finite_do_not_stop_collecting(what, kind):
    """An environment that gave one weighs nothing until its next start; a figure for the log is only missing."""
    _, ((rollout, _),) = collected(make_env(sources(lambda: Hurt(what))[kind](), dtype=torch.float64), config(40), 1)
    for part in (rollout.obs, rollout.reward, rollout.critics, rollout.log_prob):
        assert part.isfinite().all()
    if what == "info":
        assert torch.equal(rollout.value_weight > 0, rollout.valid)
        return
    assert rollout.not_finite.any()
    for b in range(B):
        time, hurt = 0, False
        for t in range(40):
            time, hurt = (0, False) if rollout.start[t, b] else (time + 1, hurt)
            if what == "obs" and time == 2:
                hurt = True
            cut_off_blind = what == "obs" and time == 1 and bool(rollout.truncated[t, b])
            hurt = hurt or (what == "reward" and time == 1) or cut_off_blind
            weight = float(rollout.valid[t, b]) * (0.0 if hurt else 1.0)
            assert rollout.value_weight[t, b] == weight, (t, b)
