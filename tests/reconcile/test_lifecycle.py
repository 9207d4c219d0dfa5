"""The life of a break from its first day to its last, compared with a model."""

import hashlib
from datetime import date, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reconcile import breaks
from tests.soak import count
from txmq.reconcile.classes import Class
from txmq.reconcile.items import HISTORY, BreakLife
from txmq.reconcile.rules import Day
from txmq.reconcile.summary import BUCKETS, FIGURES
from txmq.reconcile.tables import ITEMS
from txmq.reconcile.transfer import TransferRows

MONDAY = date(2026, 11, 16)
FRIDAY = date(2026, 11, 20)
SAID = {"explained": [("icbc/1", "parked")]}


def live(
    today, before=None, day=MONDAY, *, more=None, explained=(), agreed=(), rules=None, history=()
):
    """Carry items over a day; returns the open items and the closed ones, by key."""
    before = before or {}
    notes = [breaks.explained(*item) for item in explained]
    life = BreakLife(rules or breaks.rules(), day, {note.break_id: note for note in notes})
    items, closed = {}, {}
    for key in today.keys() | before.keys():
        facts = None
        if key in today:
            facts = breaks.transfer(key, today[key]) | (more or {}).get(key, {})
        histories = [text for name, text in history if name == key]
        was_agreed = key in agreed or bool(histories)
        left = TransferRows(key, item=before.get(key), was_agreed=was_agreed, histories=histories)
        item = life.item(facts, left)
        if item is not None:
            assert set(item) == set(ITEMS.names)
            (closed if item["status"] == "closed" else items)[key] = item
    return items, closed


def lives(*days):
    """The item of one transfer on each day from Monday: its class, if there is news, and more."""
    items, found = {}, []
    for ago, (class_, more) in enumerate(days):
        day = MONDAY + timedelta(days=ago)
        items, closed = live({"icbc/1": class_} if class_ else {}, items, day, **more)
        found.append((items | closed)["icbc/1"])
    return found


def test_a_break_has_the_same_id_on_every_day():
    first, then = lives(("dead-letter", {}), ("parked", {}))

    told = hashlib.sha256(b"icbc-ccb\0icbc/1").hexdigest()[:16]
    assert first["break_id"] == then["break_id"] == told


def test_an_item_is_new_then_open_then_changed_then_closed():
    classes = ["in-flight", "in-flight", "dead-letter", "matched"]
    found = lives(*((class_, {}) for class_ in classes))

    assert [(item["class"], item["group"], item["status"]) for item in found] == [
        ("in-flight", "open", "new"),
        ("in-flight", "open", "open"),
        ("dead-letter", "break", "changed"),
        ("matched", "agreed", "closed"),
    ]
    item = found[-1]
    assert (item["first_seen"], item["age_days"], item["bucket"]) == ("2026-11-16", 3, "2-3")
    assert item["history"].split(",") == [
        "2026-11-16 in-flight new",
        "2026-11-18 dead-letter changed",
        f"2026-11-19 matched closed {item['last_ms']}",
    ]


def test_an_agreed_transfer_that_was_no_item_does_not_become_one():
    items = {}
    for _ in range(2):
        items, closed = live({"icbc/1": "matched", "icbc/2": "parked"}, items)
        assert (set(items), closed) == ({"icbc/2"}, {})


def test_an_item_without_news_stays_open_and_grows_older():
    first, _ = live({"icbc/1": "in-flight", "icbc/2": "parked"})
    then, closed = live({"icbc/2": "parked"}, first, MONDAY + timedelta(days=2))

    grown = {"status": "open", "age_days": 2, "bucket": "2-3"}
    assert then["icbc/1"] == first["icbc/1"] | grown
    assert closed == {}


