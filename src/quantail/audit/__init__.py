"""Seven questions to bars, features and rules whose answers are known: does something leak, does the money add up?

Nothing here judges a strategy. A market that fails one of them can make any strategy look good.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace

from quantail.audit import accounts, contract, leaks, learning
from quantail.audit.subject import Subject
from quantail.errors import QuantailError
from quantail.monitor.install import Check

Question = Callable[[Subject], Check]

QUESTIONS: tuple[tuple[str, Question], ...] = (
    ("prefix invariance", leaks.prefix),
    ("future scramble", leaks.scramble),
    ("one-bar lag", leaks.lag),
    ("oracle feature", learning.oracle),
    ("null market", accounts.null_market),
    ("invariances", accounts.invariances),
    ("check_env", contract.gymnasium_contract),
)


def audit(subject: Subject, told: Callable[[Check], None] = lambda check: None) -> list[Check]:
    """Ask all seven; a question that cannot be answered has failed, and the others are asked all the same."""
    checks = []
    for name, question in QUESTIONS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a fill that nobody can have is asked for on purpose, if at all
                check = question(subject)
        except QuantailError as error:
            check = Check(name, False, str(error), "an answer")
        check = replace(check, needed="" if check.ok else check.needed)
        told(check)
        checks.append(check)
    return checks
