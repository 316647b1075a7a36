"""A recurrent PPO in plain JAX, to be faster than: `python benchmarks/jax_ppo.py --num-envs 16384 --minibatches 4 --epochs 1`.

The structure of PureJaxRL's recurrent PPO (Lu et al. 2022): a dense layer, a GRU that forgets at episode starts, two dense
heads, one scalar critic; rollout, advantages and all epochs in one compiled program, mini-batches of whole environments,
advantages normalised in each, values clipped, Adam behind a clipped norm. The market is computed in the same program: a tape of
features, a position, proportional costs, log returns, episodes of one length that start anywhere. Needs `jax` and nothing else.

Printed as JSON: environment steps a second, best of the repeats after the compilation; those of the rollout alone; and the mean
reward a step of the first and of the last iteration, which shows that it learns.
"""

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any
GAMMA, LAMBDA, CLIP, VF_COEF, ENT_COEF = 0.99, 0.95, 0.2, 0.5, 0.0
RATE, MAX_NORM, BETAS, EPS = 2.5e-4, 0.5, (0.9, 0.999), 1e-5
BARS, COST, SIGNAL, NOISE = (
    20_000,
    6e-4,
    2e-3,
    1e-2,
)  # cost of a unit of turnover; what the first feature tells of a bar's return


class Shape(NamedTuple):
    """The sizes of a run; whatever the compiled program depends on."""

    envs: int
    steps: int
    minibatches: int
    epochs: int
    hidden: int
    features: int
    episode: int
    dtype: str


class Market(NamedTuple):
    """What everybody trades in."""

    features: jax.Array  # [bars, F]
    growth: jax.Array  # [bars] of a position of 1, from the bar to the next


class Account(NamedTuple):
    """Where each environment stands."""

    row: jax.Array  # [B] bar
    left: jax.Array  # [B] steps to the episode's end
    position: jax.Array  # [B]
    gained: jax.Array  # [B] log return of the episode so far


class Row(NamedTuple):
    """What is recorded at one time, [B, ...] each."""

    obs: jax.Array
    start: jax.Array
    action: jax.Array
    value: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    done: jax.Array


class Adam(NamedTuple):
    """Moments of the gradient."""

    count: jax.Array
    mean: Tree
    square: Tree


class State(NamedTuple):
    """All that outlives an iteration."""

    params: Tree
    adam: Adam
    account: Account
    obs: jax.Array
    start: jax.Array
    memory: jax.Array
    key: jax.Array


# --- the market -------------------------------------------------------------------------------------------------------


def market(key: jax.Array, features: int) -> Market:
    """Bars whose return the first feature tells a part of."""
    one, two = jax.random.split(key)
    seen = jax.random.normal(one, (BARS, features))
    return Market(seen, SIGNAL * seen[:, 0] + NOISE * jax.random.normal(two, (BARS,)))


def opened(key: jax.Array, shape: Shape) -> Account:
    """New episodes, each somewhere on the tape."""
    row = jax.random.randint(key, (shape.envs,), 0, BARS - shape.episode - 1)
    flat = jnp.zeros(shape.envs)
    return Account(row, jnp.full(shape.envs, shape.episode), flat, flat)


def observed(world: Market, account: Account) -> jax.Array:
    """Features of the bar, the position and what it has gained."""
    own = jnp.stack([account.position, account.gained], -1)
    return jnp.concatenate([world.features[account.row], own], -1)


def stepped(world: Market, account: Account, action: jax.Array, key: jax.Array, shape: Shape) -> tuple[Account, Any, Any]:
    """One bar with a new position, paid for; what has ended starts anew in the same step."""
    position = jnp.clip(action, -1.0, 1.0)
    cost = COST * jnp.abs(position - account.position)
    reward = jnp.log1p(position * world.growth[account.row] - cost)
    done = account.left <= 1
    moved = Account(account.row + 1, account.left - 1, position, account.gained + reward)
    fresh = opened(key, shape)
    return jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, moved), reward, done


# --- the agent --------------------------------------------------------------------------------------------------------


def agent(key: jax.Array, shape: Shape) -> Tree:
    """Weights: dense, GRU, two heads of a hidden layer each."""
    h, keys = shape.hidden, iter(jax.random.split(key, 7))

    def dense(inputs: int, outputs: int, gain: float) -> Tree:
        return {"w": gain * jax.nn.initializers.orthogonal()(next(keys), (inputs, outputs)), "b": jnp.zeros(outputs)}

    return {
        "encoder": dense(shape.features + 2, h, math.sqrt(2)),
        "x": dense(h, 3 * h, 1.0),
        "h": dense(h, 3 * h, 1.0),
        "actor": dense(h, h, math.sqrt(2)),
        "mean": dense(h, 1, 0.01),
        "critic": dense(h, h, math.sqrt(2)),
        "value": dense(h, 1, 1.0),
        "log_std": jnp.zeros(()),
    }


