"""A bank's book comes from files, and gives the extract that a database would give."""

import csv
import hashlib
import io
import json
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.reconcile.extracts import DAY, NOON_MS, START_MS, Books, bank_of, book, rules_of
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.extract import book_files
from txmq.reconcile.rules_file import read_rules

DAY_MS = 86_400_000
COLUMNS = ("id", "transfer", "account", "amount", "currency", "kind", "booked")
HEAD = """
name = "night"
directory = "recon"
[log]
directory = "log"
[[bank]]
name = "ccb"
"""
ENTRIES = """
[bank.entries]
id = "id"
key = "transfer"
account = "account"
amount = "amount"
currency = "currency"
kind = "kind"
booked = "booked"
namespace = "icbc"
kinds = { debit = ["debit", "D"], credit = ["credit", "C"], return = ["return"] }
clearing = ["clearing"]
"""


def files_of(tmp_path, files, entries=ENTRIES):
    """Rules of one bank with files."""
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "recon.toml"
    path.write_text(f"{HEAD}[bank.files]\n{files}\n{entries}\n")
    return read_rules(path, {})


def csv_of(tmp_path, text, name="ccb.csv", charset="utf-8"):
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_bytes(text.encode(charset, "surrogateescape"))


WHOLE = 'path = "in/ccb.csv"\nformat = "csv"'
DATED = 'path = "in/ccb-{date}*.csv"\nformat = "csv"'


def lines_of(*rows):
    """A CSV file with a header."""
    usual = {"transfer": "t-1", "account": "alice", "amount": 0, "currency": "CNY"}
    usual |= {"kind": "credit", "booked": NOON_MS}
    lines = [",".join(COLUMNS)]
    for number, row in enumerate(rows, 1):
        full = {"id": number} | usual | row
        lines.append(",".join(str(full[name]) for name in COLUMNS))
    return "\n".join(lines) + "\n"


def test_a_database_and_a_file_of_the_same_day_give_the_same_extract(tmp_path):
    rows = [
        {"amount": 70, "booked": START_MS - 1, "kind": "other", "transfer": None},
        {"amount": 30, "booked": START_MS - DAY_MS, "account": "bob"},
        {"amount": -10, "booked": START_MS, "transfer": 'a,"b"\nc'},
        {"amount": 10, "account": "clearing", "booked": START_MS + DAY_MS - 1},
        {"amount": -3, "booked": START_MS + DAY_MS, "account": "工商"},
    ]
    with book("sqlite", None, tmp_path) as bank:
        bank.journal(rows)
        told = bank_of(bank, name="ccb")
        books = Books(rules_of(tmp_path / "db", told))
    usual = {"account": "alice", "currency": "CNY", "kind": "debit", "transfer": "t-1"}
    usual |= {"booked": NOON_MS}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows({"id": number} | usual | row for number, row in enumerate(rows, 1))
    csv_of(tmp_path, text.getvalue(), charset="gb18030")

    elsewhere = Books(files_of(tmp_path, WHOLE + '\ncharset = "gb18030"'))

    for table in ("entries", "opening", "later"):
        assert elsewhere.rows("ccb", table) == books.rows("ccb", table)
    ((name, digest),) = elsewhere.set_aside("files")
    assert (name, digest) == ("ccb.csv", sha256((tmp_path / "in/ccb.csv").read_bytes()).hexdigest())


CAMT = 'path = "in/ccb-{date}*.xml"\nformat = "camt.053"'
MT940 = 'path = "in/ccb-{date}*.sta"\nformat = "mt940"\ncharset = "latin-1"'
STATEMENT = '[bank.entries]\nnamespace = "icbc"\n'


def entry_xml(amount, sign="CRDT", key="t-1", more="", status="BOOK", currency="EUR", refs=""):
    return f"""<Ntry><Amt Ccy="{currency}">{amount}</Amt><CdtDbtInd>{sign}</CdtDbtInd>{more}
<Sts>{status}</Sts><BookgDt><Dt>2024-11-20</Dt></BookgDt><ValDt><Dt>2024-11-21</Dt></ValDt>
<NtryDtls><TxDtls><Refs><EndToEndId>{key}</EndToEndId></Refs>{refs}</TxDtls></NtryDtls></Ntry>"""


