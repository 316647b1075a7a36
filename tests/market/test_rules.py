"""Each rule on a file that breaks it: what is counted, which row is named, what a repair does, what it leaves alone."""

import pandas as pd
import pytest

from quantail.errors import InputError
from quantail.market.bars import load_bars
from quantail.market.rules import RULES

ROWS = 60
HOUR = 3600


def quiet(line):
    return None


def clean():
    """Sixty hourly bars as a list of lists: time, open, high, low, close, volume."""
    table, price = [], 100.0
    for row in range(ROWS):
        close = price * (1.01 if row % 3 else 0.985)
        table.append([1_600_000_000 + HOUR * row, price, max(price, close) + 0.5, min(price, close) - 0.5, close, 10.0 + row])
        price = close
    return table


def frame(table):
    return pd.DataFrame(table, columns=["time", "open", "high", "low", "close", "volume"])


def put(row, column, value):
    def change(table):
        table[row][column] = value

    return change


def split_at(row, factor):
    def change(table):
        for one in table[row:]:
            one[1:5] = [x * factor for x in one[1:5]]

    return change


def freeze(start, stop):
    def change(table):
        for row in range(start, stop):
            table[row][1:5] = [table[start][1]] * 4
        for one in table[stop:]:
            one[1:5] = [x * table[start][1] / clean()[stop - 1][4] for x in one[1:5]]

    return change


def adjust(table):
    for one in table[:30]:
        one[4] *= 0.95


# rule -> a fault, how many rows break the rule, the first of them, what a repair leaves: rows and masked rows (None: refused)
FAULTS = {
    "bad_stamp": (put(7, 0, None), 1, 7, (59, 0)),
    "future": (put(59, 0, 4_000_000_000), 1, 59, (59, 0)),
    "unsorted": (lambda table: table.insert(20, table.pop(23)), 3, 21, (60, 0)),
    "duplicate": (lambda table: table.insert(21, list(table[20])), 1, 21, (60, 0)),
    "conflict": (lambda table: table.insert(21, [*table[20][:4], table[20][4] + 0.25, 1.0]), 2, 20, (60, 1)),
    "not_a_number": (put(9, 3, "abc"), 1, 9, (60, 1)),
    "not_positive": (put(9, 3, -1.0), 1, 9, (60, 1)),
    "high_below_low": (put(9, 2, 50.0), 1, 9, (60, 1)),
    "outside_range": (put(9, 4, 400.0), 1, 9, (60, 1)),
    "bad_volume": (put(9, 5, -4.0), 1, 9, (60, 1)),
    "mixed_adjustment": (adjust, 30, 0, None),
    "uneven": (put(31, 0, 1_600_000_000 + HOUR * 30 + 60), 1, 31, None),
    "split_like": (split_at(40, 0.25), 1, 40, None),
    "gap": (lambda table: table.__delitem__(slice(5, 8)), 1, 5, (57, 0)),
    "stale": (freeze(20, 34), 13, 21, (60, 0)),
}


def test_every_rule_has_its_fault():
    assert set(FAULTS) == set(RULES)


def test_a_clean_file_breaks_no_rule():
    bars = load_bars(frame(clean()), echo=quiet)
    assert bars.card.findings == ()
    assert bars.valid.all()


@pytest.mark.parametrize("name", FAULTS)
def test_strict_loading_names_row_rule_and_remedy(name):
    change, count, first, _ = FAULTS[name]
    table = clean()
    change(table)
    if not RULES[name].refused:
        found = {one.rule: one for one in load_bars(frame(table), echo=quiet).card.findings}
        assert found[name].count == count
        assert f"row {first} (" in found[name].first
        return
    with pytest.raises(InputError) as error:
        load_bars(frame(table), echo=quiet)
    said = str(error.value)
    assert f"row {first} (" in said
    assert f"[{name}, {count} {'row' if count == 1 else 'rows'}]" in said
    assert RULES[name].remedy in said
    assert ("mode='repair'" in said) == bool(RULES[name].repair)


@pytest.mark.parametrize("name", FAULTS)
def test_repair_does_the_documented_minimum_and_tells_each_row(name):
    change, count, first, left = FAULTS[name]
    table = clean()
    change(table)
    if left is None:
        with pytest.raises(InputError, match=name):
            load_bars(frame(table), mode="repair", echo=quiet)
        return
    bars = load_bars(frame(table), mode="repair", echo=quiet)
    assert (len(bars), int((~bars.valid).sum())) == left
    touched = [(touch.rule, touch.action) for touch in bars.card.touched]
    assert touched == ([(name, RULES[name].repair)] * count if RULES[name].repair else [])
    if touched:
        assert bars.card.touched[0].place.endswith(f"row {first}")
    rows = {tuple(row[1:5]) for row in table}
    held = zip(*(getattr(bars, x)[:, 0][bars.valid[:, 0]].tolist() for x in ("open", "high", "low", "close")), strict=True)
    assert set(held) <= rows


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.allowed])
def test_what_is_a_matter_of_judgement_can_be_vouched_for_and_is_still_told(name):
    change, count, _, _ = FAULTS[name]
    table = clean()
    change(table)
    bars = load_bars(frame(table), allow=(name,), echo=quiet)
    assert [(one.rule, one.count) for one in bars.card.findings if one.rule == name] == [(name, count)]
    assert len(bars) == ROWS


