"""Gymnasium's own examination of the environment."""

import warnings
from typing import Any

from gymnasium.utils.env_checker import check_env

from quantail.audit.subject import Subject, seen
from quantail.market.single import SingleMarket
from quantail.market.terms import Episode
from quantail.monitor.install import Check

NAME = "check_env"


def gymnasium_contract(subject: Subject) -> Check:
    """`check_env` raises nothing, and warns of nothing but limits that a space does not have."""
    bars = subject.bars.to("cpu")
    terms: dict[str, Any] = {"costs": subject.costs, "rules": subject.rules, "reward": subject.reward}
    env = SingleMarket(bars, features=seen(subject, bars), **terms, episode=Episode(min(64, len(bars) // 4)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:  # it asserts, and lets through what the environment raises
            return Check(NAME, False, (str(error).splitlines() or [type(error).__name__])[0], "no error")
    told = [str(one.message).splitlines()[0] for one in said if not advice(str(one.message))]
    if told:
        return Check(NAME, False, told[0], "no warning")
    return Check(NAME, True, "Gymnasium's check_env has nothing to say", "")


def advice(message: str) -> bool:
    """Features have no limits, nor have the numbers that a softmax makes weights of: Gymnasium's word on that is no fault."""
    return "infinity" in message or "we recommend using a symmetric" in message