def balance_xml(code, amount, currency="EUR", sign="CRDT"):
    return f"""<Bal><Tp><CdOrPrtry><Cd>{code}</Cd></CdOrPrtry></Tp>
<Amt Ccy="{currency}">{amount}</Amt><CdtDbtInd>{sign}</CdtDbtInd></Bal>"""


def statement_xml(*parts, account="DE1", number=1, id_="S1", page=""):
    return f"""<Stmt><Id>{id_}</Id>{page}<ElctrncSeqNb>{number}</ElctrncSeqNb>
<Acct><Id><IBAN>{account}</IBAN></Id></Acct>{"".join(parts)}</Stmt>"""


def document(*statements, version="08"):
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.{version}">
<BkToCstmrStmt><GrpHdr><MsgId>M</MsgId></GrpHdr>{"".join(statements)}</BkToCstmrStmt></Document>"""


def statement_of(tmp_path, text, files=CAMT, name="ccb-2024-11-20.xml", charset="utf-8"):
    csv_of(tmp_path, text, name, charset)
    return files_of(tmp_path, files, STATEMENT)


def swift_of(tmp_path, text):
    return statement_of(tmp_path, text, MT940, "ccb-2024-11-20.sta", "latin-1")


def test_a_statement_may_contain_a_long_comment(tmp_path):
    """A parser may hold it back until the file ends, with everything after it."""
    comment = f"<!--{'x' * 300_000}-->"
    rules = statement_of(tmp_path, document(statement_xml(comment, entry_xml("12.50"))))

    assert [row["amount"] for row in Books(rules).rows("ccb")] == [1_250]


def test_a_statement_gives_entries_opening_and_closing_balances(tmp_path):
    parts = [
        balance_xml("OPBD", "100.00"),
        balance_xml("CLBD", "107.50"),
        entry_xml("12.50"),
        entry_xml("5", "DBIT", "t-2"),
        entry_xml("99", status="PDNG"),
        entry_xml("99", status="<Cd>INFO</Cd>"),
    ]

    books = Books(statement_of(tmp_path, document(statement_xml(*parts))))

    found = books.rows("ccb")
    assert [(row["key"], row["kind"], row["amount"], row["currency"]) for row in found] == [
        ("icbc/t-1", "credit", 1250, "EUR"),
        ("icbc/t-2", "debit", -500, "EUR"),
    ]
    assert {row["booked_ms"] for row in found} == {START_MS + DAY_MS - 1}
    usual = {"account": "DE1", "currency": "EUR"}
    opening = {"role": "customer", "amount": 10000, "rows": 0}
    assert books.rows("ccb", "opening") == [usual | opening]
    assert books.rows("ccb", "accounts") == [usual | {"balance": 10750}]


MT = """{1:F01BANKDEFFXXXX0000000000}{2:O9400000000000BANKDEFFXXXX00000000000000000000N}{4:
:20:STARTUMSE
:25:NL91ABNA0417164300EUR
:28C:7/1
:60F:C241119EUR100,00
:61:2411211120CR12,50NTRFt-1//BANK-1
/OCMT/EUR12,50//more
:86:166?00UEBERWEISUNG?20EREF+e-1?21 SVWZ+Rechnung 4711?32ALICE
:61:2411201120RD5,NTRFNONREF
:86:/TRTP/SEPA/EREF/e-2//REMI/USTD//hello
:61:2411201120EC9,NTRFx
:62M:C241120EUR117,50
-}
:20:STARTUMSE
:25:NL91ABNA0417164300EUR
:28C:7/2
:60M:C241120EUR117,50
:61:2411201120D8,00NCHGNONREF
:86:Entgelt f\u00fcr November
und mehr
:62F:C241120EUR109,50
:64:C241120EUR109,50
:86:the statement itself
-
"""
SECOND_PAGE = MT[MT.index(":60M:") : MT.index(":62F:")]


def test_a_swift_statement_is_read_across_its_pages(tmp_path):
    books = Books(swift_of(tmp_path, MT))

    found = books.rows("ccb")
    assert sorted((row["key"] or "", row["kind"], row["amount"]) for row in found) == [
        ("", "debit", -800),
        ("icbc/e-1", "credit", 1250),
        ("icbc/e-2", "return", 500),
    ]
    usual = {"account": "NL91ABNA0417164300", "currency": "EUR"}
    assert books.rows("ccb", "opening")[0]["amount"] == 10000
    assert books.rows("ccb", "accounts") == [usual | {"balance": 10950}]


def test_a_statement_may_have_reversals_batches_charges_and_several_accounts(tmp_path):
    reversal = "<RvslInd>true</RvslInd>"
    batch = """<Ntry><Amt Ccy="EUR">30</Amt><CdtDbtInd>CRDT</CdtDbtInd><Sts>BOOK</Sts>
