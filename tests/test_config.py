"""Settings refuse nonsense at construction, and go to plain values and back without loss."""

import dataclasses
import json

import pytest

from quantail.config import (
    CloneConfig,
    Config,
    CriticConfig,
    EntropyConfig,
    EnvConfig,
    InputConfig,
    KlConfig,
    KlRateConfig,
    NetConfig,
    OptimConfig,
    PpoConfig,
    RunConfig,
    ScheduleConfig,
    UpgdConfig,
    VarianceConfig,
)
from quantail.errors import ConfigError

REFUSED = [
    (NetConfig, {"encoder_sizes": (64, 0)}),
    (NetConfig, {"encoder_sizes": [64]}),
    (NetConfig, {"memory": "transformer"}),
    (NetConfig, {"hidden": 0}),
    (NetConfig, {"layers": 1.5}),
    (NetConfig, {"dropout": 1.0}),
    (NetConfig, {"trunks": "both"}),
    (NetConfig, {"trunks": "shared", "critic_memory": False}),
    (NetConfig, {"critic_moves_trunk": False}),
    (NetConfig, {"actor_sizes": (0,)}),
    (NetConfig, {"critic_sizes": (0,)}),
    (NetConfig, {"activation": "tan"}),
    (NetConfig, {"squash": "softsign"}),
    (NetConfig, {"log_std_init": float("nan")}),
    (CriticConfig, {"kind": "c51"}),
    (CriticConfig, {"atoms": 0}),
    (CriticConfig, {"kind": "categorical", "atoms": 1}),
    (CriticConfig, {"levels": "head"}),
    (CriticConfig, {"twin_reduce": "max"}),
    (CriticConfig, {"kappa": -0.1}),
    (CriticConfig, {"targets": "td"}),
    (CriticConfig, {"particles": 0}),
    (CriticConfig, {"support_width": 0.0}),
    (CriticConfig, {"vf_coef": -1.0}),
    (CriticConfig, {"return_rate": 0.0}),
    (CriticConfig, {"kind": "categorical", "atoms": 0}),
    (CriticConfig, {"kind": "scalar", "atoms": -1}),
    (CriticConfig, {"noncrossing": True, "sorting": True}),
    (CriticConfig, {"return_window": -1}),
    (CriticConfig, {"return_max_step": 0.0}),
    (CriticConfig, {"return_freeze": -1}),
    (CriticConfig, {"return_freeze": 3, "return_thaw": -1}),
    (CriticConfig, {"return_thaw": 2}),
    (CriticConfig, {"ret_clip": 0.0}),
    (CriticConfig, {"ret_clip": -1.0}),
    (CriticConfig, {"ret_clip": float("inf")}),
    (CriticConfig, {"clip": "mean"}),
    (CriticConfig, {"clip_radius": 0.0}),
    (CriticConfig, {"clip_variance_factor": 0.9}),
    (CriticConfig, {"clip_warmup": -1}),
    (CriticConfig, {"clip_explained": 1.1}),
    (ScheduleConfig, {"kind": "step"}),
    (ScheduleConfig, {"floor": -1e-6}),
    (ScheduleConfig, {"warmup": 1.0}),
    (ScheduleConfig, {"warmup_start": 1.1}),
    (ScheduleConfig, {"cycle_peak": 0.0}),
    (ScheduleConfig, {"cycle_start": -0.1}),
    (KlRateConfig, {"factor": 0.9}),
    (KlRateConfig, {"band": 0.9}),
    (KlRateConfig, {"limit": 0.9}),
    (UpgdConfig, {"utility_beta": 1.0}),
    (UpgdConfig, {"gate": "relu"}),
    (UpgdConfig, {"strength": -1.0}),
    (UpgdConfig, {"scale": "layer"}),
    (UpgdConfig, {"normaliser": "paper"}),
    (UpgdConfig, {"sigma": -1.0}),
    (UpgdConfig, {"noise": "none"}),
    (VarianceConfig, {"estimator": "on"}),
    (VarianceConfig, {"apply_to": "rate"}),
    (VarianceConfig, {"alpha": -1.0}),
    (VarianceConfig, {"decay": 1.0}),
    (VarianceConfig, {"warmup": -1}),
    (VarianceConfig, {"floor": 0.0}),
    (VarianceConfig, {"cap": 0.0}),
    (OptimConfig, {"critic_learning_rate": -1.0}),
    (OptimConfig, {"beta1": 1.0}),
    (OptimConfig, {"beta2": -0.1}),
    (OptimConfig, {"name": "adamax"}),
    (OptimConfig, {"learning_rate": 0.0}),
    (OptimConfig, {"eps": 0.0}),
    (OptimConfig, {"weight_decay": -0.1}),
    (OptimConfig, {"max_grad_norm": float("inf")}),
    (OptimConfig, {"patience": 0}),
    (PpoConfig, {"n_steps": 0}),
    (PpoConfig, {"n_epochs": 0}),
    (PpoConfig, {"batch_size": 0}),
    (PpoConfig, {"micro_batches": 0}),
    (PpoConfig, {"burn_in": -1}),
    (PpoConfig, {"gamma": 1.01}),
    (PpoConfig, {"gae_lambda": -0.1}),
    (PpoConfig, {"clip_range": 0.0}),
    (PpoConfig, {"clip_start": 0.3}),
    (PpoConfig, {"clip_warmup": 3}),
    (PpoConfig, {"clip_start": -0.3, "clip_warmup": 3}),
    (PpoConfig, {"normalize_advantage": "batch"}),
    (PpoConfig, {"log_ratio_clamp": "soft"}),
    (KlConfig, {"target": 0.0}),
    (KlConfig, {"absolute_factor": 0.0}),
    (KlConfig, {"consecutive": -1}),
    (KlConfig, {"fraction": 1.1}),
    (KlConfig, {"smoothing": 1.0}),
    (KlConfig, {"target": 0.1, "epoch_decay": 0.0}),
    (KlConfig, {"consecutive": 2}),
    (KlConfig, {"fraction": 0.5}),
    (KlConfig, {"epoch_decay": 0.5}),
    (KlConfig, {"penalty": 2.0}),
    (KlConfig, {"penalty_max": -1.0}),
    (KlConfig, {"penalty_kp": 0.1}),
    (KlConfig, {"target": 0.1, "penalty_ki": -0.1}),
    (KlConfig, {"target": 0.1, "penalty_kd": -0.1}),
    (EntropyConfig, {"coef": -1.0}),
    (EntropyConfig, {"final": 0.0}),
    (EntropyConfig, {"final": -1.0, "decay_iterations": 5}),
    (EntropyConfig, {"floor": -1.0}),
    (EntropyConfig, {"floor": 0.1}),
    (EntropyConfig, {"plateau_window": 1}),
    (EntropyConfig, {"plateau_tolerance": -1.0}),
    (EntropyConfig, {"boost_factor": 0.5}),
    (EntropyConfig, {"boost_patience": -1}),
    (EntropyConfig, {"boost_cap": 0.5}),
    (CloneConfig, {"coef": -1.0}),
    (CloneConfig, {"final": -1.0}),
    (CloneConfig, {"warmup_steps": -1}),
    (CloneConfig, {"decay_steps": -1}),
    (CloneConfig, {"beta": 0.0}),
    (CloneConfig, {"max_weight": 0.0}),
    (InputConfig, {"clip_observations": 0.0}),
    (InputConfig, {"reward_scale": 0.0}),
    (RunConfig, {"save_every": 0}),
    (RunConfig, {"keep": 0}),
    (RunConfig, {"evaluate_every": -1}),
    (RunConfig, {"evaluate_rows": 0}),
    (RunConfig, {"evaluate_envs": 0}),
    (RunConfig, {"evaluate_seed": -1}),
    (RunConfig, {"judge": "episodes"}),
    (RunConfig, {"patience": -1}),
    (RunConfig, {"patience": 3}),
    (RunConfig, {"sinks": ("jsonl", "paper")}),
    (RunConfig, {"threads": 0}),
    (RunConfig, {"threads": "all"}),
    (Config, {"seed": -1}),
    (Config, {"total_timesteps": 0}),
]
EVERY = Config(
    seed=3,
    net=NetConfig(encoder_sizes=(5, 7), actor_sizes=(), dropout=0.1),
    kl=KlConfig(target=0.02, penalty=0.5, penalty_ki=0.1),
    optim=OptimConfig(schedule=ScheduleConfig("cosine", 1e-5), max_grad_norm=None),
    env=EnvConfig(id="quantail/TMaze", options={"length": 7, "slip": 0.5, "wide": True, "name": "off"}, pnl="gain"),
    run=RunConfig(evaluate_every=2, sinks=("jsonl",)),
)


