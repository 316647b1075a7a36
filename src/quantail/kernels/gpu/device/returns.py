"""Advantages and sample replacement in Triton: one thread walks back through the rows of an environment, or of its particle.

The operations and their order are those of `functional.returns`, and nothing is fused: the numbers are the same to the bit.
"""

import triton
import triton.language as tl


@triton.jit
def is_valid(valid, terminated, truncated, at, t, envs, live, GIVEN: tl.constexpr, SAME_STEP: tl.constexpr):
    """Whether a row counts: as given; without word all of them (SAME_STEP), or those whose row above did not end."""
    if GIVEN:
        return tl.load(valid + at, mask=live, other=0) != 0
    if SAME_STEP:
        return live
    before = live & (t > 0)
    return (tl.load(terminated + at - envs, mask=before, other=0) | tl.load(truncated + at - envs, mask=before, other=0)) == 0


@triton.jit(do_not_specialize=["steps"])
def advantages(
    rewards, values, terminated, truncated, valid, final_values, found, returns, steps, envs, gamma, decay,
    GIVEN: tl.constexpr, SAME_STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rewards and masks [T, B], values [T+1, B], final_values [T, B] under SAME_STEP -> advantages found, returns [T, B]."""
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = env < envs
    after = tl.load(values + steps.to(tl.int64) * envs + env, mask=live, other=0.0)
    advantage = tl.zeros([BLOCK], tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        at = t.to(tl.int64) * envs + env
        value = tl.load(values + at, mask=live, other=0.0)
        terminates = tl.load(terminated + at, mask=live, other=0) != 0
        cut = tl.load(truncated + at, mask=live, other=0) != 0
        counts = is_valid(valid, terminated, truncated, at, t, envs, live, GIVEN, SAME_STEP)
        reached = after
        if SAME_STEP:
            reached = tl.where(cut, tl.load(final_values + at, mask=live, other=0.0), reached)
        reached = tl.where(terminates, 0.0, reached)
        delta = tl.load(rewards + at, mask=live, other=0.0) + gamma * reached - value
        advantage = tl.where(counts, delta + tl.where(terminates | cut, 0.0, decay * advantage), 0.0)
        tl.store(found + at, advantage, mask=live)
        tl.store(returns + at, advantage + value, mask=live)
        after = value


@triton.jit
def drawn(cumulative, locations, masses_row, locations_row, row, noise, live, N: tl.constexpr, STEPS: tl.constexpr):
    """The location at which the cumulative masses of a row first exceed the noise: their number that does not, by halving.

    masses_row, locations_row: from one row to the next, 0 where rows share them.
    """
    base = cumulative + row * masses_row
    index = tl.zeros_like(noise).to(tl.int32)
    for step in tl.static_range(STEPS):
        further = index + (1 << (STEPS - 1 - step))
        fits = live & (further <= N)
        passed = tl.load(base + further - 1, mask=fits, other=2.0) <= noise
        index = tl.where(fits & passed, further, index)
    index = tl.minimum(index, N - 1)
    return tl.load(locations + row * locations_row + index, mask=live, other=0.0)


@triton.jit(do_not_specialize=["steps"])
def particles(
    rewards, terminated, truncated, valid, follow_noise, level_noise, cumulative, locations, final_cumulative, final_locations,
    found, steps, envs, gamma, lam, masses_row, locations_row, final_masses_row, final_locations_row,
    M: tl.constexpr, N: tl.constexpr, GIVEN: tl.constexpr, SAME_STEP: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rewards and masks [T, B], noises [T, B, M], cumulative masses and locations of T + 1 rows -> found [T, B, M]."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = slot < envs * M
    env = slot // M
    y = tl.zeros([BLOCK], tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        at = t.to(tl.int64) * envs + env
        place = t.to(tl.int64) * envs * M + slot
        terminates = tl.load(terminated + at, mask=live, other=0) != 0
        cut = tl.load(truncated + at, mask=live, other=0) != 0
        counts = is_valid(valid, terminated, truncated, at, t, envs, live, GIVEN, SAME_STEP)
        noise = tl.load(level_noise + place, mask=live, other=0.0)
        follows = (tl.load(follow_noise + place, mask=live, other=1.0) < lam) & ((terminates | cut) == 0)
        reached = drawn(cumulative, locations, masses_row, locations_row, at + envs, noise, live & counts, N, STEPS)
        if SAME_STEP:
            ends = live & cut
            at_end = drawn(final_cumulative, final_locations, final_masses_row, final_locations_row, at, noise, ends, N, STEPS)
            reached = tl.where(cut, at_end, reached)
        reached = tl.where(terminates, 0.0, reached)
        y = tl.load(rewards + at, mask=live, other=0.0) + gamma * tl.where(follows & (back > 0), y, reached)
        own = drawn(cumulative, locations, masses_row, locations_row, at, noise, live & (counts == 0), N, STEPS)
        y = tl.where(counts, y, own)
        tl.store(found + place, y, mask=live)