<BookgDt><DtTm>2024-11-20T10:00:00+01:00</DtTm></BookgDt><NtryDtls><Btch><NbOfTxs>2</NbOfTxs></Btch>
<TxDtls><Refs><EndToEndId>b-1</EndToEndId></Refs><Amt Ccy="EUR">10</Amt></TxDtls>
<TxDtls><Refs><EndToEndId>NOTPROVIDED</EndToEndId></Refs>
<AmtDtls><TxAmt><Amt Ccy="EUR">20</Amt></TxAmt></AmtDtls></TxDtls></NtryDtls></Ntry>"""
    charge = """<Chrgs><Rcrd><Amt Ccy="EUR">2</Amt><CdtDbtInd>DBIT</CdtDbtInd>
<ChrgInclInd>true</ChrgInclInd></Rcrd><Rcrd><Amt Ccy="EUR">9</Amt></Rcrd></Chrgs>"""
    opaque = batch.replace('<Amt Ccy="EUR">10</Amt>', "").replace("b-1", "b-2")
    text = document(
        statement_xml(
            balance_xml("PRCD", "0"),
            balance_xml("CLBD", "147"),
            entry_xml("7", key="r-1", more=reversal),
            entry_xml("8", "DBIT", key="r-2", more=reversal),
            entry_xml("98", key="c-1", refs=charge),
            batch,
            opaque.replace("30", "20"),
        ),
        statement_xml(
            balance_xml("OPBD", "5", "USD", "DBIT"),
            balance_xml("CLBD", "4", "USD", "DBIT"),
            entry_xml("1", key="u-1", currency="USD"),
            account="DE2",
        ),
        version="02",
    )

    books = Books(statement_of(tmp_path, text))

    found = [
        ((row["key"] or "").removeprefix("icbc/"), row["kind"], row["amount"], row["currency"])
        for row in books.rows("ccb")
    ]
    assert sorted(found) == [
        ("", "credit", 2000, "EUR"),
        ("", "credit", 2000, "EUR"),
        ("", "other", -200, "EUR"),
        ("b-1", "credit", 1000, "EUR"),
        ("c-1", "credit", 10000, "EUR"),
        ("r-1", "return", 700, "EUR"),
        ("r-2", "recall", -800, "EUR"),
        ("u-1", "credit", 100, "USD"),
    ]
    accounts = {row["account"]: row["balance"] for row in books.rows("ccb", "accounts")}
    assert accounts == {"DE1": 14700, "DE2": -400}


ONE = (balance_xml("OPBD", "1"), balance_xml("CLBD", "3"), entry_xml("2"))
NOT_LAST = "<StmtPgntn><PgNb>1</PgNb><LastPgInd>false</LastPgInd></StmtPgntn>"
SECOND = (balance_xml("OPBD", "3"), balance_xml("CLBD", "4"), entry_xml("1"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (document(statement_xml(*ONE[:2])), "begins with 1 EUR, and its entries sum to 0, but it"),
        (
            document(statement_xml(*ONE), statement_xml(*SECOND[1:], ONE[0], number=2, id_="S2")),
            "S2 of account DE1 begins with 1 EUR, but the page before ends with 3: a page is",
        ),
        (document(statement_xml(*ONE), statement_xml(*ONE)), "S1 of account DE1 is in ccb-2024-11"),
        (document(statement_xml(*ONE))[:-30], "line 8: it is not complete XML: unclosed token"),
        ("<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>", "line 1: it has a document type"),
        (document(), "it has no statement"),
        (
            document().replace("UTF-8", "klingon"),
            "line 1: unknown encoding: klingon: get the file in",
        ),
        (document().replace("UTF-8", "gb18030"), "line 1: multi-byte encodings are not supported"),
        (document(statement_xml(*ONE, page=NOT_LAST)), "S1/1 of account DE1 is not the last page"),
        (document(statement_xml(*ONE, account="")), "the statement has no account"),
        (document(statement_xml(entry_xml("1,50"))), "Amt '1,50', Ccy 'EUR' and CdtDbtInd 'CRDT'"),
        (document(statement_xml(entry_xml("1").replace("2024-11-20", "2024-11-21"))), "after the"),
        (document(statement_xml(entry_xml("1").replace("2024-11-20", "2024-31-31"))), "booked is"),
        (
            document(statement_xml(entry_xml("0.001"))),
            "line 4: amount is '0.001': not a whole number of minor units",
        ),
    ],
)
def test_an_invalid_camt_statement_is_refused(tmp_path, text, told):
    with pytest.raises(ReconcileRefused, match=told.replace("(", "\\(")):
        Books(statement_of(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (":62M:C241120EUR117,50", ":62M:C241120EUR117,51", "statement 7/1 of account NL91"),
        (":62F:C2", ":64:C2", "statement 7/2 of account .* has no closing balance"),
        ("1120CR", "1332CR", "line 6: :61:.* has an invalid date"),
        (":25:", ":25X:", "line 12: statement 7/1 of account  begins in EUR"),
        (":60M:C241120EUR117,50", ":60M:C241120EUR116,50", "a page is missing"),
        (":62F:", ":62M:", "statement 7/2 of account .* is not the last page"),
        (SECOND_PAGE, "", "line 17: statement 7/2 of account NL.* has no opening"),
        (":20:", "", "'STARTUMSE' belongs to no field"),
        (":60F:C241119EUR100,00", ":60F:C241119EUR100.00", "is not a balance such as"),
    ],
)
def test_an_invalid_swift_statement_is_refused(tmp_path, old, new, told):
    text = MT.replace(old, new)
    assert text != MT

    with pytest.raises(ReconcileRefused, match=told):
        Books(swift_of(tmp_path, text))


def test_a_swift_charge_within_an_entry_is_a_row_of_its_own(tmp_path):
    text = MT.replace("OCMT/EUR12,50//more", "OCMT/EUR14,50//CHGS/EUR2,")

    books = Books(swift_of(tmp_path, text))

    found = {(row["key"], row["kind"], row["amount"]) for row in books.rows("ccb")}
    assert {("icbc/e-1", "credit", 1450), (None, "other", -200)} < found


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        ("a,b\n", "", "column account is missing; it has a, b"),
        (lines_of({}).replace("id,", "kind,"), "", "line 1: two columns are called 'kind'"),
        (lines_of({}) + "7,t-1\n", "", "ccb.csv, line 3: it has 2 values, not 7: .'7', 't-1'"),
        (lines_of({}, {"transfer": '"x'}), "", "ccb.csv line 3: .* is not CSV"),
        (lines_of({})[:-3], "", "ccb.csv line 2: .*'.* has no line end"),
        (lines_of({"account": "M\udcfcller"}), "", "line 2: the byte 0xfc after '1,t-1,M' is not"),
        (
            lines_of({"amount": "1.234"}),
            'decimal = ","',
            "line 2: amount is '1.234': not a whole number of minor units",
        ),
        (lines_of({"amount": "1_0"}), "", "file ccb.csv, line 2: amount is '1_0'"),
        (lines_of({}, {"amount": ""}), "", "file ccb.csv, line 3: amount is empty"),
        (lines_of({"amount": 1 << 63}), "", "line 2: amount is '9223372036854775808'"),
        (lines_of({"booked": "soon"}), "", "file ccb.csv, line 2: booked is 'soon'"),
        (lines_of({"id": "A1"}), "", "file ccb.csv, line 2: id is 'A1'"),
        (lines_of({"account": "a\0b"}), "", "line 2: 'a.x00b' is not a text"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_of_the_error(tmp_path, text, more, told):
    csv_of(tmp_path, text)
    rules = files_of(tmp_path, f"{WHOLE}\n{more}")

    with pytest.raises(ReconcileRefused, match=told):
        Books(rules)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    csv_of(tmp_path, lines_of({}))
    path = tmp_path / "in" / "ccb.csv"

    def grow(*found):
        with path.open("a") as file:
            file.write("9")
        return hashlib.sha256()

    monkeypatch.setattr("hashlib.file_digest", grow)
    with pytest.raises(ReconcileRefused, match="ccb.csv changed while it was read"):
        Books(files_of(tmp_path, WHOLE))


def test_a_missing_file_is_an_error_on_a_business_day_only(tmp_path):
    rules = files_of(tmp_path, DATED)

    with pytest.raises(ReconcileRefused, match=r"ccb-2024-11-20\*.csv does not exist"):
        Books(rules)
    books = Books(rules, DAY + timedelta(days=3))

    assert books.rows("ccb") == []


def test_amounts_and_moments_are_read_as_the_bank_writes_them(tmp_path):
    text = "1|t-1|alice|-1.234,5|EUR|D|20.11.2024 12:00\n\n2|t-2|bob| 7 |EUR|C|20.11.2024 23:59\n"
    csv_of(tmp_path, text)
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    rules = files_of(
        tmp_path,
        f"""{WHOLE}\ncolumns = [{names}]\ndelimiter = "|"\nquote = ""\ndecimal = ","