def test_an_explanation_holds_while_the_class_is_the_same():
    said = {"explained": [("icbc/1", "amount-mismatch")]}
    classes = ["amount-mismatch", "amount-mismatch", "double-credit"]
    _, second, third, fourth = lives(
        ("amount-mismatch", {}), *((class_, said) for class_ in classes)
    )

    assert (second["class"], second["was"], second["group"]) == (
        "explained", "amount-mismatch", "open",
    )  # fmt: skip
    assert (second["status"], second["explained_by"], second["explanation"]) == (
        "explained", "ann", "a fee",
    )  # fmt: skip
    assert third["history"] == second["history"]
    assert (fourth["class"], fourth["was"], fourth["group"]) == ("double-credit", None, "break")
    assert (fourth["status"], fourth["explained_by"]) == ("changed", None)
    assert [word.split()[1:] for word in fourth["history"].split(",")] == [
        ["amount-mismatch", "new"],
        ["amount-mismatch", "explained"],
        ["double-credit", "changed"],
    ]


MORE = {
    "amount": 7, "currency": "USD", "debit_bank": "ccb", "credit_bank": "ccb", "payer": "carol",
    "payee": None, "debits": 2, "debited": 7, "returns": 1, "returned": 7, "credits": 3,
    "credited": 7, "messages": 2, "ordered": 7, "last_ms": 7,
}  # fmt: skip
"""Of each figure another."""


def test_an_explanation_ends_if_any_figure_of_the_item_changes():
    plain = {f"icbc/{figure}": "double-credit" for figure in (*MORE, "quiet")}
    said = list(plain.items())
    first, _ = live(plain)
    second, _ = live(plain, first, explained=said)
    assert {row["status"] for row in second.values()} == {"explained"}

    more = {f"icbc/{name}": {name: value} for name, value in MORE.items()}
    # A different state of delivery does not make it another break.
    more["icbc/quiet"] = {"delivery": "dead", "is_late": True, "reason": "so"}
    third, _ = live(plain, second, FRIDAY, explained=said, more=more)

    quiet, was = third.pop("icbc/quiet"), second["icbc/quiet"]
    assert (quiet["status"], quiet["history"]) == ("explained", was["history"])
    assert set(MORE) == set(FIGURES)
    assert set(third) == set(more) - {"icbc/quiet"}
    for row in third.values():
        assert (row["class"], row["was"], row["group"]) == ("double-credit", None, "break")
        assert (row["status"], row["explained_by"], row["explanation"]) == ("changed", None, None)
        assert row["history"].endswith(f",{FRIDAY} double-credit changed")


def test_a_new_explanation_covers_the_changed_figures():
    again = {"explained": [("icbc/1", "parked", {"ordered": 7})]}
    again |= {"more": {"icbc/1": {"ordered": 7}}}
    _, second, third = lives(("parked", {}), ("parked", SAID), ("parked", again))

    assert (third["status"], third["was"]) == ("explained", "parked")
    assert third["history"] == f"{second['history']},2026-11-18 parked explained"


def test_an_item_of_the_same_class_with_new_figures_has_changed():
    more = {"more": {"icbc/1": {"credits": 3}}}
    _, then, last = lives(("double-credit", {}), ("double-credit", more), ("double-credit", more))

    assert then["status"] == "changed"
    assert then["history"].endswith(",2026-11-17 double-credit changed")
    assert last == then | {"status": "open", "age_days": 2, "bucket": "2-3"}


def test_a_withdrawn_explanation_leaves_an_open_break():
    *_, item = lives(("parked", {}), ("parked", SAID), ("parked", {}))

    assert (item["class"], item["was"], item["status"]) == ("parked", None, "open")
    assert item["history"].endswith("2026-11-18 parked open")


def test_an_explained_break_is_closed_once_it_is_agreed():
    *_, item = lives(("parked", {}), ("parked", SAID), ("matched", SAID))

    assert (item["status"], item["explained_by"]) == ("closed", None)


