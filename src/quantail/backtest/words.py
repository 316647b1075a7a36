"""The verdict in plain words. Nothing is computed here: a sentence says a figure, how sure it is, and what follows."""

import math
from typing import TYPE_CHECKING

from quantail.backtest.differences import BETTER, WORSE, Difference

if TYPE_CHECKING:
    from quantail.backtest.verdict import Asked, Known, Tail, Verdict


def headline(verdict: "Verdict", asked: "Asked") -> str:
    """The one line that everybody reads."""
    if math.isnan(verdict.sharpe):
        return "No skill found: it never held anything that moved."
    if asked.warning:
        return "No skill can be claimed here, and the first sentence says why."
    if verdict.skill:
        return (
            f"Skill found: after costs its Sharpe ratio is {decimal(verdict.hold.value)} above that of buy & hold, beyond luck."
        )
    if verdict.cash.answer(verdict.each) == WORSE:
        return "No skill found: it loses money after costs."
    return "No skill found."


def sentences(verdict: "Verdict", asked: "Asked") -> tuple[str, ...]:
    """What has to be said, the most important first."""
    said = [asked.warning] if asked.warning else []
    said += [held(verdict), money(verdict), timed(verdict)]
    if verdict.ruined:
        said.append(f"{verdict.ruined} of {verdict.paths * verdict.seeds} portfolios were ruined.")
    if verdict.tail is not None:
        said.append(kept(verdict.tail))
    if verdict.known is not None:
        said.append(known(verdict.known))
    said += [sure(verdict), tried(verdict)]
    return tuple(said)


def held(verdict: "Verdict") -> str:
    """Against buying and holding, for the risk that is taken."""
    one = verdict.hold
    if math.isnan(one.value):
        return "Does it beat buy & hold after costs? There is no Sharpe ratio to compare: one of the two never moved."
    answer = {BETTER: "Yes, for the risk it takes", WORSE: "No, it is worse"}.get(
        one.answer(verdict.each), "That cannot be told"
    )
    return (
        f"Does it beat buy & hold after costs? {answer}: Sharpe ratio {decimal(one.ours)} against {decimal(one.theirs)}, "
        f"{signed(one, 2)} (chance of luck {chance(one.p_better)})."
    )


def money(verdict: "Verdict") -> str:
    """In money."""
    one, cash = verdict.hold_growth, verdict.cash
    years, when = told_over(verdict.years)

    def grown(log_growth: float) -> str:
        return percent(math.expm1(log_growth * years))

    more = f"{grown(one.value)} [{grown(one.interval[0])}, {grown(one.interval[1])}] ahead"
    grows = f"In money it grows by {grown(verdict.growth)} {when}, buy & hold by {grown(one.theirs)}: {more}"
    answer = {BETTER: "it does earn more than cash", WORSE: "it earns less than cash"}.get(
        cash.answer(verdict.each), "that it earns more than cash is not sure"
    )
    return f"{grows}; {answer} (chance of luck {chance(cash.p_better)})."


def timed(verdict: "Verdict") -> str:
    """Against its own weights."""
    one = verdict.timing
    if math.isnan(one.value):
        return "There is no timing to judge: in its own order or in another its weights earn nothing that varies."
    answer = {BETTER: "Its timing earns money", WORSE: "Its timing costs money"}.get(
        one.answer(verdict.each), "Its timing cannot be told from luck"
    )
    return (
        f"{answer}: the same weights in another order, with the same exposure and turnover, have a Sharpe ratio of "
        f"{decimal(one.theirs)}, its own order {decimal(one.ours)}, {signed(one, 2)} (chance of luck {chance(one.p_better)})."
    )


def kept(tail: "Tail") -> str:
    """Of the limit."""
    low, high = tail.interval
    answer = {"kept": "is kept", "broken": "is broken"}.get(tail.answer, "is kept as far as can be told")
    if tail.answer not in ("kept", "broken") and tail.cvar < tail.limit:
        answer = "is missed, by less than the data can tell"
    return (
        f"The tail limit {answer}: the worst {percent(tail.alpha, 0)} of outcomes ({tail.outcome}) lose {percent(-tail.cvar)} "
        f"[{percent(-high)}, {percent(-low)}] on average, the limit is {percent(-tail.limit)} (log returns)."
    )