grouping = "."\nmoments = "%d.%m.%Y %H:%M\"""",
        ENTRIES + 'units = "major"\ntime = "timestamp"',
    )

    books = Books(rules)

    assert [(row["amount"], row["booked_ms"]) for row in books.rows("ccb")] == [
        (-123450, NOON_MS),
        (700, NOON_MS + DAY_MS // 2 - 60_000),
    ]


def test_a_row_booked_before_the_date_of_its_file_is_late(tmp_path):
    csv_of(tmp_path, lines_of({"booked": START_MS - 5}), "ccb-2024-11-20.csv")

    books = Books(files_of(tmp_path, DATED))

    (row,) = books.rows("ccb")
    assert (row["booked_ms"], row["recorded_ms"]) == (START_MS - 5, START_MS)
    assert books.rows("ccb", "opening") == []


def test_a_row_booked_after_the_date_of_its_file_is_refused(tmp_path):
    csv_of(tmp_path, lines_of({}, {"booked": START_MS + DAY_MS}), "ccb-2024-11-20.csv")

    told = f"file .*, line 3: booked is '{START_MS + DAY_MS}': after the end of the file's date"
    with pytest.raises(ReconcileRefused, match=told):
        Books(files_of(tmp_path, DATED))


BALANCES = """
[bank.accounts]
account = "account"
currency = "currency"
balance = "closing"
"""


@pytest.mark.parametrize(
    ("opening", "told"),
    [("", {"alice": 90}), ('opening = "opening"', {"alice": 80})],
)
def test_first_opening_balances_come_from_the_bank_or_are_computed(tmp_path, opening, told):
    csv_of(tmp_path, lines_of({"amount": 10}), "ccb-2024-11-20.csv")
    csv_of(tmp_path, "account,currency,opening,closing\nalice,CNY,80,100\n", "b-2024-11-20.csv")
    files = DATED + '\nbalances = "in/b-{date}.csv"'

    books = Books(files_of(tmp_path, files, ENTRIES + BALANCES + opening))

    assert {row["account"]: row["amount"] for row in books.rows("ccb", "opening")} == told
    assert [row["balance"] for row in books.rows("ccb", "accounts")] == [100]


keys = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=9
)
entries = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 1 << 62),
            "transfer": st.none() | keys,
            "account": keys,
            "amount": st.integers(-(10**12), 10**12),
            "currency": st.sampled_from(["CNY", "JPY", "BHD"]),
            "kind": st.sampled_from(["debit", "C", "fee"]),
            "booked": st.integers(START_MS, START_MS + DAY_MS - 1),
        }
    ),
    max_size=8,
)