@pytest.mark.parametrize(("kind", "values"), REFUSED, ids=lambda x: x.__name__ if isinstance(x, type) else "-".join(x))
def test_nonsense_is_refused_and_named(kind, values):
    with pytest.raises(ConfigError, match="|".join(values)):
        kind(**values)


def test_every_setting_is_refused_somewhere():
    """Flags have no wrong value; every other setting has one in the table."""
    for kind in {kind for kind, _ in REFUSED}:
        plain = {one.name for one in dataclasses.fields(kind) if one.type not in ("bool", bool)}
        nested = {one.name for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING}
        assert plain - nested <= {name for other, values in REFUSED if other is kind for name in values} | {"decay_iterations"}


def test_what_one_part_asks_of_another():
    noisy = OptimConfig(variance=VarianceConfig("two_batch"))
    with pytest.raises(ConfigError, match=r"two_batch compares micro-batches and ppo\.micro_batches=1; set it to 2"):
        Config(optim=noisy)
    assert Config(optim=noisy, ppo=PpoConfig(micro_batches=2)).optim is noisy
    steered = OptimConfig(kl_rate=KlRateConfig(1.5))
    with pytest.raises(ConfigError, match=r"kl\.target, which is not set"):
        Config(optim=steered)
    assert Config(optim=steered, kl=KlConfig(target=0.01)).optim is steered