def layer(weights: Tree, x: jax.Array) -> jax.Array:
    return x @ weights["w"].astype(x.dtype) + weights["b"].astype(x.dtype)


def gru(params: Tree, memory: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """A row of the GRU, its memory emptied where an episode starts."""
    x, start = inputs
    memory = jnp.where(start[:, None], 0.0, memory).astype(x.dtype)
    from_x, from_h = (jnp.split(layer(params[name], y), 3, -1) for name, y in (("x", x), ("h", memory)))
    reset, keep = (jax.nn.sigmoid(from_x[i] + from_h[i]) for i in (0, 1))
    new = jnp.tanh(from_x[2] + reset * from_h[2])
    memory = (1 - keep) * new + keep * memory
    return memory, memory


def unroll(params: Tree, memory: jax.Array, obs: jax.Array, start: jax.Array, dtype: str) -> tuple[jax.Array, ...]:
    """Memory after, mean of the action and value of T rows: obs [T, B, F], start [T, B] -> [B, H], [T, B], [T, B]."""
    x = jax.nn.relu(layer(params["encoder"], obs.astype(dtype)))
    memory, x = jax.lax.scan(partial(gru, params), memory.astype(dtype), (x, start))
    mean, value = (
        layer(params[head], jax.nn.relu(layer(params[body], x)))[..., 0].astype("float32")
        for body, head in (("actor", "mean"), ("critic", "value"))
    )
    return memory, mean, value


def log_density(action: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    return -0.5 * jnp.square((action - mean) / jnp.exp(log_std)) - log_std - 0.5 * math.log(2 * math.pi)


# --- one iteration ----------------------------------------------------------------------------------------------------


def collect(world: Market, state: State, shape: Shape) -> tuple[State, Row]:
    """T rows of B environments."""

    def row(state: State, _: None) -> tuple[State, Row]:
        key, for_action, for_reset = jax.random.split(state.key, 3)
        memory, mean, value = unroll(state.params, state.memory, state.obs[None], state.start[None], shape.dtype)
        log_std = state.params["log_std"]
        action = mean[0] + jnp.exp(log_std) * jax.random.normal(for_action, mean[0].shape)
        account, reward, done = stepped(world, state.account, action, for_reset, shape)
        seen = Row(state.obs, state.start, action, value[0], log_density(action, mean[0], log_std), reward, done)
        after = state._replace(account=account, obs=observed(world, account), start=done, memory=memory, key=key)
        return after, seen

    return jax.lax.scan(row, state, None, shape.steps)


def advantages(rows: Row, last: jax.Array) -> jax.Array:
    """Generalised advantage estimation; an end bootstraps nothing, as PureJaxRL has it."""

    def back(carry: tuple[jax.Array, jax.Array], row: Row) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        later, reached = carry
        goes_on = 1.0 - row.done
        one = row.reward + GAMMA * goes_on * reached - row.value + GAMMA * LAMBDA * goes_on * later
        return (one, row.value), one

    return jax.lax.scan(back, (jnp.zeros_like(last), last), rows, reverse=True, unroll=16)[1]


def loss_of(params: Tree, memory: jax.Array, rows: Row, advantage: jax.Array, target: jax.Array, dtype: str) -> jax.Array:
    """Clipped surrogate, clipped value loss, entropy."""
    _, mean, value = unroll(params, memory, rows.obs, rows.start, dtype)
    ratio = jnp.exp(log_density(rows.action, mean, params["log_std"]) - rows.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    near = rows.value + jnp.clip(value - rows.value, -CLIP, CLIP)
    error = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)).mean()
    return -surrogate + VF_COEF * error - ENT_COEF * (params["log_std"] + 0.5 * math.log(2 * math.pi * math.e))


def adam_step(params: Tree, adam: Adam, gradient: Tree) -> tuple[Tree, Adam]:
    """Adam (Kingma & Ba 2015) on a gradient of at most `MAX_NORM`."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_NORM / (norm + 1e-6)), gradient)
    count, (one, two) = adam.count + 1, BETAS
    mean = jax.tree.map(lambda m, g: one * m + (1 - one) * g, adam.mean, gradient)
    square = jax.tree.map(lambda v, g: two * v + (1 - two) * g * g, adam.square, gradient)
    rate, floor = RATE / (1 - one**count), 1 / (1 - two**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v * floor) + EPS), params, mean, square)
    return params, Adam(count, mean, square)


def iteration(world: Market, state: State, shape: Shape) -> tuple[State, jax.Array]:
    """Rollout, advantages, all epochs; the mean reward."""
    memory = state.memory
    state, rows = collect(world, state, shape)
    last = unroll(state.params, state.memory, state.obs[None], state.start[None], shape.dtype)[2][0]
    advantage = advantages(rows, last)
    batch = (rows, advantage, advantage + rows.value)

    def step(carry: tuple[Tree, Adam], part: Tree) -> tuple[tuple[Tree, Adam], None]:
        params, adam = carry
        gradient = jax.grad(loss_of)(params, part[0], *part[1], shape.dtype)
        return adam_step(params, adam, gradient), None

    def epoch(carry: tuple[Tree, Adam], key: jax.Array) -> tuple[tuple[Tree, Adam], None]:
        order = jax.random.permutation(key, shape.envs)

        def cut(x: jax.Array, axis: int) -> jax.Array:
            x = jnp.take(x, order, axis)
            x = x.reshape(*x.shape[:axis], shape.minibatches, -1, *x.shape[axis + 1 :])
            return jnp.moveaxis(x, axis, 0)

        parts = cut(memory, 0), jax.tree.map(lambda x: cut(x, 1), batch)
        return jax.lax.scan(step, carry, parts)

    key, shuffle = jax.random.split(state.key)
    keys = jax.random.split(shuffle, shape.epochs)
    (params, adam), _ = jax.lax.scan(epoch, (state.params, state.adam), keys)
    return state._replace(params=params, adam=adam, key=key), rows.reward.mean()


def begin(world: Market, key: jax.Array, shape: Shape) -> State:
    """Everything before the first iteration."""
    for_agent, for_account, key = jax.random.split(key, 3)
    params = agent(for_agent, shape)
    zeros = jax.tree.map(jnp.zeros_like, params)
    account = opened(for_account, shape)
    account = account._replace(left=1 + jnp.arange(shape.envs) % shape.episode)  # so that not all end together
    start, memory = jnp.ones(shape.envs, bool), jnp.zeros((shape.envs, shape.hidden), shape.dtype)
    return State(params, Adam(jnp.zeros((), jnp.int32), zeros, zeros), account, observed(world, account), start, memory, key)


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(shape: Shape, iterations: int, repeats: int) -> dict[str, Any]:
    """Steps a second of so many iterations in one program, and of as many rollouts."""
    world = market(jax.random.key(0), shape.features)
    start = begin(world, jax.random.key(1), shape)

    @jax.jit
    def train(state: State) -> tuple[State, jax.Array]:
        return jax.lax.scan(lambda state, _: iteration(world, state, shape), state, None, iterations)

    @jax.jit
    def roll(state: State) -> tuple[State, jax.Array]:
        def one(state: State, _: None) -> tuple[State, jax.Array]:
            state, rows = collect(world, state, shape)
            return state, sum(leaf.astype("float32").sum() for leaf in rows)  # so that nothing of it is left out

        return jax.lax.scan(one, state, None, iterations)

    steps, found = iterations * shape.envs * shape.steps, {}
    for name, program in (("train", train), ("collect", roll)):
        began = time.perf_counter()
        state, said = jax.block_until_ready(program(start))
        found[f"{name}_compile_seconds"] = time.perf_counter() - began
        first, best = said, math.inf
        for _ in range(repeats):
            began = time.perf_counter()
            state, said = jax.block_until_ready(program(state))
            best = min(best, time.perf_counter() - began)
        found[f"{name}_steps_per_second"] = steps / best
        if name == "train":
            found |= {"first_reward": float(first[0]), "last_reward": float(said[-1])}
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        **shape._asdict(),
        **found,
        "steps_per_second": found["train_steps_per_second"],
        "seen_per_repeat": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"num-envs": 16_384, "steps": 64, "minibatches": 4, "epochs": 1, "hidden": 128, "features": 30, "episode": 500}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="of the network; losses are float32"
    )
    parser.add_argument("--iterations", type=int, default=10, help="in one compiled program")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.num_envs % asked.minibatches:
        parser.error(f"--num-envs {asked.num_envs} does not split into --minibatches {asked.minibatches}")
    shape = Shape(
        asked.num_envs, asked.steps, asked.minibatches, asked.epochs, asked.hidden, asked.features, asked.episode, asked.dtype
    )
    found = json.dumps(measure(shape, asked.iterations, asked.repeats), indent=2)
    print(found)
    if asked.json:
        asked.json.write_text(found + "\n")


if __name__ == "__main__":
    main()