BLANK_ID = dict(zip(COLUMNS, (0, " ", "0", 0, "CNY", "debit", START_MS), strict=True))


@pytest.mark.parametrize("form", ["csv", "json-lines", "parquet"])
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(rows=entries)
@example(rows=[BLANK_ID])
def test_random_entries_are_read_back_from_each_format(tmp_path_factory, form, rows):
    tmp_path = tmp_path_factory.mktemp("files")
    (tmp_path / "in").mkdir()
    path, digits = tmp_path / "in" / "ccb.csv", {"CNY": 2, "JPY": 0, "BHD": 3}
    major = [
        row | {"amount": Decimal(row["amount"]).scaleb(-digits[row["currency"]])} for row in rows
    ]
    if form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, delimiter=";", lineterminator="\r\n")
            writer.writeheader()
            writer.writerows(
                row | {"amount": f"{row['amount']:f}".replace(".", ",")} for row in major
            )
    elif form == "json-lines":
        lines = (json.dumps(row | {"amount": "@"}) for row in rows)
        texts = (
            line.replace('"amount": "@"', f'"amount": {row["amount"]:f}')
            for line, row in zip(lines, major, strict=True)
        )
        path.write_text("".join(f"{line}\n" for line in texts))
    else:
        types = {name: pa.string() for name in COLUMNS} | {"id": pa.int64()}
        types |= {"amount": pa.decimal128(20, 3), "booked": pa.timestamp("ns", "UTC")}
        of_nanoseconds = [row | {"booked": row["booked"] * 1_000_000} for row in major]
        pq.write_table(pa.Table.from_pylist(of_nanoseconds, pa.schema(types)), path)
    money = "".join(f"[money.{code}]\ndigits = {count}\n" for code, count in digits.items())
    time = 'time = "timestamptz"\n' if form == "parquet" else ""
    rules = files_of(
        tmp_path,
        f'path = "in/ccb.csv"\nformat = "{form}"\ndelimiter = ";"\ndecimal = ","',
        f'{ENTRIES}units = "major"\n{time}{money}',
    )

    books = Books(rules)

    kinds = {"debit": "debit", "C": "credit", "fee": "other"}
    names = ("id", "key", "kind", "account", "amount", "currency", "booked_ms")
    written = []
    for row in rows:
        key = f"icbc/{row['transfer']}" if (row["transfer"] or "").strip(" ") else None
        rest = (row[name] for name in ("account", "amount", "currency", "booked"))
        written.append((row["id"], key, kinds[row["kind"]], *rest))
    found = [tuple(row[name] for name in names) for row in books.rows("ccb")]
    assert sorted(found, key=repr) == sorted(written, key=repr)


