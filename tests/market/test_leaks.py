"""The questions that benchmarks/leaks.py asks of every environment, asked of ours."""

import math
import warnings

import pytest

import leaks

ANSWERS = {
    "future": "same",
    "fill": "later",
    "seed": "same",
    "ruin": "terminated, reward -10.00",
    "interest": "100 %",
    "end": "truncated",
    "sum": "equal",
    "check_env": "passes",
}


@pytest.mark.parametrize("question", leaks.QUESTIONS)
def test_our_own_row_of_the_table_is_clean(question):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(-infinity|infinity).*")
        assert leaks.QUESTIONS[question](leaks.Ours()) == ANSWERS[question]


def test_the_questions_see_what_is_wrong():
    """An environment that foresees, fills at the seen close and forgets its seed, made of ours."""

    class Foresees(leaks.Ours):
        def make(self, bars, **options):
            return super().make(bars.shift(-1).ffill(), **options)

    class SeesAndFills(leaks.Ours):
        def make(self, bars, **options):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return super().make(bars, rules=leaks_rules("same_close"), **options)

    class Forgets(leaks.Ours):
        def random_starts(self, bars):
            env = super().random_starts(bars)
            reset, calls = env.reset, []

            def forgetful(seed=None, options=None):
                calls.append(seed)
                return reset(seed=len(calls))

            env.reset = forgetful
            return env

    class Doubles(leaks.Ours):
        def earned(self, rewards, equity):
            says, truth = super().earned(rewards, equity)
            return says + rewards[-1], truth

    assert leaks.future(Foresees()).endswith("differs")
    assert leaks.fill(SeesAndFills()) == "at the close it saw"
    assert leaks.seeds(Forgets()) == "ignored"
    assert " of " in leaks.total(Doubles())
    assert not math.isclose(*Doubles().earned([0.1, 0.2], [1.0, math.exp(0.3)]))


def leaks_rules(fill):
    from quantail.market.terms import Rules

    return Rules(fill)
