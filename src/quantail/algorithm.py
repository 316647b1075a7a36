"""`DistributionalPPO`: training with the names, defaults and habits of sb3-contrib's RecurrentPPO; change one import."""

import math
import operator
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch

from quantail.checkpoint import RUNNING, restore, sb3
from quantail.config import Config
from quantail.envs.crossing import written
from quantail.errors import ConfigError
from quantail.evaluation import act
from quantail.face import answers, files, migrate, parameters, sources
from quantail.face.arguments import NAMES, Arguments
from quantail.face.callbacks import callback_of
from quantail.face.given import Derived, Given, Scheduled, Setting
from quantail.face.log import Logs, logger_for
from quantail.face.mapping import config_of
from quantail.face.session import Ledger, Session
from quantail.face.vec import Vec, take_for_vec_env
from quantail.loop import Progress, Report, begin
from quantail.monitor.install import examine
from quantail.nets.agent import Agent
from quantail.streams import Stream, generator, normal, uniform


class DistributionalPPO:
    """A recurrent PPO that learns the law of the return, with RecurrentPPO's keywords.

    env: a Gymnasium id, Env or VectorEnv, a function that makes an Env, a VecEnv of stable-baselines3, or a TensorEnv. What has
    no keyword there is in `config`; a keyword that is not at its default stands above it. `docs/from_sb3.md` says what differs.
    """

    policy_kwargs, seed, sde_sample_freq, stats_window_size, tensorboard_log, verbose = (Given() for _ in range(6))
    learning_rate, clip_range = Scheduled(lambda c: c.optim.learning_rate), Scheduled(lambda c: c.ppo.clip_range)
    n_steps, n_epochs = Setting(lambda c: c.ppo.n_steps), Setting(lambda c: c.ppo.n_epochs)
    batch_size, max_grad_norm = Setting(lambda c: c.ppo.batch_size), Setting(lambda c: c.optim.max_grad_norm)
    gamma, gae_lambda = Setting(lambda c: c.ppo.gamma), Setting(lambda c: c.ppo.gae_lambda)
    ent_coef, vf_coef = Setting(lambda c: c.entropy.coef), Setting(lambda c: c.critic.vf_coef)
    use_sde, target_kl = Setting(lambda c: c.net.gsde), Setting(lambda c: c.kl.target)
    clip_range_vf = Setting(lambda c: None if c.critic.clip == "off" else c.critic.clip_radius)
    normalize_advantage = Setting(lambda c: c.ppo.normalize_advantage != "off")
    env, n_envs = Derived(lambda m: m.get_env()), Derived(lambda m: m.source.env.num_envs)
    ep_info_buffer, ep_success_buffer = Derived(lambda m: m.ledger.episodes), Derived(lambda m: m.ledger.successes)
    observation_space, action_space = Derived(lambda m: m.source.spaces[0]), Derived(lambda m: m.source.spaces[1])

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 3e-4,
        n_steps: int = 128,
        batch_size: int | None = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: Any = 0.2,
        clip_range_vf: float | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        config: Config | None = None,
    ) -> None:
        arguments = Arguments(**{name: value for name, value in locals().items() if name in NAMES})
        if not _init_setup_model:
            raise ConfigError("_init_setup_model=False leaves a model without networks; leave it out")
        source = sources.source_of(env, device)
        self._set_up(arguments, source, config_of(arguments, source, config))

    def _set_up(self, arguments: Arguments, source: sources.Source, config: Config) -> None:
        self.arguments, self.config, self.source = arguments, config, source
        absent = sources.Absent.like(source.env)
        self.progress: Progress = begin(config, absent)
        self.num_timesteps, self.in_step = 0, False  # whether the carry belongs to the environments as they stand
        self.ledger = Ledger(arguments.stats_window_size, 0)
        self.own_logger: Logs | None = None
        self.chosen_logger: Logs | None = None
        self.draws = generator(config.seed, Stream.PLAY_ACT, 1, source.env.device)
        self.attention = answers.Attention()
        self.missing: tuple[str, ...] = ()  # schedules that a file could not hold

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: float,
        callback: Any = None,
        log_interval: int | None = 1,
        tb_log_name: str = "DistributionalPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for so many steps, or so many more; whole rollouts, so it may be some more still."""
        if self.source.vec is None:
            raise ConfigError("there is no environment to train in; call set_env(env) first, or load(path, env=env)")
        for name in self.missing:
            raise ConfigError(f"{name} was a function when this was saved, which no file can hold; load(path, {name}=...)")
        total = math.ceil(total_timesteps) + (0 if reset_num_timesteps else self.num_timesteps)
        if reset_num_timesteps:
            self.ledger = Ledger(self.arguments.stats_window_size, 0)
        self.ledger.restart(total - math.ceil(total_timesteps))
        self._enter(total, reset_num_timesteps)
        if self.chosen_logger is None:
            self.own_logger = logger_for(self.verbose, self.tensorboard_log, tb_log_name, reset_num_timesteps)
        scope = {"self": self, "total_timesteps": total, "callback": callback, "log_interval": log_interval}
        scope |= {"tb_log_name": tb_log_name, "reset_num_timesteps": reset_num_timesteps, "progress_bar": progress_bar}
        whole = callback_of(callback, progress_bar)
        if whole is not None:
            self.get_env()  # where it has to pass for a VecEnv, it does from here on
            whole.init_callback(self)
            whole.on_training_start(scope, globals())
        Session(self, total, whole, log_interval).run()
        return self

    def _enter(self, total: int, anew: bool) -> None:
        """Counters, config and, unless the carry goes on where it was, environments just reset."""
        self.num_timesteps = 0 if anew else self.num_timesteps
        self.config = replace(self.config, total_timesteps=max(total, 1))
        carry = self.progress.carry
        if anew or not self.in_step:
            fresh = begin(self.config, self.source.env, self.policy, carry.iteration).carry
            carry = carry._replace(**{name: getattr(fresh, name) for name in RUNNING})
        self.progress = self.progress._replace(carry=carry, env_steps=self.num_timesteps)
        self.in_step = True

    def leave(self) -> None:
        """A rollout begins: the environments move on, and the carry does not until it is learned from."""
        self.in_step = False

    def take(self, report: Report) -> None:
        """An iteration is done."""
        self.progress, self.num_timesteps, self.in_step = report.progress, report.env_steps, True

    # --- playing ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        observation: Any,
        state: tuple[Any, ...] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[Any, ...] | None]:
        """Actions for observations, and the state to pass on; one observation without a batch axis has one action.

        A recurrent policy needs the state it returned before, and `episode_start` where an episode begins. `deterministic`
        takes the likeliest action, else one is drawn. Actions in a Box lie within its bounds.
        """
        agent, carry = self.policy, self.progress.carry
        question = answers.asked(observation, state, episode_start, self.observation_space, self.source.ports[0], agent)
        if question.memory and self.attention.lapses(state, episode_start):
            warnings.warn(answers.FORGOTTEN, stacklevel=2)
        draw = uniform if agent.policy.noise_kind == "uniform" else normal
        noise = None if deterministic else draw((len(question.start), agent.policy.noise_dim), self.draws)
        mask = answers.mask_for(self.source.env.action_space, action_masks, self.device)
        known = question.obs, question.memory, question.start, carry.obs_moments
        action, after = act(agent, *known, self.config, noise, mask)
        actions = written(self.source.ports[1], action).reshape(-1, *self.action_space.shape)
        states = tuple(part.cpu().numpy() for part in after) if after else state
        return (actions.squeeze(axis=0) if question.single else actions), states

    def distribution(self, obs: Any, state: tuple[Any, ...] | None = None, episode_start: Any = None) -> answers.Distribution:
        """The law of the discounted return from each observation on: its `mean`, `quantile(u)` and `cvar(alpha)`."""
        agent, carry = self.policy, self.progress.carry
        question = answers.asked(obs, state, episode_start, self.observation_space, self.source.ports[0], agent)
        return answers.law_ahead(agent, question, carry.obs_moments, carry.scale, self.config)

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: Any, exclude: Any = None, include: Any = None) -> None:
        """Into one file, whole or not at all: weights, optimizer, normalisers, controllers, counters. `.zip` if no suffix."""
        if exclude or include:
            raise ConfigError("exclude and include cannot be honoured: a file holds what a resume needs, no more and no less")
        files.save(path, self.progress, self.config, self.source, self.arguments, self.num_timesteps)

    @classmethod
    def load(
        cls,
        path: Any,
        env: Any = None,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A new model from a file, also of a run; without an environment it can predict, and be given one by `set_env`.

        custom_objects and further keywords of the constructor stand above those of the file. force_reset: whether new episodes
        begin; if nothing is said, a TensorEnv goes on exactly where it was and everything else begins anew.
        """
        if print_system_info:
            sys.stdout.write("".join(f"{check.name}: {check.seen}\n" for check in examine()))
        loaded = files.load(path, env, device, {**(custom_objects or {}), **kwargs})
        model = cls.__new__(cls)
        model._set_up(loaded.arguments, loaded.source, loaded.config)
        model.progress = restore(loaded.checkpoint, loaded.source.env, loaded.config, model.policy)
        model.num_timesteps, model.missing = loaded.num_timesteps, loaded.missing
        model.in_step = env is not None and not force_reset
        return model

    @classmethod
    def from_sb3(cls, path: Any, env: Any, policy: Any = None, **kwargs: Any) -> Self:
        """A new model with the weights of a file of stable-baselines3 or sb3-contrib, of which only tensors are read.

        The actor acts as it did there, on observations as `env` gives them: they are not normalised here, so wrap it as it was
        wrapped. Policy and shape are those of the weights; everything else, such as `activation_fn`, has to be said again.
        """
        weights = sb3.read_weights(path)
        model = cls(env=env, **migrate.keywords_of(weights, {"policy": policy, **kwargs}))
        seen = replace(model.config, input=replace(model.config.input, normalize_observations=False))
        model._set_up(model.arguments, model.source, seen)
        if not sb3.import_weights(weights, model.policy):  # its critics speak in the rewards' own units: nothing to find out
            model.progress = model.progress._replace(carry=model.progress.carry._replace(iteration=1))
        return model

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Weights, optimizer and what normalises observations and returns, by name."""
        return parameters.parameters_of(self.progress)

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto") -> None:
        """Those of another model, or of a file; `exact_match` refuses missing ones. They go to the model's own device."""
        given = load_path_or_dict
        if not isinstance(given, Mapping):
            given = parameters.parameters_of(restore(files.read(given), sources.Absent.like(self.source.env)))
        self.progress = parameters.with_parameters(self.progress, given, exact_match)

    # --- environment, logger, seed ------------------------------------------------------------------------------------

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Train in another environment of the same spaces, and as many of them."""
        source = sources.source_of(env, self.device)
        assert source.env.num_envs == self.n_envs, (
            "The number of environments to be set is different from the number of environments in the model: "
            f"({source.env.num_envs} != {self.n_envs}); use load(path, env) for another number"
        )
        sources.check_spaces(self.source.spaces, source.spaces)
        self.source, self.in_step = source, self.in_step and not force_reset

    def get_env(self) -> Any:
        """The environments as a VecEnv: those given, or something of that shape; None without any."""
        if isinstance(self.source.vec, Vec):
            take_for_vec_env(type(self.source.vec))
        return self.source.vec

    def get_vec_normalize_env(self) -> Any:
        """The VecNormalize around the environments, if there is one."""
        return None if self.source.vec is None else sources.vec_normalize(self.source.vec)

    def set_logger(self, logger: Logs) -> None:
        """Log there, whatever `verbose` and `tensorboard_log` say."""
        self.chosen_logger = logger

    @property
    def logger(self) -> Logs:
        """Where figures go: the logger that was set, or that of the last `learn`."""
        if self.chosen_logger is not None:
            return self.chosen_logger
        self.own_logger = self.own_logger or logger_for(self.verbose, None, "", True)
        return self.own_logger

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was recorded, with the episodes and the pace until here."""
        self.ledger.dump(self.logger, self.num_timesteps, iteration)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Draw anew from this seed, environments from their next reset on; no global stream is touched."""
        if seed is not None:
            self.config = replace(self.config, seed=operator.index(seed))
            self.draws = generator(self.config.seed, Stream.PLAY_ACT, 1, self.device)

    @property
    def policy(self) -> Agent:
        """The networks."""
        return self.progress.agent

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.source.env.device