@pytest.mark.parametrize("form", ["camt.053", "mt940"])
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    amounts=st.lists(st.integers(-(10**9), 10**9).filter(bool), max_size=6),
    begun=st.integers(0, 99),
)
def test_random_statements_are_read_back(tmp_path_factory, form, amounts, begun):
    tmp_path = tmp_path_factory.mktemp("statements")
    ended = begun + sum(amounts)
    text = {
        name: f"{Decimal(abs(value)).scaleb(-2):f}" for name, value in (("b", begun), ("e", ended))
    }
    if form == "camt.053":
        sign = {True: "CRDT", False: "DBIT"}
        parts = [
            entry_xml(f"{Decimal(abs(amount)).scaleb(-2):f}", sign[amount > 0], f"k-{at}")
            for at, amount in enumerate(amounts)
        ]
        whole = document(statement_xml(
            balance_xml("OPBD", text["b"]), balance_xml("CLBD", text["e"], sign=sign[ended >= 0]),
            *parts,
        ))  # fmt: skip
        rules = statement_of(tmp_path, whole)
    else:
        lines = "".join(
            f":61:241120{'C' if amount > 0 else 'D'}{Decimal(abs(amount)).scaleb(-2):f}".replace(
                ".", ","
            )
            + f"NTRFk-{at}\r\n:86:?\r\n"
            for at, amount in enumerate(amounts)
        )
        whole = (
            f":20:X\r\n:25:DE1\r\n:28C:1\r\n:60F:C241119EUR{text['b'].replace('.', ',')}\r\n{lines}"
            f":62F:{'C' if ended >= 0 else 'D'}241120EUR{text['e'].replace('.', ',')}\r\n-}}\r\n"
        )
        rules = swift_of(tmp_path, whole)

    books = Books(rules)

    found = {row["key"]: row["amount"] for row in books.rows("ccb")}
    assert found == {f"icbc/k-{at}": amount for at, amount in enumerate(amounts)}
    assert [row["balance"] for row in books.rows("ccb", "accounts")] == [ended]