def test_an_explained_item_without_news_stays_explained():
    _, second, third = lives(("parked", {}), ("parked", SAID), (None, SAID))
    *_, withdrawn = lives(("parked", {}), ("parked", SAID), (None, {}))

    assert third == second | {"age_days": 2, "bucket": "2-3"}
    assert (withdrawn["class"], withdrawn["group"]) == ("parked", "break")


def test_a_break_that_was_agreed_before_is_reopened_and_not_new():
    items, _ = live({"icbc/1": "double-credit", "icbc/2": "parked"}, agreed=["icbc/1"])
    told = {key: item["status"] for key, item in items.items()}
    assert told == {"icbc/1": "reopened", "icbc/2": "new"}

    then, _ = live({"icbc/1": "double-credit"}, items, agreed=["icbc/1"])
    assert then["icbc/1"]["status"] == "open"


def test_a_closed_item_is_reopened_with_its_history():
    early = "2026-11-09 parked new,2026-11-10 matched closed 9"
    told = "2026-11-12 parked new,2026-11-13 matched closed 5"
    again = [("icbc/1", early), ("icbc/1", told), ("icbc/2", early)]
    (item,) = lives(("parked", {"history": again}))

    assert item["history"] == f"{told},2026-11-16 parked reopened"
    assert (item["first_seen"], item["age_days"]) == ("2026-11-16", 0)


def test_a_long_history_keeps_its_beginning_and_its_end():
    first, _ = live({"icbc/1": "parked"})
    first["icbc/1"]["history"] = ",".join(f"day-{index} parked open" for index in range(HISTORY))

    then, _ = live({"icbc/1": "dead-letter"}, first)
    told = then["icbc/1"]["history"].split(",")
    assert (len(told), told[0], told[1]) == (HISTORY, "day-0 parked open", "day-2 parked open")
    assert told[-1] == "2026-11-16 dead-letter changed"


WEEKENDS = st.frozensets(st.sampled_from(sorted(Day().weekend | {"monday", "friday"})))
DATES = st.dates(date(2025, 1, 1), date(2027, 12, 31))


@settings(max_examples=count(25, 2_000))
@given(
    weekend=WEEKENDS,
    holidays=st.frozensets(DATES, max_size=8),
    firsts=st.lists(DATES, min_size=1, max_size=30),
    today=DATES,
)
def test_ages_follow_the_business_calendar(weekend, holidays, firsts, today):
    day = Day(weekend=weekend, holidays=holidays)
    rules = breaks.rules(day=day)
    seen_on = {f"icbc/{index}": first for index, first in enumerate(firsts)}
    before, _ = live(dict.fromkeys(seen_on, "parked"), rules=rules)
    for key, first in seen_on.items():
        before[key]["first_seen"] = first.isoformat()

    items, _ = live({"icbc/new": "parked"}, before, today, rules=rules)

    for key, first in seen_on.items():
        age = day.age(first, today)
        assert items[key]["age_days"] == age
        assert items[key]["bucket"] == BUCKETS[sum(age > most for most in (0, 1, 3, 7))]
    assert items["icbc/new"]["age_days"] == 0


def test_weekends_and_holidays_do_not_age_an_item():
    rules = breaks.rules(day=Day(holidays=frozenset({date(2026, 11, 23)})))
    first, _ = live({"icbc/1": "parked"}, day=FRIDAY, rules=rules)
    days = [FRIDAY + timedelta(days=index) for index in range(1, 5)]
    later = [live({"icbc/1": "parked"}, first, day, rules=rules)[0] for day in days]

    assert [items["icbc/1"]["age_days"] for items in later] == [0, 0, 0, 1]


