"""Rows that cannot be read are set aside and reported, up to a limit of the rules."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reconcile.extracts import (
    JOURNAL,
    NOON_MS,
    START_MS,
    Book,
    Books,
    bank_of,
    book,
    rules_of,
)
from tests.reconcile.frames import session
from tests.reconcile.test_extract_files import (
    MT,
    WHOLE,
    balance_xml,
    csv_of,
    document,
    entry_xml,
    files_of,
    lines_of,
    statement_of,
    statement_xml,
    swift_of,
)
from txmq.errors import ReconcileRefused
from txmq.reconcile.core import ReconciledDay
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable, QuarantinedRow
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import BALANCES, PROOFS

TEXTS = JOURNAL | {"amount": "TEXT", "id": "TEXT"}


@pytest.fixture(params=["postgresql", "sqlite"])
def bank(request, postgres, tmp_path):
    with book(request.param, postgres, tmp_path) as found:
        found.kind = request.param
        yield found


def limited(rules, most):
    """The rules, with another limit on rows in quarantine."""
    return replace(rules, limits=replace(rules.limits, quarantine_max=most))


BAD = [
    {"amount": "12.5"},
    {"amount": None, "booked": START_MS - 1},
    {"currency": "YUAN"},
    {"currency": None, "amount": "x"},
    {"account": None},
    {"booked": None},
    {"id": "A-1"},
]


def test_numbers_with_too_many_digits_or_out_of_range_are_set_aside(bank, tmp_path):
    long, second = f"1.{'0' * 28}1", NOON_MS // 1000
    rows = [{"amount": "1"}, {"amount": long}, {"amount": "2", "booked": 10**16}]
    bank.journal([{"booked": second} | row for row in rows], TEXTS)

    books = Books(limited(rules_of(tmp_path, bank_of(bank, time="seconds")), 2))

    assert books.set_aside() == [
        ("id 2, key t-1", f"amount is '{long}': not a whole number of minor units"),
        ("id 3, key t-1", "booked is '10000000000000000': not a moment"),
    ]
    assert [(row["id"], row["booked_ms"]) for row in books.rows()] == [(1, NOON_MS)]


def test_rows_that_cannot_be_read_are_set_aside_with_their_reasons(bank, tmp_path):
    bank.journal([{"amount": "1"}, *BAD, {"amount": "2", "transfer": "t-2"}], TEXTS)
    money = {"CNY": {}, "JPY": {"digits": 0}}
    rules = rules_of(tmp_path, bank_of(bank), money=money)

    books = Books(limited(rules, len(BAD)))

    assert sorted(books.set_aside()) == [
        ("id 2, key t-1", "amount is '12.5': not a whole number of minor units"),
        ("id 3, key t-1", "amount is empty"),
        ("id 4, key t-1", "currency is 'YUAN': not one of CNY, JPY"),
        ("id 5, key t-1", "currency is empty"),
        ("id 6, key t-1", "account is empty"),
        ("id 7, key t-1", "booked is empty"),
        ("id A-1, key t-1", "id is 'A-1': not a whole number"),
    ]
    assert [row["amount"] for row in books.rows()] == [1, 2]
    assert books.rows(table="opening") == []
    with pytest.raises(ReconcileRefused) as refused:
        Books(limited(rules, len(BAD) - 1))
    told = "icbc/entries: 7 rows cannot be read, and limits.quarantine_max is 6: correct the book"
    assert str(refused.value).startswith(told)
    last = "; the first is id 2, key t-1: amount is '12.5': not a whole number of minor units"
    assert str(refused.value).endswith(last)
    assert "\n" not in str(refused.value)


def test_a_text_that_is_not_a_moment_is_set_aside(bank, tmp_path):
    good = ["2024-11-20 12:00:00+00", "2024-11-20T12:00:00.5Z", "2024-02-29 00:00:00+08:00"]
    bad = ["soon", "2024-02-30 00:00:00+00", "2024-13-01 00:00:00+00", "2024-11-20 12:00:00", "",
           "0000-01-01 00:00:00Z", "2024-11-20 25:00:00Z"]  # fmt: skip
    bank.journal([{"booked": text} for text in (*good, *bad)], JOURNAL | {"booked": "TEXT"})
    rules = rules_of(tmp_path, bank_of(bank, time="timestamptz"))

    books = Books(limited(rules, len(bad)))

    wanted = [f"booked is {text!r}: not a moment" for text in bad]
    assert sorted(reason for _, reason in books.set_aside()) == sorted(wanted)
    assert [row["booked_ms"] - NOON_MS for row in books.rows()] == [0, 500]


def test_an_unreadable_row_is_named_in_one_short_line(bank, tmp_path):
    bank.journal([{"transfer": "t\n1" + "x" * 500, "currency": "y\n" + "y" * 500}])

    with pytest.raises(ReconcileRefused) as refused:
        Books(rules_of(tmp_path, bank_of(bank)))

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_an_unsigned_amount_without_a_kind_is_set_aside(bank, tmp_path):
    bank.journal([{"kind": None}, {"kind": "fee"}])
    rules = rules_of(tmp_path, bank_of(bank, amounts="unsigned"))

    books = Books(limited(rules, 1))

    assert books.set_aside() == [("id 1, key t-1", "kind is empty")]
    assert [row["id"] for row in books.rows()] == [2]


def test_the_account_of_an_unreadable_balance_is_masked(bank, tmp_path):
    bank.journal([{}])
    bank.run("CREATE TABLE balances (account TEXT, currency TEXT, balance NUMERIC)")
    bank.run("INSERT INTO balances VALUES ('6222020012340011', 'CNY', 1.5), ('alice', 'CNY', 2)")
    accounts = {name: name for name in ("account", "currency", "balance")} | {"table": "balances"}
    rules = rules_of(tmp_path, bank_of(bank, accounts=accounts))

    books = Books(limited(rules, 1))

    reason = "balance is '1.5': not a whole number of minor units"
    assert books.set_aside("accounts") == [("account 62…0011", reason)]
    assert [row["account"] for row in books.rows(table="accounts")] == ["alice"]


@settings(max_examples=25)
@given(rows=st.lists(st.sampled_from([{"amount": "1"}, {"amount": "0"}, *BAD]), max_size=12))
def test_every_row_is_either_taken_or_set_aside(tmp_path_factory, rows):
    with book("sqlite", None, tmp_path_factory.mktemp("any")) as bank:
        bank.journal(rows, TEXTS)
        folder = tmp_path_factory.mktemp("rules")

        books = Books(limited(rules_of(folder, bank_of(bank), money={"CNY": {}}), 12))

    aside = books.set_aside()
    assert len(books.rows()) + len(aside) == len(rows)
    assert len(aside) == sum(row in BAD for row in rows)


def test_a_damaged_line_of_a_file_is_set_aside(tmp_path):
    csv_of(tmp_path, lines_of({}, {"amount": "1_0"}, {"account": "a\0b"}) + "7,t-1\n")
    (bank,) = (rules := limited(files_of(tmp_path, WHOLE), 3)).bank
    chosen = replace(bank, entries=replace(bank.entries, where="kind <> 'memo'"))

    books = Books(replace(rules, bank=(chosen,)))

    assert books.set_aside() == [
        ("file ccb.csv, line 3", "amount is '1_0': not a whole number of minor units"),
        (
            "file ccb.csv, line 4",
            "'a\\x00b' is not a text or a number; a dot in a name leads into an object",
        ),
        ("file ccb.csv, line 5", "it has 2 values, not 7: ['7', 't-1']"),
    ]
    assert [row["id"] for row in books.rows("ccb")] == [1]


def test_a_line_that_is_not_json_is_set_aside_unless_it_is_the_truncated_last_one(tmp_path):
    line = f'{{"id": 1, "transfer": "t", "account": "a", "amount": 1, "booked": {NOON_MS}, '
    line += '"currency": "CNY", "kind": "C"}'
    files = WHOLE.replace('"csv"', '"json-lines"')
    csv_of(tmp_path, f"{line}\n[1]\nnothing\n")
    rules = limited(files_of(tmp_path, files), 2)

    books = Books(rules)

    places = ["file ccb.csv, line 2", "file ccb.csv, line 3"]
    assert [row for row, _ in books.set_aside()] == places
    assert len(books.rows("ccb")) == 1
    csv_of(tmp_path, f"{line}\n{line[:-5]}")
    with pytest.raises(ReconcileRefused, match="line 2: .* may be truncated"):
        Books(rules)


def test_an_entry_of_a_statement_that_cannot_be_read_is_set_aside(tmp_path):
    ends = balance_xml("OPBD", "1"), balance_xml("CLBD", "6")
    entries = entry_xml("2"), entry_xml("3", key="t-2").replace("2024-11-20", "2024-31-31")
    rules = statement_of(tmp_path, document(statement_xml(*ends, *entries)))

    books = Books(limited(rules, 1))

    ((place, reason),) = books.set_aside()
    assert place.startswith("file ccb-2024-11-20.xml, line ")
    assert reason == "booked is '2024-31-31': not a moment"
    assert [row["key"] for row in books.rows("ccb")] == ["icbc/t-1"]
    # The closing balance has the entry, so the proof account-table shows its amount.
    assert [row["balance"] for row in books.rows("ccb", "accounts")] == [600]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (">3<", ">3,0<", "Ntry: Amt '3,0', Ccy 'EUR' and CdtDbtInd 'CRDT' are not an amount"),
        ("CRDT</CdtDbtInd>x", "UP</CdtDbtInd>", "Ntry: Amt '3', Ccy 'EUR' and CdtDbtInd 'UP'"),
        ('"EUR">3', '"">3', "Ntry: Amt '3', Ccy '' and CdtDbtInd 'CRDT' are not an amount"),
    ],
)
def test_an_entry_without_an_amount_is_set_aside_and_its_page_need_not_add_up(
    tmp_path, old, new, why
):
    ends = balance_xml("OPBD", "1"), balance_xml("CLBD", "6")
    broken = entry_xml("3", key="t-2", more="x")
    assert old in broken
    broken = broken.replace(old, new)
    rules = statement_of(tmp_path, document(statement_xml(*ends, entry_xml("2"), broken)))

    books = Books(limited(rules, 1))

    ((_, reason),) = books.set_aside()
    assert reason.startswith(why)
    assert [row["balance"] for row in books.rows("ccb", "accounts")] == [600]


@pytest.mark.parametrize(
    ("old", "new"),
    [("12,50NTRF", "12.50NTRF"), ("1120CR", "1332CR"), ("1120CR", "1120XR")],
)
def test_an_entry_of_a_swift_statement_that_cannot_be_read_is_set_aside(tmp_path, old, new):
    assert old in MT

    books = Books(limited(swift_of(tmp_path, MT.replace(old, new)), 1))

    ((place, reason),) = books.set_aside()
    assert place == "file ccb-2024-11-20.sta, line 6"
    assert reason.startswith(":61:'24")
    assert len(books.rows("ccb")) == 2


def test_rows_set_aside_fail_the_proof_of_readable_rows(tmp_path):
    frame = session().createDataFrame
    accounts = {"balances": frame([], BALANCES.ddl)}
    day = ReconciledDay(accounts, frame([], PROOFS.ddl), Counter(), was_closed=False, kept=())
    aside = [
        QuarantinedRow("id 2, key t-1", "amount is 'x': not a whole number of minor units"),
        QuarantinedRow("id 4, key t-1", "amount is empty"),
    ]
    entries = ExtractedTable("entries", Control("icbc", "entries", 1), "", (), tuple(aside))
    rules = rules_of(tmp_path, bank_of(Book("sqlite:///none.db")))
    sources = [ExtractedSource("icbc", "sqlite", "", 0, 0, (entries,))]

    found = proofs_of(day, rules, sources)
    rows = found.orderBy("account").toArrow().to_pylist()

    found = [(row["bank"], row["account"], row["expected"], row["found"]) for row in rows]
    assert found == [
        ("icbc", None, 3, 1),
        ("icbc", "entries, id 2, key t-1: amount is 'x': not a whole number of minor units", 1, 0),
        ("icbc", "entries, id 4, key t-1: amount is empty", 1, 0),
    ]
    assert {row["proof"] for row in rows} == {"readable-rows"}
    assert not any(row["holds"] for row in rows)
