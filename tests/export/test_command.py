"""`quantail export`: from the folder of a run to whole episodes that are played without torch."""

import numpy as np
import pytest
import torch

from quantail import checkpoint, cli, evaluation
from quantail.envs.base import TensorEnv
from quantail.envs.oracles import CartPole
from quantail.run import run
from run.worlds import small

pytest.importorskip("quantail.export", reason="needs onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "cartpole"
    run(small(400, run__evaluate_every=3, net__memory="gru", optim__learning_rate=0.01), place)
    return place


def test_the_graph_plays_the_episodes_that_the_agent_plays(folder, capsys):
    assert cli.main(["export", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "in   observation      float  [batch, 4]" in out
    assert "out  memory_0_after   float  [1, batch, " in out
    assert "onnxruntime equals torch" in out
    saved = checkpoint.read(folder / "checkpoints" / "best.safetensors")
    asked = {"steps": 120, "seed": 3}
    wanted = evaluation.play(
        CartPole(5), checkpoint.restore_agent(saved), saved.observation_moments, saved.config, **asked
    ).episode_returns()
    assert len(wanted) > 5
    env = Played(CartPole(5), onnxruntime.InferenceSession(folder / "agent.onnx"))
    found = evaluation.play(env, checkpoint.restore_agent(saved), saved.observation_moments, saved.config, **asked)
    assert found.episode_returns().tolist() == wanted.tolist()
    assert env.asked == 120


class Played(TensorEnv):
    """Takes its actions from a graph, whatever it is told to do; knows of episodes by itself."""

    def __init__(self, env, session):
        self.env, self.session, self.asked = env, session, 0
        self.num_envs, self.device, self.noise_dim = env.num_envs, env.device, env.noise_dim
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, noise):
        state, self.obs = self.env.reset(noise)
        self.start, self.ended = np.ones(5, bool), np.zeros(5, bool)
        names = [one for one in self.session.get_inputs() if one.name.startswith("memory")]
        self.memory = {one.name: np.full((one.shape[0], 5, one.shape[2]), np.nan, np.float32) for one in names}
        return state, self.obs

    def step(self, state, action, noise):
        names = [one.name for one in self.session.get_outputs()]
        given = {"observation": self.obs.numpy(), "start": self.start, **self.memory}
        found = dict(zip(names, self.session.run(None, given), strict=True))
        self.memory = {name: found[f"{name}_after"] for name in self.memory}
        self.asked += 1
        state, step = self.env.step(state, torch.from_numpy(found["action"]), noise)
        self.obs, done = step.obs, (step.terminated | step.truncated).numpy()
        self.start, self.ended = self.ended, done
        return state, step


def test_where_and_which_can_be_said(folder, tmp_path, capsys):
    target = tmp_path / "mine.onnx"
    assert cli.main(["export", str(folder), "--checkpoint", "latest", "--to", str(target)]) == 0
    assert target.is_file()
    assert "step_" in capsys.readouterr().out
    assert cli.main(["export", str(folder), "--checkpoint", "nothing"]) == 2
    assert "neither best nor latest" in capsys.readouterr().err


def test_an_agent_that_differs_is_told(folder, monkeypatch, capsys):
    from quantail import export

    monkeypatch.setattr(export, "difference", lambda *_: 2e-5)
    assert cli.main(["export", str(folder)]) == 1
    assert "DIFFERS from torch, largest difference 2.0e-05" in capsys.readouterr().out
