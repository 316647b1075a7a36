"""Other trading environments, made with their own defaults from one table of bars, and how fast each steps.

`python benchmarks/market_peers.py` prints one line of JSON for each, in a Python that has them; nothing of ours is imported.
What is not installed, or fails, is named with the reason. All get 16 features where they take any, and random actions.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd

BARS = 4000
STEPS = 3000
BATCH = 4096


def frame(bars: int = BARS, seed: int = 0) -> pd.DataFrame:
    """Random bars of an hour."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, bars)))
    open_ = np.concatenate([[100.0], close[:-1]]) * np.exp(rng.normal(0, 0.003, bars))
    top, bottom = np.maximum(open_, close) * 1.002, np.minimum(open_, close) / 1.002
    stamps = pd.date_range("2020-01-01", periods=bars, freq="h")
    columns = {"open": open_, "high": top, "low": bottom, "close": close, "volume": np.full(bars, 1e6)}
    return pd.DataFrame(columns, index=stamps)


def with_features(bars: pd.DataFrame, count: int = 16) -> pd.DataFrame:
    """Returns over 1, 2, ... bars, as columns that Gym-Trading-Env takes for features."""
    price = np.log(bars["close"])
    return bars.assign(**{f"feature_{i}": price.diff(i + 1).fillna(0.0) for i in range(count)})


def gym_trading_env(bars: pd.DataFrame, **options: object) -> object:
    """Gym-Trading-Env: short, flat, long; 5 bp a trade."""
    from gym_trading_env.environments import TradingEnv

    warnings.resetwarnings()  # its module turns every warning of the process into an error
    warnings.simplefilter("ignore")
    chosen = {"positions": [-1, 0, 1], "trading_fees": 5e-4, "verbose": 0, "initial_position": 0} | options
    return TradingEnv(with_features(bars), **chosen)


def gym_anytrading(bars: pd.DataFrame, **options: object) -> object:
    """gym-anytrading's stocks."""
    from gym_anytrading.envs import StocksEnv

    renamed = bars.rename(columns=str.capitalize)
    return StocksEnv(renamed, window_size=10, frame_bound=(10, len(bars)), **options)


def finrl(bars: pd.DataFrame, **options: object) -> object:
    """FinRL's StockTradingEnv with one stock; its file alone, because the package asks for brokers' packages when imported."""
    home = find_spec("finrl")
    if home is None or home.origin is None:
        raise ModuleNotFoundError("No module named 'finrl'")
    file = Path(home.origin).parent / "meta" / "env_stock_trading" / "env_stocktrading.py"
    spec = spec_from_file_location("finrl_env_stocktrading", file)
    assert spec is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    features = [f"feature_{i}" for i in range(16)]
    table = with_features(bars).reset_index(names="date").assign(tic="X", day=range(len(bars)))
    table[features] += 1.7  # where its first indicator is exactly 1 it silently blocks all trading
    chosen: dict[str, object] = {"hmax": 100, "initial_amount": 100_000, "num_stock_shares": [0]}
    chosen |= {"buy_cost_pct": [5e-4], "sell_cost_pct": [5e-4], "reward_scaling": 1.0, "print_verbosity": 10**9}
    return module.StockTradingEnv(
        table, 1, state_space=3 + len(features), action_space=1, tech_indicator_list=features, **(chosen | options)
    )


def stepped(make: Callable[..., object]) -> float:
    """Steps a second of one environment."""
    env = make(frame())
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(STEPS)]
    env.reset()
    began = time.process_time()
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return STEPS / (time.process_time() - began)


def torchtrade() -> float:
    """Rows a second of TorchTrade's vectorised environment."""
    import torch
    from tensordict import TensorDict
    from torchtrade.envs.offline.vectorized_sequential import (
        VectorizedSequentialTradingEnv,
        VectorizedSequentialTradingEnvConfig,
    )

    torch.set_num_threads(1)
    bars = frame().reset_index(names="timestamp")
    config = VectorizedSequentialTradingEnvConfig(
        num_envs=BATCH, time_frames="1Hour", window_sizes=16, execute_on="1Hour", transaction_fee=5e-4, max_traj_length=252
    )
    env = VectorizedSequentialTradingEnv(bars, config)
    state = env.reset()
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(20):
            state = env.rand_action(state)
            _, state = env.step_and_maybe_reset(state)
        best = min(best, (time.process_time() - began) / 20)
    assert isinstance(state, TensorDict) or state is not None
    return BATCH / best


PEERS: dict[str, Callable[[], float]] = {
    f"TorchTrade, {BATCH} environments": torchtrade,
    "Gym-Trading-Env": lambda: stepped(gym_trading_env),
    "gym-anytrading": lambda: stepped(gym_anytrading),
    "FinRL": lambda: stepped(finrl),
}


def rates() -> Iterator[dict[str, object]]:
    """One line for each peer."""
    for name, measure in PEERS.items():
        try:
            yield {"name": name, "rate": measure()}
        except Exception as error:
            yield {"name": name, "why": f"{type(error).__name__}: {error}"[:300]}


def main() -> int:
    """Print the lines."""
    warnings.simplefilter("ignore")
    for line in rates():
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
