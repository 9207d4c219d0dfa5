"""Both kinds of databases are read alike, whatever their columns hold."""

import pytest

from tests.reconcile.extracts import JOURNAL, NOON_MS, START_MS, Books, bank_of, book, rules_of
from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.bank_source import BankSource

DAY_MS = 86_400_000


@pytest.fixture(params=["postgresql", "sqlite"])
def bank(request, postgres, tmp_path):
    with book(request.param, postgres, tmp_path) as found:
        found.kind = request.param
        yield found


@pytest.fixture
def postgres_bank(postgres, tmp_path):
    with book("postgresql", postgres, tmp_path) as found:
        yield found


@pytest.fixture
def books_of(tmp_path):
    """What a bank gives whose columns have these settings."""
    return lambda bank, money=None, **told: Books(
        rules_of(tmp_path, bank_of(bank, **told), money=money or {})
    )


def entry(at_ms=NOON_MS, **more):
    usual = {"id": 1, "key": "icbc/t-1", "kind": "debit", "role": "customer", "account": "alice"}
    usual |= {"amount": 0, "currency": "CNY", "booked_ms": at_ms, "recorded_ms": at_ms}
    return usual | more


def amounts(books, table="entries"):
    return [row["amount"] for row in books.rows(table=table)]


def test_a_day_is_read_with_its_opening_and_later_sums(bank, books_of):
    last = START_MS + DAY_MS - 1
    bank.journal(
        [
            {"amount": 70, "booked": START_MS - 1, "kind": "other"},
            {"amount": 5, "booked": START_MS - DAY_MS, "account": "bob"},
            {"amount": 30, "booked": START_MS - DAY_MS},
            {"amount": -10, "booked": START_MS},
            {"amount": 10, "account": "clearing", "booked": last},
            {"amount": -3, "booked": last + 1},
        ]
    )
    bank.run("CREATE TABLE balances (account TEXT, balance BIGINT)")
    bank.run("INSERT INTO balances VALUES ('alice', 87)")
    accounts = {"table": "balances", "account": "account", "balance": "balance"}
    accounts["currency"] = {"is": "CNY"}

    books = books_of(bank, accounts=accounts)

    assert books.rows() == [
        entry(START_MS, id=4, amount=-10),
        entry(last, id=5, amount=10, account="clearing", role="clearing"),
    ]
    usual = {"role": "customer", "currency": "CNY"}
    assert books.rows(table="opening") == [
        {"account": "alice", "amount": 100, "rows": 2} | usual,
        {"account": "bob", "amount": 5, "rows": 1} | usual,
    ]
    assert books.rows(table="later") == [{"account": "alice", "amount": -3, "rows": 1} | usual]
    assert books.rows(table="accounts") == [{"account": "alice", "currency": "CNY", "balance": 87}]


def test_late_rows_belong_to_the_day_they_were_recorded(bank, books_of):
    before = START_MS - 1
    bank.journal(
        [{"amount": 1, "booked": before, "recorded": NOON_MS}, {"amount": 2, "recorded": before}],
        JOURNAL | {"recorded": "BIGINT"},
    )

    books = books_of(bank, recorded="recorded")

    assert books.rows() == [entry(amount=1, booked_ms=before)]
    assert amounts(books, "opening") == [2]


def test_a_row_without_a_transfer_has_no_key_and_its_kind_is_mapped(bank, books_of):
    keys = {"D": None, "C": "", "return": "  ", "fee": None, None: ""}
    bank.journal([{"transfer": key, "kind": kind} for kind, key in keys.items()])

    found = books_of(bank).rows()

    assert [row["kind"] for row in found] == ["debit", "credit", "return", "other", "other"]
    assert {row["key"] for row in found} == {None}


def test_a_constant_value_needs_no_column(bank, books_of):
    bank.run("CREATE TABLE transfers (transfer INTEGER, account TEXT, amount INTEGER, at INTEGER)")
    bank.run(f"INSERT INTO transfers VALUES (4711, 'alice', 250, {NOON_MS // 1000})")
    constant = {"currency": {"is": "CNY"}, "kind": {"is": "D"}, "id": ""}
    here = {"table": "transfers", "booked": "at", "time": "seconds", "amounts": "unsigned"}

    assert books_of(bank, **here | constant).rows() == [
        entry(id=None, key="icbc/4711", amount=-250)
    ]