@pytest.mark.parametrize(("kind", "size"), [("scalar", 1), ("quantile", 32), ("categorical", 101)])
def test_a_critic_says_as_many_numbers_as_its_kind_needs(kind, size):
    assert CriticConfig(kind=kind).size == size
    assert CriticConfig(kind=kind, atoms=7).size == (1 if kind == "scalar" else 7)


def test_there_and_back():
    assert Config.from_dict(EVERY.to_dict()) == EVERY
    assert Config.from_dict(json.loads(json.dumps(EVERY.to_dict()))) == EVERY
    assert Config.from_dict({}) == Config()


def test_options_keep_their_types():
    plain = {"env": {"options": {"whole": 1, "real": 1.0, "flag": True, "word": "1"}}}
    options = Config.from_dict(plain).env.options
    assert [(name, type(value)) for name, value in options.items()] == [
        ("whole", int),
        ("real", float),
        ("flag", bool),
        ("word", str),
    ]


def test_whole_numbers_stand_for_real_ones():
    assert Config.from_dict({"critic": {"kappa": 0}}).critic.kappa == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sede": 1}, "sede is no setting; did you mean seed"),
        ({"env": {"options": {"a": [1]}}}, r"env.options.a=\[1\] is list; needs bool or int or float or str"),
        ({"env": {"options": {3: 1}}}, "env.options has the name 3, which is int; needs text"),
        ({"env": {"options": 3}}, "env.options=3 is int; needs"),
        ({"env": {"num_envs": 0}}, "num_envs=0; needs a whole number"),
        ({"ppo": {"gama": 0.9}}, "ppo.gama is no setting; did you mean ppo.gamma"),
        ({"ppo": {"gamma": "0.9"}}, "ppo.gamma='0.9' is str; needs float"),
        ({"ppo": {"n_steps": True}}, "ppo.n_steps=True is bool; needs int"),
        ({"ppo": {"n_steps": 2.5}}, "ppo.n_steps=2.5 is float; needs int"),
        ({"critic": {"twin": 1}}, "critic.twin=1 is int; needs bool"),
        ({"net": {"encoder_sizes": [64, "a"]}}, r"net.encoder_sizes\[1\]='a' is str; needs int"),
        ({"net": 7}, "net is 7; needs a mapping"),
        ({"optim": {"schedule": {"kind": "linaer"}}}, "did you mean linear"),
    ],
)
def test_a_wrong_key_or_type_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict(values)
