"""The main job: bars in a file, trained on their first part, chosen and stopped by the second; best and last are kept."""

import json

import pandas as pd
import torch

from market.worlds import bars_of
from quantail import checkpoint, run
from quantail.checkpoint import rotation
from quantail.config import Config
from quantail.registry import make
from quantail.run import validation
from quantail.run.folder import best_of, latest_of

SETTINGS = {
    "total_timesteps": 5000,
    "ppo": {"n_steps": 16, "batch_size": 64, "n_epochs": 2},
    "net": {"hidden": 5, "encoder_sizes": [], "actor_sizes": [], "critic_sizes": []},
    "run": {
        "evaluate_every": 2,
        "evaluate_rows": 40,
        "evaluate_envs": 6,
        "judge": "step",
        "patience": 3,
        "sinks": ["jsonl"],
        "save_every": 3,
    },
}


def test_early_stopping_keeps_the_best_agent_of_the_validation_part_beside_the_last(tmp_path):
    bars = bars_of(400, 1, seed=2)
    columns = {name: getattr(bars, name)[:, 0].numpy() for name in ("open", "high", "low", "close")}
    pd.DataFrame({"time": pd.to_datetime(bars.time.numpy(), utc=True), **columns}).to_csv(tmp_path / "bars.csv", index=False)
    env = {
        "id": "quantail/Market",
        "num_envs": 8,
        "options": {"data": str(tmp_path / "bars.csv"), "length": 20, "actions": "tanh"},
    }
    outcome = run(Config.from_dict({**SETTINGS, "env": env}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = {row["env_steps"]: row["eval/reward_per_step"] for row in rows if "eval/reward_per_step" in row}
    best = max(scores, key=scores.get)
    later = [steps for steps in scores if steps > best]
    assert outcome.status == "stopped early"
    assert outcome.env_steps < 5000
    assert len(later) == 3
    assert (outcome.judged.best, outcome.judged.best_env_steps) == (scores[best], best)
    kept, last = (checkpoint.read(path) for path in (best_of(tmp_path / "run"), latest_of(tmp_path / "run")))
    assert (kept.env_steps, last.env_steps) == (best, outcome.env_steps)
    assert best_of(tmp_path / "run").name == rotation.BEST
    for part, equal in (("validation", True), ("train", False)):  # judged on the second part, in units of the first
        there = make(kept.config.env, 6, kept.config.risk, part, kept.fitted)
        found = validation.evaluate(there, checkpoint.restore_agent(kept), kept.observation_moments, kept.config)
        assert (found["eval/reward_per_step"] == scores[best]) == equal
    weights = [torch.cat([p.flatten() for p in checkpoint.restore_agent(one).parameters()]) for one in (kept, last)]
    assert not torch.equal(*weights)