def test_unsigned_amounts_of_debits_become_negative(bank, books_of):
    bank.journal([{"amount": 5, "kind": name} for name in ("debit", "credit", "return", "fee")])

    found = {row["kind"]: row["amount"] for row in books_of(bank, amounts="unsigned").rows()}

    assert found == {"debit": -5, "credit": 5, "return": 5, "other": 5}


@pytest.mark.parametrize("type_", ["NUMERIC(20, 4)", "TEXT", "DOUBLE PRECISION"])
def test_major_units_become_minor_units_by_the_digits_of_the_currency(bank, books_of, type_):
    texts = [("12.34", "CNY"), ("-7.00", "CNY"), ("500", "JPY"), ("0.001", "BHD"), ("0.07", "USD")]
    bank.journal(
        [{"amount": amount, "currency": currency} for amount, currency in texts],
        JOURNAL | {"amount": type_},
    )
    money = {"CNY": {}, "JPY": {"digits": 0}, "BHD": {"digits": 3}, "USD": {}}

    assert amounts(books_of(bank, units="major", money=money)) == [1234, -700, 500, 1, 7]


def test_timestamps_are_read_in_the_banks_zone_or_their_own(bank, books_of):
    at = "2024-11-20 12:00:00.123456"
    for time, text_ in (("timestamp", at), ("timestamptz", f"{at}+08:00")):
        type_ = time.upper() if bank.kind == "postgresql" else "TEXT"
        bank.journal([{"booked": text_}], JOURNAL | {"booked": type_}, name=time)

        (row,) = books_of(bank, table=time, time=time, zone="Asia/Shanghai").rows()

        assert row["booked_ms"] == NOON_MS - 8 * 3_600_000 + 123


def test_odd_names_are_quoted_and_the_where_condition_is_passed_on(bank, books_of):
    odd = {"id": "row", "transfer": "the order"}
    columns = {odd.get(name, name): type_ for name, type_ in JOURNAL.items()}
    accounts = "alice", "o'neil", "test"
    bank.journal([{"account": name} for name in accounts], columns, name='"odd book"')
    where = "account <> 'test' OR 1 = 0"

    books = books_of(
        bank, table="odd book", id="row", key="the order", where=where, suspense=["o'neil"]
    )

    assert [row["role"] for row in books.rows()] == ["customer", "suspense"]


@pytest.mark.parametrize(
    ("rows", "more", "told"),
    [
        ([{"amount": "12.345"}], {"units": "major"}, "id 1, key t-1: amount is '12.345"),
        ([{"amount": "1"}, {"amount": "0.5"}], {}, "id 2, key t-1: amount is '0.5"),
        ([{"amount": "92233720368547758.08"}], {"units": "major"}, "not a whole number of minor"),
        ([{"amount": "NaN"}], {}, "amount is 'NaN': not a whole number of minor units"),
        ([{"currency": "yuan"}], {}, "id 1, key t-1: currency is 'yuan': not a currency code"),
        ([{"booked": START_MS - 1, "amount": "0.5"}], {}, "id 1, key t-1: amount is '0.5'"),
        ([{}], {"key": "order_no"}, "column order_no is missing; it has id, transfer"),
        ([{}], {"table": "nowhere"}, "nowhere"),
        ([{}], {"where": "nowhere > 1"}, "nowhere"),
    ],
)
def test_an_invalid_value_or_name_is_refused_with_its_place(bank, books_of, rows, more, told):
    bank.journal(rows, JOURNAL | {"amount": "NUMERIC"})

    with pytest.raises(ReconcileRefused, match=told) as refused:
        books_of(bank, **more)

    assert str(refused.value).startswith("icbc")