class Model:
    """The same rules in plain Python, one item at a time."""

    def __init__(self):
        self.items, self.agreed = {}, {}

    def live(self, day, classes, paid, said):
        before, self.items, closed = self.items, {}, {}
        for key in sorted(before.keys() | classes.keys()):
            was = before.get(key)
            raw = classes.get(key) or was["raw"]
            if Class(raw).group == "agreed":
                self.agreed.setdefault(key, [])
                if was:
                    self.agreed[key] = closed[key] = was["history"] + [(day, raw, "closed")]
                continue
            number = paid.get(key, 0) if key in classes else was["credits"]
            is_same = was and (was["raw"], was["credits"]) == (raw, number)
            is_explained = said.get(key) == (raw, number)
            if is_explained:
                status = "explained"
            elif was is None:
                status = "reopened" if key in self.agreed else "new"
            else:
                status = "open" if is_same else "changed"
            history = list(was["history"] if was else self.agreed.get(key, []))
            if not is_same or was["explained"] != is_explained:
                history.append((day, raw, status))
            first = was["first"] if was else day
            self.items[key] = {
                "raw": raw, "explained": is_explained, "status": status, "history": history,
                "first": first, "credits": number,
            }  # fmt: skip
        return closed


KEYS = [f"icbc/{index}" for index in range(12)]
CLASSES = st.sampled_from(["matched", "rolled-back", "in-flight", "parked", "dead-letter"])
CREDITS = st.integers(0, 1)
DAYS = st.tuples(
    st.dictionaries(st.sampled_from(KEYS), CLASSES, max_size=12),
    st.dictionaries(st.sampled_from(KEYS), CREDITS, max_size=12),
    st.dictionaries(
        st.sampled_from(KEYS), st.tuples(st.sampled_from(["parked", "dead-letter"]), CREDITS)
    ),
)


@settings(max_examples=count(50, 5_000))
@given(days=st.lists(DAYS, min_size=2, max_size=4))
def test_the_life_of_any_item_matches_the_model(days):
    model, items, gone = Model(), {}, []
    for day_, (classes, paid, said) in enumerate(days):
        day = MONDAY + timedelta(days=day_)
        told = [(key, class_, {"credits": number}) for key, (class_, number) in said.items()]
        more = {key: {"credits": number} for key, number in paid.items()}
        again = {"agreed": sorted(model.agreed), "history": tuple(gone)}
        items, closed = live(classes, items, day, explained=told, more=more, **again)
        gone += [(key, item["history"]) for key, item in closed.items()]
        expected = model.live(day.isoformat(), classes, paid, said)

        assert {key: changes(item) for key, item in closed.items()} == expected
        assert {key: seen(item) for key, item in items.items()} == model.items


def seen(item):
    is_explained = item["class"] == "explained"
    return {
        "raw": item["was"] if is_explained else item["class"],
        "explained": is_explained,
        "status": item["status"],
        "history": changes(item),
        "first": item["first_seen"],
        "credits": item["credits"],
    }


def changes(item):
    return [tuple(word.split()[:3]) for word in item["history"].split(",")]


def test_rerunning_days_gives_the_same_items_with_the_same_ids():
    """A day in the middle is run again, and then the days after it."""
    week = [
        {"icbc/1": "parked", "icbc/2": "in-flight"},
        {"icbc/1": "parked", "icbc/2": "dead-letter"},
        {"icbc/1": "matched", "icbc/2": "dead-letter", "icbc/3": "parked"},
    ]

    def run(days, items):
        results = []
        for day, classes in days:
            carried = live(classes, items, day)
            results.append(carried)
            items = carried[0]
        return results

    days = [(MONDAY + timedelta(days=number), classes) for number, classes in enumerate(week)]
    once = run(days, {})
    assert run(days[1:], once[0][0]) == once[1:]

    corrected = [(days[1][0], {"icbc/1": "parked", "icbc/2": "matched"}), (days[2][0], {})]
    (second, closed), (third, _) = run(corrected, once[0][0])
    assert set(closed) == {"icbc/2"}
    assert set(second) == set(third) == {"icbc/1"}
    assert third["icbc/1"]["break_id"] == once[0][0]["icbc/1"]["break_id"]
    assert third["icbc/1"]["age_days"] == 2