def known(one: "Known") -> str:
    """Beside the strongest policy that is known."""
    if math.isnan(one.sharpe_part):
        return f"The strongest known policies here ({one.name}; {one.growth_name}) earn nothing to be compared with."
    return (
        f"Of the strongest policies that are known here it reaches {percent(one.sharpe_part, 0)} {span(one.sharpe_interval)} "
        f"in Sharpe ratio ({one.name}: {decimal(one.sharpe)}) and {percent(one.growth_part, 0)} {span(one.growth_interval)} in "
        f"growth ({one.growth_name}: {percent(math.expm1(one.growth))} a year)."
    )


def sure(verdict: "Verdict") -> str:
    """How much data speaks, and how much would have to."""
    made = verdict.paths > 1  # of recorded bars there is one path
    base = f"{length(verdict.years)} of " + (f"made-up bars on each of {verdict.paths} paths" if made else "bars")
    if math.isnan(verdict.sharpe):
        return f"This rests on {base}."
    low, high = map(decimal, verdict.sharpe_interval)
    value = f"{decimal(verdict.sharpe)} [{low}, {high}] with a certainty of 95\N{NO-BREAK SPACE}%"
    said = f"This rests on {base}: the Sharpe ratio is {value}"
    needed = verdict.years_needed
    if verdict.hold.answer(verdict.each) not in (BETTER, WORSE) and math.isfinite(needed):
        said += f"; a lead like this over buy & hold would need about {length(needed)} to be sure"
    return said + "."


def tried(verdict: "Verdict") -> str:
    """How many looks, how many seeds."""
    looks = "one agent has" if verdict.trials == 1 else f"{verdict.trials} agents have"
    seeds = (
        "one seed is an anecdote: train more"
        if verdict.seeds == 1
        else f"{verdict.seeds_better} of {verdict.seeds} seeds beat buy & hold (all are averaged, none was picked)"
    )
    deflated = "has no value" if math.isnan(verdict.deflated_sharpe) else f"is {verdict.deflated_sharpe:.3f}"
    luck = f" and each chance of luck has to be below {chance(verdict.each)}" if verdict.trials > 1 else ""
    return f"{looks.capitalize()} been judged on these bars, so the deflated Sharpe ratio {deflated}{luck}; {seeds}."


# --- numbers ----------------------------------------------------------------------------------------------------------


def decimal(value: float, decimals: int = 2, sign: str = "") -> str:
    """−0.31, with a minus that is one; a dash where there is no number."""
    if math.isnan(value):
        return "–"
    text = f"{value:{sign}.{decimals}f}".replace("-", "−")
    return text.lstrip("−") if not text.strip("−+0.") else text


def signed(one: Difference, decimals: int) -> str:
    """+0.31 [−0.10, +0.72]."""
    low, high = (decimal(end, decimals, "+") for end in one.interval)
    return f"{decimal(one.value, decimals, '+')} [{low}, {high}]"


def percent(value: float, decimals: int = 1) -> str:
    """3.1 %, with a space that does not break."""
    return f"{decimal(100 * value, decimals)}\N{NO-BREAK SPACE}%"


def span(interval: tuple[float, float]) -> str:
    """[95 %, 99 %]."""
    return f"[{percent(interval[0], 0)}, {percent(interval[1], 0)}]"


def chance(p: float) -> str:
    """A probability as one reads it."""
    if math.isnan(p):
        return "unknown"
    if p < 1e-4:
        return "below 0.01\N{NO-BREAK SPACE}%"
    return f"{100 * p:{'.0f' if p > 0.1 else '.2g'}}\N{NO-BREAK SPACE}%"


def told_over(years: float) -> tuple[float, str]:
    """Over how many years money is told, and how that is said: a year, or all there is where that is less.

    Nobody has lived through a year of what was seen for two months.
    """
    return (1.0, "a year") if years >= 1 else (years, f"in these {length(years)}")


def length(years: float) -> str:
    """Years, or months where there are few."""
    if years >= 1.95:
        return f"{years:,.0f} years" if years >= 9.95 else f"{years:.1f} years"
    return f"{12 * years:.0f} months" if years >= 2 / 12 else f"{365.25 * years:.0f} days"