@pytest.mark.parametrize(
    ("files", "entries", "told"),
    [
        (WHOLE + '\ncharset = "klingon"', ENTRIES, "ccb: files.charset 'klingon' is unknown"),
        (WHOLE + '\ncharset = "utf-16"', ENTRIES, "ccb: files.charset 'utf-16' has lines of"),
        (WHOLE + '\ngrouping = "."', ENTRIES, "files.decimal and files.grouping are both '.'"),
        (WHOLE.replace("csv", "xls"), ENTRIES, "Invalid enum value 'xls'"),
        (WHOLE.replace("ccb.csv", "{day}.csv"), ENTRIES, "files.path 'in/{day}.csv' is invalid"),
        (WHOLE, ENTRIES + 'table = "journal"', "entries.table and entries.where are for databases"),
        (WHOLE, ENTRIES.replace('key = "transfer"', ""), "ccb: entries.key is missing"),
        (WHOLE, ENTRIES + BALANCES, "and files.balances need each other"),
        (WHOLE + '\nbalances = "in/b-{date}"', ENTRIES + BALANCES, "both need {date}, or neither"),
        (WHOLE + '\nbalances = "in/b"', f'{ENTRIES}{BALANCES}opening = "o"', "opening 'o' needs"),
        (WHOLE + '\nmoments = "%d"', ENTRIES, "write time = \"timestamp\", not 'milliseconds'"),
        (CAMT, STATEMENT + 'key = "e2e"', "entries.key 'e2e' is not one of account, currency"),
        (CAMT.replace("{date}", ""), STATEMENT, "has no {date}, and a statement is of one date"),
        (CAMT, STATEMENT + BALANCES, "camt.053 has balances"),
        ('path = "x"\nformat = "csv"\n[bank]\n', ENTRIES, "TOML"),
    ],
)
def test_an_invalid_rule_about_files_is_named(tmp_path, files, entries, told):
    with pytest.raises(ConfigError) as refused:
        files_of(tmp_path, files, entries)

    assert told in str(refused.value)
    assert "\n" not in str(refused.value) or told == "TOML"


def test_the_digest_of_the_rules_ignores_the_paths_of_files(tmp_path):
    csv_of(tmp_path, lines_of({}))
    here, other = (files_of(tmp_path, text) for text in (WHOLE, WHOLE.replace("in/", "elsewhere/")))

    assert here.digest == other.digest != files_of(tmp_path, WHOLE + '\ndecimal = ","').digest


def test_a_balance_beyond_64_bits_is_named_with_its_account(tmp_path):
    csv_of(tmp_path, lines_of(*[{"amount": (1 << 63) - 1}] * 2), "ccb-2024-11-20.csv")
    csv_of(tmp_path, "account,currency,closing\nalice,CNY,1\n", "b-2024-11-20.csv")
    rules = files_of(tmp_path, f'{DATED}\nbalances = "in/b-{{date}}.csv"', ENTRIES + BALANCES)

    told = "opening of alice, CNY: amount is -18446744073709551613, which does not fit into 64"
    with pytest.raises(ReconcileRefused, match=told):
        Books(rules)


def test_the_moment_of_recording_decides_the_date_of_a_row(tmp_path):
    rules = files_of(tmp_path, DATED, ENTRIES.replace('id = "id"', 'recorded = "id"'))
    csv_of(tmp_path, lines_of({"id": NOON_MS, "booked": START_MS - 7}), "ccb-2024-11-20.csv")
    books = Books(rules)
    (row,) = books.rows("ccb")
    assert (row["booked_ms"], row["recorded_ms"]) == (START_MS - 7, NOON_MS)

    csv_of(tmp_path, lines_of({"id": "soon"}), "ccb-2024-11-20.csv")
    with pytest.raises(ReconcileRefused, match="file .*: id is 'soon': not a moment"):
        Books(rules)


def test_an_account_without_a_statement_keeps_its_balance(tmp_path, monkeypatch):
    closed = {("DE1", "EUR"): (10750, 3), ("DE2", "EUR"): (999, 1)}
    monkeypatch.setattr(book_files._FileReader, "_closed", lambda _: closed)
    rules = statement_of(tmp_path, document(statement_xml(*ONE, account="DE2")))

    books = Books(rules)
    saturday = Books(rules, DAY + timedelta(days=3))

    def told(where, table, value):
        return {row["account"]: row[value] for row in where.rows("ccb", table)}

    # The bank's statement counts, and roll-forward compares it with the day before.
    assert told(books, "opening", "amount") == {"DE1": 10750, "DE2": 100}
    assert told(books, "accounts", "balance") == {"DE1": 10750, "DE2": 300}
    assert told(saturday, "opening", "rows") == {"DE1": 3, "DE2": 1}
    assert told(saturday, "accounts", "balance") == {"DE1": 10750, "DE2": 999}
