"""Keywords as settings: each moves its own, none is ignored, and what cannot be honoured is refused in one sentence."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from envs.toys import Spaces
from quantail.algorithm import DistributionalPPO
from quantail.config import Config, NetConfig
from quantail.envs.oracles.cartpole import CartPole
from quantail.errors import ConfigError
from quantail.face.arguments import Arguments
from quantail.optim import UPGD, UPGDW, AdaptiveUPGD

IMAGE = spaces.Box(0, 255, (3, 12, 10), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
SEEN = {"Mlp": VECTOR, "Cnn": IMAGE, "MultiInput": spaces.Dict({"picture": IMAGE, "numbers": VECTOR})}
REAL, CHOICE = spaces.Box(-2.0, 1.0, (2,), np.float32), spaces.Discrete(3, start=4)


def make(policy="MlpLstmPolicy", action=REAL, seen=None, **keywords):
    kind = policy.replace("Lstm", "").replace("Policy", "") if isinstance(policy, str) else "Mlp"
    return DistributionalPPO(policy, Spaces(SEEN.get(kind, VECTOR) if seen is None else seen, action), **keywords)


def at(config, path):
    for name in path.split("."):
        config = getattr(config, name)
    return config


# --- signatures -------------------------------------------------------------------------------------------------------


def test_names_and_defaults_are_those_of_recurrent_ppo():
    contrib = pytest.importorskip("sb3_contrib").RecurrentPPO
    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (DistributionalPPO, contrib))
    assert [*ours] == [*theirs, "config"]
    assert {name: one.default for name, one in ours.items() if name != "config"} == {
        n: one.default for n, one in theirs.items()
    }
    differ = {"learn": {"tb_log_name"}, "load": {"force_reset"}}
    for method in (
        "learn",
        "predict",
        "save",
        "load",
        "set_env",
        "set_parameters",
        "set_logger",
        "set_random_seed",
        "dump_logs",
    ):
        ours, theirs = (inspect.signature(getattr(cls, method)).parameters for cls in (DistributionalPPO, contrib))
        shared = {name: one.default for name, one in ours.items() if name in theirs and name not in differ.get(method, ())}
        expected = {name: one.default for name, one in theirs.items() if name not in differ.get(method, ())}
        assert [*shared] == [*expected]
        assert shared == expected


def test_attributes_say_what_holds_and_cannot_be_set():
    model = make(n_steps=7, gamma=0.5, clip_range_vf=0.3, normalize_advantage=False, use_sde=True, seed=4)
    assert (model.n_steps, model.gamma, model.clip_range_vf, model.normalize_advantage) == (7, 0.5, 0.3, False)
    assert (model.use_sde, model.seed, model.sde_sample_freq, model.verbose) == (True, 4, -1, 0)
    assert (model.batch_size, model.learning_rate, model.policy_kwargs) == (128, 3e-4, None)
    with pytest.raises(AttributeError, match=r"gamma is fixed once the model is made"):
        model.gamma = 0.9
    assert make(config=Config(), clip_range_vf=None).clip_range_vf is None


# --- keywords ---------------------------------------------------------------------------------------------------------

KEYWORDS = [
    ("learning_rate", 1e-3, {"optim.learning_rate": 1e-3}),
    ("learning_rate", lambda left: 2e-3 * left, {"optim.learning_rate": 2e-3}),
    ("n_steps", np.int64(32), {"ppo.n_steps": 32}),
    ("batch_size", 64, {"ppo.batch_size": 64}),
    ("batch_size", None, {"ppo.batch_size": 128}),
    ("n_epochs", 3, {"ppo.n_epochs": 3}),
    ("gamma", 0.9, {"ppo.gamma": 0.9}),
    ("gae_lambda", 0.8, {"ppo.gae_lambda": 0.8}),
    ("clip_range", 0.3, {"ppo.clip_range": 0.3}),
    ("clip_range", lambda left: 0.4 * left, {"ppo.clip_range": 0.4}),
    ("clip_range", lambda left: 1 - left, {"ppo.clip_range": 0.2}),  # starts at nothing: the schedule says so anyway
    ("clip_range_vf", 0.1, {"critic.clip": "mean_only", "critic.clip_radius": 0.1}),
    ("normalize_advantage", False, {"ppo.normalize_advantage": "off"}),
    ("ent_coef", 0.01, {"entropy.coef": 0.01}),
    ("vf_coef", 0.7, {"critic.vf_coef": 0.7}),
    ("max_grad_norm", 2, {"optim.max_grad_norm": 2.0}),
    ("max_grad_norm", None, {"optim.max_grad_norm": None}),
    ("use_sde", True, {"net.gsde": True}),
    ("target_kl", 0.02, {"kl.target": 0.02}),
    ("seed", 9, {"seed": 9}),
]


@pytest.mark.parametrize(("name", "value", "expected"), KEYWORDS)
def test_each_keyword_moves_its_own_settings_and_nothing_else(name, value, expected):
    base, model = make(seed=0), make(**{"seed": 0, name: value})
    config = model.config
    assert {path: at(config, path) for path in expected} == expected
    for path in expected:
        part, _, field = path.rpartition(".")
        old = at(base.config, path)
        config = replace(config, **({part: replace(at(config, part), **{field: old})} if part else {field: old}))
    assert config == base.config
    on_top = make(**{name: value}, config=Config())
    assert {path: at(on_top.config, path) for path in expected if name != "batch_size" or value} == (
        expected if name != "batch_size" or value else {}
    )


def test_every_keyword_is_mapped_or_known_to_say_nothing_about_the_config():
    mapped = {name for name, _, _ in KEYWORDS}
    silent = {"policy", "policy_kwargs", "sde_sample_freq", "stats_window_size", "tensorboard_log", "verbose"}
    assert mapped | silent == set(inspect.signature(Arguments).parameters)


def test_the_defaults_are_those_of_recurrent_ppo():
    config = make().config
    assert (config.ppo.n_steps, config.ppo.batch_size, config.ppo.n_epochs) == (128, 128, 10)
    assert (config.ppo.clip_range, config.ppo.gae_lambda, config.optim.eps, config.kl.target) == (0.2, 0.95, 1e-5, None)
    assert config.net == NetConfig(encoder_sizes=(), hidden=256, actor_sizes=(64, 64), critic_sizes=(64, 64))


def test_a_config_says_what_no_keyword_changes():
    config = Config(seed=5, net=NetConfig(hidden=7), total_timesteps=77)
    assert make(config=config).config == config
    changed = make(config=config, n_steps=9, policy_kwargs={"n_lstm_layers": 2}).config
    assert changed == replace(config, ppo=replace(config.ppo, n_steps=9), net=NetConfig(hidden=7, layers=2))
    whole = make(config=replace(config, ppo=replace(config.ppo, n_steps=11)), batch_size=None)
    assert whole.config.ppo.batch_size == 11


def test_without_a_seed_each_run_has_one_of_its_own_and_remembers_it():
    one, other = make(), make()
    assert one.seed is None
    assert one.config.seed != other.config.seed
    again = make(seed=one.config.seed)
    assert all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), again.policy.parameters(), strict=True))


# --- policies ---------------------------------------------------------------------------------------------------------

NETS = [
    ("MlpLstmPolicy", {"lstm_hidden_size": 32}, {"hidden": 32}),
    ("MlpLstmPolicy", {"n_lstm_layers": 3}, {"layers": 3}),
    ("MlpLstmPolicy", {"lstm_kwargs": {"dropout": 0.5}}, {"dropout": 0.5}),
    ("MlpLstmPolicy", {"shared_lstm": True, "enable_critic_lstm": False}, {"trunks": "shared", "critic_moves_trunk": False}),
    ("MlpLstmPolicy", {"enable_critic_lstm": False}, {"critic_memory": False}),
    ("MlpLstmPolicy", {"enable_critic_lstm": True, "shared_lstm": False}, {}),
    ("MlpLstmPolicy", {"net_arch": [8, 9]}, {"actor_sizes": (8, 9), "critic_sizes": (8, 9)}),
    ("MlpLstmPolicy", {"net_arch": {"pi": [8], "vf": [9, 10]}}, {"actor_sizes": (8,), "critic_sizes": (9, 10)}),
    ("MlpLstmPolicy", {"net_arch": {"vf": [9]}}, {"actor_sizes": (), "critic_sizes": (9,)}),
    ("MlpLstmPolicy", {"net_arch": []}, {"actor_sizes": (), "critic_sizes": ()}),
    ("MlpLstmPolicy", {"net_arch": None}, {}),
    ("MlpLstmPolicy", {"activation_fn": nn.ReLU}, {"activation": "relu"}),
    ("MlpLstmPolicy", {"ortho_init": False}, {"ortho_init": False}),
    ("MlpLstmPolicy", {"log_std_init": -2}, {"log_std_init": -2.0}),
    ("MlpLstmPolicy", {"share_features_extractor": True}, {}),
    ("MlpPolicy", {"share_features_extractor": False}, {}),
    ("MlpPolicy", {"activation_fn": nn.ELU}, {"activation": "elu"}),
    ("CnnPolicy", {"share_features_extractor": False}, {"trunks": "actor_critic"}),
    ("CnnPolicy", {"features_extractor_kwargs": {"features_dim": 33}}, {"encoder_sizes": (33,)}),
    ("CnnLstmPolicy", {"share_features_extractor": False}, {}),
    ("MultiInputLstmPolicy", {"features_extractor_kwargs": {"cnn_output_dim": 34}}, {"encoder_sizes": (34,)}),
]


@pytest.mark.parametrize(("policy", "given", "expected"), NETS)
def test_policy_kwargs_move_the_nets(policy, given, expected):
    base, config = make(policy, seed=0).config, make(policy, seed=0, policy_kwargs=given).config
    assert config == replace(base, net=replace(base.net, **expected))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("MlpPolicy", {"memory": "none", "encoder_sizes": (), "trunks": "actor_critic", "actor_sizes": (64, 64)}),
        ("CnnPolicy", {"memory": "none", "encoder_sizes": (512,), "trunks": "shared", "actor_sizes": ()}),
        ("CnnLstmPolicy", {"memory": "lstm", "encoder_sizes": (512,), "trunks": "actor_critic", "actor_sizes": ()}),
        ("MultiInputPolicy", {"memory": "none", "encoder_sizes": (256,), "actor_sizes": (64, 64)}),
        ("MultiInputLstmPolicy", {"memory": "lstm", "encoder_sizes": (256,), "critic_sizes": (64, 64)}),
    ],
)
def test_every_alias_has_the_nets_of_its_name(policy, expected):
    net = make(policy).config.net
    assert {name: getattr(net, name) for name in expected} == expected


def test_squashed_exploration_and_optimizers():
    assert make(use_sde=True, policy_kwargs={"squash_output": True}).config.net.squash == "tanh"
    for cls, options, expected in (
        (torch.optim.Adam, None, ("adam", 1e-5, 0.0)),
        (torch.optim.Adam, {"weight_decay": 0.1}, ("adam", 1e-8, 0.1)),  # told anything, a plain Adam has torch's own ε there
        (torch.optim.AdamW, None, ("adamw", 1e-8, 0.01)),
        (torch.optim.AdamW, {"eps": 1e-6}, ("adamw", 1e-6, 0.01)),
        (torch.optim.SGD, {"weight_decay": 0.2}, ("sgd", 1e-5, 0.2)),  # which has no ε
        (UPGD, None, ("upgd", 1e-5, 0.0)),
        (UPGDW, {"weight_decay": 0.3}, ("upgdw", 1e-5, 0.3)),
        (AdaptiveUPGD, {"eps": 1e-7}, ("adaptive_upgd", 1e-7, 1e-3)),
    ):
        optim = make(policy_kwargs={"optimizer_class": cls, "optimizer_kwargs": options}).config.optim
        assert (optim.name, optim.eps, optim.weight_decay) == expected
        assert (optim.beta1, optim.beta2) == (0.9, 0.999)
    betas = {"optimizer_kwargs": {"betas": (0.8, 0.95)}}
    for cls in (torch.optim.Adam, torch.optim.AdamW, AdaptiveUPGD):
        optim = make(policy_kwargs={"optimizer_class": cls, **betas}).config.optim
        assert (optim.beta1, optim.beta2) == (0.8, 0.95)


def test_classes_stand_for_their_names():
    contrib = pytest.importorskip("sb3_contrib.ppo_recurrent.policies")
    plain = pytest.importorskip("stable_baselines3.ppo.policies")
    for cls, name in ((contrib.MlpLstmPolicy, "MlpLstmPolicy"), (plain.MlpPolicy, "MlpPolicy")):
        assert make(cls, seed=0).config == make(name, seed=0).config
    assert make(contrib.CnnLstmPolicy, seen=IMAGE, seed=0).config == make("CnnLstmPolicy", seed=0).config
    extractors = pytest.importorskip("stable_baselines3.common.torch_layers")
    named = make(policy_kwargs={"features_extractor_class": extractors.FlattenExtractor}, seed=0)
    assert named.config == make(seed=0).config


# --- refusals ---------------------------------------------------------------------------------------------------------

ASSERTED = [
    ("MlpLstmPolicy", {"shared_lstm": True}, "You must choose between shared LSTM"),
    ("MlpLstmPolicy", {"shared_lstm": True, "enable_critic_lstm": True}, "You must choose between shared LSTM"),
    (
        "MlpLstmPolicy",
        {"shared_lstm": True, "enable_critic_lstm": False, "share_features_extractor": False},
        "If the features extractor is not shared, the LSTM cannot be shared",
    ),
    ("MlpLstmPolicy", {"squash_output": True}, "squash_output=True is only available when using gSDE"),
]


@pytest.mark.parametrize(("policy", "given", "words"), ASSERTED)
def test_invalid_combinations_are_assertions_as_there(policy, given, words):
    contrib = pytest.importorskip("sb3_contrib").RecurrentPPO
    for cls in (DistributionalPPO, contrib):
        with pytest.raises(AssertionError, match=words):
            cls(policy, Spaces(VECTOR, REAL), policy_kwargs=given)


def test_a_value_clip_must_be_positive_as_there():
    contrib = pytest.importorskip("sb3_contrib").RecurrentPPO
    for cls in (DistributionalPPO, contrib):
        with pytest.raises(AssertionError, match="`clip_range_vf` must be positive"):
            cls("MlpLstmPolicy", Spaces(VECTOR, REAL), clip_range_vf=-1.0)
    with pytest.raises(AssertionError, match="CnnLstmPolicy needs images"):
        make("CnnLstmPolicy", seen=VECTOR)


class Custom(nn.Module):
    pass


REFUSED = [
    ({"policy": "MlpLstmPolcy"}, r"Policy MlpLstmPolcy unknown; did you mean 'MlpLstmPolicy'"),
    ({"policy": Custom}, r"policy is Custom; a network of your own cannot be used"),
    ({"policy": "MlpLstmPolicy", "seen": SEEN["MultiInput"]}, "You must use `MultiInputLstmPolicy`"),
    ({"policy": "MlpPolicy", "seen": SEEN["MultiInput"]}, "You must use `MultiInputPolicy`"),
    ({"policy": "MultiInputLstmPolicy", "seen": VECTOR}, "needs a dict observation space.*use MlpLstmPolicy"),
    ({"policy": "MlpPolicy", "config": Config()}, r"MlpPolicy and config.net.memory='lstm' disagree; use 'MlpLstmPolicy'"),
    ({"config": Config(net=NetConfig(memory="none"))}, r"memory='none' disagree; use 'MlpPolicy'"),
    ({"use_sde": True, "action": CHOICE}, "can only be used with continuous actions"),
    ({"use_sde": True, "sde_sample_freq": 4}, "sde_sample_freq=4 would draw new exploration within a rollout"),
    ({"clip_range_vf": lambda left: left}, "the value clip cannot follow a schedule"),
    ({"learning_rate": lambda left: -left}, r"learning_rate\(1.0\) is -1.0"),
    ({"_init_setup_model": False}, "leaves a model without networks"),
    ({"n_steps": 0}, "n_steps=0; needs a whole number"),
    ({"gamma": 1.5}, "gamma=1.5 is outside"),
]
POLICY_KWARGS = [
    ("MlpLstmPolicy", {"lstm_hidden_sizes": 3}, "'lstm_hidden_sizes'.*did you mean 'lstm_hidden_size'"),
    ("MlpLstmPolicy", {"use_sde": True}, "'use_sde', which MlpLstmPolicy does not take"),
    ("MlpPolicy", {"lstm_hidden_size": 3}, "MlpPolicy has no memory; use MlpLstmPolicy"),
    ("MlpLstmPolicy", {"full_std": False}, "full_std=False cannot be honoured"),
    ("MlpLstmPolicy", {"use_expln": True}, "use_expln=True cannot be honoured"),
    ("MlpLstmPolicy", {"normalize_images": False}, "normalize_images=False cannot be honoured"),
    ("CnnLstmPolicy", {"share_features_extractor": True}, "with memories of their own cannot be honoured"),
    ("MlpLstmPolicy", {"lstm_kwargs": {"proj_size": 4}}, "lstm_kwargs proj_size=4 cannot be honoured"),
    ("MlpLstmPolicy", {"net_arch": {"pi": [3], "qf": [4]}}, r"net_arch has \['qf'\]"),
    ("MlpLstmPolicy", {"activation_fn": nn.Softplus}, "activation_fn is .*Softplus.*it can be Tanh, ReLU"),
    ("MlpLstmPolicy", {"optimizer_class": torch.optim.Adagrad}, "optimizer_class is .*Adagrad.*it can be Adam"),
    ("MlpLstmPolicy", {"optimizer_kwargs": {"amsgrad": True}}, "optimizer_kwargs amsgrad=True cannot be honoured; of Adam"),
    (
        "MlpLstmPolicy",
        {"optimizer_class": UPGD, "optimizer_kwargs": {"eps": 1e-3}},
        "eps=0.001 cannot be honoured; of UPGD weight_decay can",
    ),
    ("MlpLstmPolicy", {"features_extractor_class": Custom}, "a network of your own cannot be used"),
    ("CnnLstmPolicy", {"features_extractor_kwargs": {"depth": 2}}, r"features_extractor_kwargs \['depth'\] cannot be honoured"),
]


@pytest.mark.parametrize(("keywords", "words"), REFUSED)
def test_what_cannot_be_honoured_is_refused(keywords, words):
    with pytest.raises(ConfigError, match=words):
        make(**keywords)


def test_a_native_environment_stays_where_it_is():
    with pytest.raises(ConfigError, match="device='cuda', but the environment lives on cpu"):
        DistributionalPPO("MlpLstmPolicy", CartPole(2), device="cuda")


@pytest.mark.parametrize(("policy", "given", "words"), POLICY_KWARGS)
def test_so_are_policy_kwargs(policy, given, words):
    with pytest.raises(ConfigError, match=words):
        make(policy, policy_kwargs=given)


def test_the_old_way_to_write_net_arch_still_works_and_says_so():
    with pytest.warns(UserWarning, match="the old way"):
        model = make(policy_kwargs={"net_arch": [{"pi": [3], "vf": [4]}]})
    assert (model.config.net.actor_sizes, model.config.net.critic_sizes) == ((3,), (4,))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("NoSuchEnv-v0", "Gymnasium cannot make 'NoSuchEnv-v0'"),
        (3, "env is a int; needs a Gymnasium id"),
        (lambda: 4, "env is a int"),
        (Spaces(VECTOR, spaces.Dict({"a": REAL})), "the action space is Dict"),
    ],
)
def test_what_is_no_environment_is_refused(env, words):
    with pytest.raises(ConfigError, match=words):
        DistributionalPPO("MlpLstmPolicy", env)
