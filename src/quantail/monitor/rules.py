"""What may be wrong with a run: a table of rules, with what each usually means and what to do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quantail.monitor import looks
from quantail.monitor.looks import STILL, Look, above, below

BROKEN, WARNING, NOTE = "broken", "warning", "note"  # nothing is learned | it goes wrong | worth knowing
GRAVITIES = (BROKEN, WARNING, NOTE)


class Rule(NamedTuple):
    """One thing that may be wrong."""

    name: str
    gravity: str
    patience: int  # iterations in a row before it is said
    look: Look
    means: str  # usually
    advice: str  # settings are named as in config.yaml
    told: str = ""  # a pattern of what the loop itself says about this in an iteration's findings


def described(rules: Sequence[Rule]) -> dict[str, Rule]:
    """By name."""
    return {rule.name: rule for rule in rules}


RULES: Mapping[str, Rule] = described(
    (
        Rule(
            *("no step", BROKEN, 1, looks.no_step),
            "every loss or gradient was not finite: nothing is learned",
            "look at the tensor that the finding names; lower optim.learning_rate; go on from the last good checkpoint",
        ),
        Rule(
            *("void steps", WARNING, 1, looks.nothing),
            "a loss or gradient was not finite in some mini-batches; the weights did not move there",
            "look at the tensor that is named; lower optim.learning_rate; check the data behind extreme rewards",
            told="optimizer steps changed nothing",
        ),
        Rule(
            *("broken input", BROKEN, 10, looks.not_finite),
            "the environment keeps giving numbers that are not finite: those environments teach nothing",
            "look at the data it plays (missing prices, a division by zero) before training goes on",
        ),
        Rule(
            *("odd input", WARNING, 1, looks.nothing),
            "the environment gave a number that is not finite; that environment weighs nothing until its next start",
            "look at the data it plays: missing prices, a division by zero, a log of something negative",
            told=r"was not finite in environments",
        ),
        Rule(
            *("odd figures", NOTE, 1, above("health/not_finite_info", 0, "{:g} reported figures were not finite")),
            "the environment reports a figure that cannot be averaged; training does not read it",
            "look at what the environment puts into its infos",
        ),
        Rule(
            *("blind critic", WARNING, 20, below("train/explained_variance", -0.02, "explained variance is {:.2f}")),
            "the critic predicts worse than one constant would: advantages are noise plus its error",
            "raise critic.vf_coef or ppo.n_epochs; check critic.normalize_returns=true and the rewards' scale; lower ppo.gamma",
        ),
        Rule(
            *("wild critic", WARNING, 5, below("train/explained_variance", -1.0, "explained variance is {:.2g}")),
            "the critic's errors are larger than what it should explain; it diverges, or the rewards have changed",
            "lower optim.learning_rate; set critic.clip=mean_only; check critic.normalize_returns=true",
        ),
        Rule(
            *("dead critic", BROKEN, 3, looks.dead_critic),
            "a critic gets no gradient: its units are saturated, or something holds its parameters",
            "look for extreme rewards; lower optim.learning_rate; set net.activation=elu; begin anew",
        ),
        Rule(
            *("parted twins", BROKEN, 3, looks.twins),
            "one critic learns and the other does not: their mean is worth little",
            "lower optim.learning_rate, or train one critic with critic.twin=false; begin anew",
        ),
        Rule(
            *("quarrelling twins", WARNING, 10, looks.disagreement),
            "the two critics have not seen enough to agree: values are uncertain by more than the returns vary",
            "give them more rows (ppo.n_steps) or passes (ppo.n_epochs); lower optim.learning_rate",
        ),
        Rule(
            *("no gradient", BROKEN, 3, below("optim/grad_norm", STILL, "the gradient's norm is {:.1g}")),
            "nothing is learned: rewards are constant, rows weigh nothing, or units are saturated",
            "look at policy/advantage_raw_std and critic/return_std; check the rewards and the no-trade mask",
        ),
        Rule(
            *("clipped away", WARNING, 5, looks.clipped_away),
            "the loss is steep: nearly all of each gradient is clipped, and single rows rule its direction",
            "set critic.normalize_returns=true and input.normalize_observations=true; look for extreme rewards",
        ),
        Rule(
            *("no advantage", WARNING, 5, looks.no_signal),
            "no action was better than another, so the policy is not taught anything",
            "check that the reward depends on the action, and comes within ppo.n_steps of it",
        ),
        Rule(
            *("runaway policy", WARNING, 3, above("train/approx_kl", 0.1, "an update moves the policy by a KL of {:.2g}")),
            "steps are too large: the surrogate is only true near the old policy",
            "set kl.target=0.02; lower optim.learning_rate or ppo.n_epochs",
        ),
        Rule(
            *("clipped policy", WARNING, 5, above("train/clip_fraction", 0.5, "{:.0%} of the rows are clipped")),
            "most rows no longer teach the policy, because it has moved beyond the clip range",
            "lower optim.learning_rate or ppo.n_epochs; set kl.target=0.02",
        ),
        Rule(
            *("clamped ratios", WARNING, 1, above("policy/log_ratio_clamped", 0.01, "{:.1%} of the log-ratios were clamped")),
            "new and old policy have nothing in common on these rows",
            "set kl.target=0.02; lower optim.learning_rate; keep the deviation up with entropy.coef",
            told="of the log-ratios were clamped",
        ),
        Rule(
            *("odd ratios", WARNING, 1, looks.nothing),
            "a log-probability overflowed: the policy's deviation is all but 0, or an action lies far outside",
            "raise entropy.coef; lower optim.learning_rate; look at train/std",
            told="log-ratios were not finite",
        ),
        Rule(
            *("still policy", NOTE, 10, looks.standing_still),
            "the policy no longer changes: it is certain everywhere, or advantages are too small",
            "nothing, if the task is solved; else raise entropy.coef or optim.learning_rate",
        ),
        Rule(
            *("entropy collapse", WARNING, 1, looks.collapse),
            "the policy has become certain within a few updates, mostly of the first thing that paid",
            "begin anew with entropy.coef=0.01 or more, a lower optim.learning_rate, and kl.target=0.02",
        ),
        Rule(
            *("no exploration", NOTE, 10, looks.no_exploration),
            "the policy tries nothing new, so it will not learn anything new",
            "nothing, if the task is solved; else begin anew with a larger entropy.coef and entropy.floor",
        ),
        Rule(
            *("one action", WARNING, 10, above("policy/action_top_share", 0.99, "{:.1%} of all actions are the same")),
            "the agent does the same whatever it sees: mostly nothing at all, where acting costs",
            "check costs against the reward's size; raise entropy.coef; look whether observations reach it (norm/obs_drift)",
        ),
        Rule(
            *("at the bounds", WARNING, 10, above("policy/action_at_bound", 0.95, "{:.0%} of the actions lie on a bound")),
            "the policy only knows all or nothing; beyond the bounds its gradient says nothing about what happens",
            "set net.squash=tanh; lower net.log_std_init; check the size of rewards against costs",
        ),
        Rule(
            *("drifting scale", WARNING, 1, looks.scale_drift),
            "returns grow or shrink faster than the critic can follow: rewards are not stationary, or it diverges",
            "reward log-returns rather than money; lower ppo.gamma; raise critic.return_rate if it is real",
        ),
        Rule(
            *("drifting observations", WARNING, 5, looks.obs_drift),
            "the agent now sees what it has not seen before: features that grow without bound, or a new part of the data",
            "use returns and ratios rather than prices; check input.normalize_observations=true",
        ),
        Rule(
            *(
                "outgrown atoms",
                WARNING,
                5,
                above("critic/outside_support", 0.05, "{:.1%} of the targets lie beyond the atoms"),
            ),
            "a categorical critic cannot say how bad the tail is beyond its last atom",
            "raise critic.support_width, or use critic.kind=quantile",
        ),
        Rule(
            *("full memory", WARNING, 10, above("memory/full", 0.5, "{:.0%} of the memory's cells are at their limit")),
            "the memory holds on to what it has and takes in nothing new",
            "lower optim.learning_rate; train on shorter episodes; set net.memory=gru or mingru",
        ),
        Rule(
            *("few tail samples", WARNING, 20, below("risk/tail_samples", 10, "{:.2g} outcomes carry the tail's mean")),
            "the CVaR that drives the policy is mostly luck",
            "train with more environments; choose a larger risk.alpha, or a shorter risk.horizon",
            told="outcomes carry the worst",
        ),
        Rule(
            *("missed limit", WARNING, 50, looks.limit_missed),
            "the limit on risk is not kept: it is out of reach, or its price rises too slowly",
            "lower risk.limit (a loss of at most 5 is -5), or raise risk.ki and risk.cap",
            told="is out of reach",
        ),
        Rule(
            *("nothing judged", WARNING, 1, looks.nothing),
            "episodes last longer than an evaluation, so that no best checkpoint is kept",
            "raise run.evaluate_rows, or set run.judge to step",
            told="so nothing was judged",
        ),
        Rule(
            *("no episode", NOTE, 50, looks.no_episode),
            "returns of episodes are not known, because none has ended",
            "nothing, if episodes are long; else look for a missing end, and at ppo.n_steps",
        ),
    )
)