def test_a_crash_is_no_split():
    table = clean()
    split_at(40, 0.5)(table)
    table[40][1:4] = [table[39][4], table[39][4] + 1, table[40][3]]  # the bar itself falls by half
    load_bars(frame(table), echo=quiet)
    table = clean()
    split_at(40, 0.58)(table)  # no round factor
    load_bars(frame(table), echo=quiet)


def test_a_wild_bar_behind_a_gap_is_no_split():
    table = clean()
    split_at(40, 0.5)(table)
    table[40][2] = table[39][4]  # it trades at the old price too
    load_bars(frame(table), echo=quiet)


def test_a_bar_that_is_not_over_is_in_the_future():
    table = clean()
    last = table[-1][0]
    load_bars(frame(table), now=last + HOUR, echo=quiet)
    with pytest.raises(InputError, match="this bar is not over yet"):
        load_bars(frame(table), now=last + HOUR - 1, echo=quiet)


def test_a_day_may_have_23_hours_but_a_minute_bar_among_hours_leaks(tmp_path):
    days = pd.date_range("2024-03-01", periods=40, freq="D", tz="Europe/Berlin")  # the clock goes on by an hour on the 31st
    table = [[day, *row[1:]] for day, row in zip(days, clean(), strict=False)]
    bars = load_bars(frame(table), echo=quiet)
    assert bars.bar_seconds == 86400
    assert bars.card.findings == ()
    assert (bars.end[:-1] <= bars.time[1:]).all()


def test_a_bar_of_half_the_length_is_uneven_too():
    table = clean()
    put(31, 0, 1_600_000_000 + HOUR * 30 + HOUR // 2)(table)
    with pytest.raises(InputError, match=r"\[uneven, 1 row\]"):
        load_bars(frame(table), echo=quiet)


def test_all_that_is_wrong_is_listed_at_once():
    table = clean()
    put(3, 2, 1.0)(table)
    put(8, 4, "x")(table)
    put(9, 5, -1.0)(table)
    with pytest.raises(InputError) as error:
        load_bars(frame(table), echo=quiet)
    assert [name for name in RULES if f"[{name}," in str(error.value)] == ["not_a_number", "high_below_low", "bad_volume"]


def test_a_masked_bar_leaves_a_mark_and_nothing_else():
    table = clean()
    put(9, 2, 1.0)(table)
    bars = load_bars(frame(table), mode="repair", echo=quiet)
    assert bars.close[9, 0] == table[8][4]
    for part in (bars.open, bars.high, bars.low, bars.volume):
        assert part[9, 0].isnan()
    assert not bars.valid[9, 0]


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    table = clean()
    put(30, 2, 1.0)(table)
    text = [",".join(["time", "open", "high", "low", "close", "volume"]), *(",".join(map(str, row)) for row in table)]
    text.insert(10, "")
    (tmp_path / "a.csv").write_text("\n".join(text))
    with pytest.raises(InputError, match=r"a\.csv line 33 "):
        load_bars(tmp_path / "a.csv", echo=quiet)
    text.insert(20, "1,2,3")
    (tmp_path / "a.csv").write_text("\n".join(text))
    with pytest.raises(InputError, match=r"a\.csv line 21 has too many or too few cells"):
        load_bars(tmp_path / "a.csv", echo=quiet)
    bars = load_bars(tmp_path / "a.csv", mode="repair", echo=quiet)
    assert [touch.place.rpartition("line ")[2] for touch in bars.card.touched] == ["21", "34"]


@pytest.mark.parametrize("mode", ["strict", "repair"])
def test_the_newest_row_may_come_first(mode):
    table = clean()[::-1]
    if mode == "strict":
        with pytest.raises(InputError, match=rf"\[unsorted, {len(table) - 1} rows\]"):
            load_bars(frame(table), echo=quiet)
        return
    bars = load_bars(frame(table), mode=mode, echo=quiet)
    assert bars.close[:, 0].tolist() == [row[4] for row in clean()]
    assert (bars.bar_seconds, len(bars.card.touched)) == (HOUR, len(table) - 1)


def test_bars_of_two_assets_that_overlap_would_tell_one_the_close_of_the_other():
    days = pd.date_range("2024-01-01", periods=40, freq="D")
    coin, stock = (
        frame([[day, *row[1:]] for day, row in zip(days.tz_localize(zone), clean(), strict=False)])
        for zone in ("UTC", "America/New_York")
    )
    both = {"COIN": coin, "STOCK": stock}
    sentence = r"row 0 \(STOCK, 2024-01-01T05.* before the bar of COIN that began 2024-01-01T00.* is over \[uneven, 79 rows\]"
    for mode in ("strict", "repair"):
        with pytest.raises(InputError, match=sentence):
            load_bars(both, mode=mode, echo=quiet)
    bars = load_bars(both, allow=("uneven",), echo=quiet)
    assert [one.rule for one in bars.card.findings] == ["uneven"]
    assert load_bars({"A": coin, "B": coin[::2]}, bar_seconds=86400, echo=quiet).card.gaps == 19  # dates: one clock
