import pytest
import torch

from market.scenes import actions_of, bars_of, env_of, noise_of
from quantail.market.costs import Costs
from quantail.market.terms import Episode, Reward, Rules

PLAIN = {"maintenance": 0.2, "cooldown": 1}
LIMITED = {"lot_size": 1.0, "min_notional": 90.0, "band": 0.01, "max_weight": 0.7, "max_net": 0.5, "max_participation": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [PLAIN, LIMITED | {"delisted_after": 2, "haircut": 0.1, "sizing": "exact", "fill": "next_close"}]
)
def test_a_step_is_one_graph_that_nobody_looks_into(more):
    """Traced as a whole (a look at a value from the host would break it), it gives the same numbers."""
    env = env_of(
        4,
        bars_of(1, assets=3, gaps=0.2, volume=True),
        costs=Costs(randomized_to=2.0),
        rules=Rules(actions="long_short", leverage=2.0, **more),
        reward=Reward("sharpe"),
        episode=Episode(length=3, random_position=True),
    )
    traced = torch.compile(env.step, fullgraph=True, backend="eager")
    noise, actions = noise_of(env, 7), actions_of(env, 6)
    state, _ = env.reset(noise[0])
    for action, luck in zip(actions, noise[1:], strict=True):
        (after, step), (other, same) = env.step(state, action, luck), traced(state, action, luck)
        assert all(torch.equal(a, b) for a, b in zip(after, other, strict=True))
        assert torch.equal(step.obs, same.obs)
        assert torch.equal(step.reward, same.reward)
        state = after