@pytest.mark.parametrize("units", ["minor", "major"])
def test_a_currency_that_the_rules_do_not_know_is_refused(bank, books_of, units):
    bank.journal([{"currency": "CNX"}])
    money = {"CNY": {}, "JPY": {"digits": 0}}

    with pytest.raises(ReconcileRefused, match="'CNX': not one of CNY, JPY; did you mean CNY"):
        books_of(bank, units=units, money=money)


def test_an_id_must_be_a_number_or_empty(bank, books_of):
    bank.journal([{"id": None}, {"id": "17"}], JOURNAL | {"id": "TEXT"})
    assert [row["id"] for row in books_of(bank).rows()] == [None, 17]

    bank.add([{"id": "A-18"}])

    with pytest.raises(ReconcileRefused, match="id A-18, key t-1: id is 'A-18'"):
        books_of(bank)


def test_several_banks_may_issue_the_ids_of_a_table(bank, books_of):
    bank.journal([{"transfer": name} for name in ("IC-1", "ICC-1", None, "", "  ")])
    prefixes = {"names": {"IC": "icbc", "ICC": "ccb"}}
    column = {"column": "currency", "names": {"CNY": "icbc"}}

    found = [
        [row["key"] for row in books_of(bank, namespace=namespace).rows()]
        for namespace in (prefixes, column)
    ]
    none = [None] * 3
    assert found == [["icbc/IC-1", "ccb/ICC-1", *none], ["icbc/IC-1", "icbc/ICC-1", *none]]

    bank.add([{"id": 9, "transfer": "X-1"}])
    with pytest.raises(ReconcileRefused, match="'X-1': its beginning is not one of 'IC', 'ICC'$"):
        books_of(bank, namespace=prefixes)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"date": "soon"}, r"Invalid RFC3339 encoded date - at `\$.date`"),
        ({"bank": '{"name": 1}'}, r"Expected `str`, got `int` - at `\$.bank.name`"),
        ({"bank": "{}"}, "missing required field"),
    ],
)
def test_an_invalid_option_of_the_bank_source_is_named(option, told):
    with pytest.raises(ReconcileRefused, match=f"the options of the bank are invalid: .*{told}"):
        BankSource({"date": "2024-11-20"} | option).partitions()


def test_no_error_shows_the_password(tmp_path, bank):
    told = bank_of(bank) | {"database": "postgresql://u:s3cret@127.0.0.1:1/bank?s3cret=s3cret"}

    with pytest.raises(ReconcileRefused) as refused:
        Books(rules_of(tmp_path, told))

    assert "s3cret" not in str(refused.value)


def test_a_table_may_be_given_with_its_schema(postgres_bank, books_of):
    postgres_bank.run("CREATE SCHEMA core")
    postgres_bank.journal([{"amount": 9}], name="core.journal")

    assert amounts(books_of(postgres_bank, table="core.journal")) == [9]


def test_a_view_without_pages_is_read_as_a_whole(postgres_bank, books_of):
    postgres_bank.journal([{"amount": index} for index in range(100)])
    postgres_bank.run("CREATE VIEW seen AS SELECT * FROM journal")

    assert amounts(books_of(postgres_bank, table="seen")) == list(range(100))


@pytest.mark.parametrize(
    ("held", "type_"), [("timestamp", "TIMESTAMPTZ"), ("timestamptz", "TIMESTAMP")]
)
def test_a_timestamp_column_of_the_wrong_type_is_refused(postgres_bank, books_of, held, type_):
    postgres_bank.journal([], JOURNAL | {"booked": type_})

    with pytest.raises(ReconcileRefused, match="booked is a timestamp"):
        books_of(postgres_bank, time=held)


def test_a_large_table_is_read_in_slices_and_every_row_once(postgres_bank, books_of):
    postgres_bank.journal([])
    postgres_bank.run(
        "INSERT INTO journal SELECT n, 't-' || n, 'a-' || n % 50, n, 'CNY', 'debit', "
        f"{NOON_MS} FROM generate_series(1, 150000) AS n"
    )

    books = books_of(postgres_bank)

    assert len(books.parts["icbc"]) > 1
    assert [row["id"] for row in books.rows()] == list(range(1, 150_001))
