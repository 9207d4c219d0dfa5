"""A run loads exactly what was extracted, or is refused with the difference."""

import json
import shutil
from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from tests.reconcile.extracts import (
    DAY,
    NOON_MS,
    START_MS,
    bank_of,
    book,
    extracted,
    rows_of,
    rules_of,
)
from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.loader import check_totals, load
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.frames import read
from txmq.reconcile.ledgers import Role
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.tables import ENTRIES

ROWS = 1000


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("extracts")
    with book("sqlite", None, folder) as bank:
        bank.journal(
            [
                {
                    "amount": index,
                    "transfer": f"t-{index}",
                    "booked": START_MS - 86_400_000 * (index % 2),
                }
                for index in range(2 * ROWS)
            ]
        )
        bank.run("CREATE TABLE balances (account TEXT, balance BIGINT)")
        bank.run("INSERT INTO balances VALUES ('alice', 1)")
        accounts = {"table": "balances", "account": "account", "balance": "balance"}
        accounts["currency"] = {"is": "CNY"}
        rules = rules_of(
            folder,
            bank_of(bank, accounts=accounts),
            bank_of(bank, name="ccb"),
        )
        _, here = extracted(spark, rules)
        _, yesterday = extracted(spark, rules, DAY - timedelta(days=1))
        yield here, yesterday


@pytest.fixture
def extract(made, tmp_path):
    """A copy that a test may damage."""
    folder = tmp_path / "extract"
    shutil.copytree(made[0], folder)
    return folder


@pytest.fixture
def refused(spark):
    def refused(folder):
        with pytest.raises(ReconcileRefused) as found:
            load(spark, Manifest.read(LocalFolder(folder)), LocalFolder(folder))
        return str(found.value)

    return refused


def part(folder, source="icbc"):
    (found,) = (folder / "books" / f"source={source}" / "table=entries").glob("*.parquet")
    return found


def test_loaded_ledgers_have_their_columns_and_the_name_of_the_bank(made, spark):
    files = load(spark, Manifest.read(LocalFolder(made[0])), LocalFolder(made[0]))

    found = read(spark, files)

    entries = found[Role.ENTRIES]
    assert set(entries.columns) == {*ENTRIES.names, "bank"}
    assert entries.where("bank = 'ccb'").count() == ROWS
    rows = entries.where("bank = 'icbc'").drop("bank").sort("id").collect()
    assert [row.asDict() for row in rows] == rows_of(made[0])
    counts = {role.value: frame.count() for role, frame in found.items() if role != Role.ENTRIES}
    assert counts == {
        "opening": 2, "later": 0, "accounts": 1, "messages": 0, "failures": 0, "offsets": 0
    }  # fmt: skip


@pytest.mark.fault("R5")
def test_a_missing_part_is_reported_with_its_row_count(extract, refused):
    name = part(extract).name
    part(extract).unlink()

    told = refused(extract)

    assert "icbc/entries: 1000 rows were extracted and 0 are there" in told
    assert f"{name} is missing" in told


@pytest.mark.fault("R5")
def test_a_truncated_part_is_reported_with_its_byte_count(extract, refused):
    path = part(extract)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2)

    told = refused(extract)

    assert told == (
        f"{path.relative_to(extract)}: {size} bytes were extracted and {size // 2} are there"
    )


def test_a_changed_byte_is_detected_by_the_hash(extract, refused):
    path = part(extract, "ccb")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    assert f"{path.relative_to(extract)}: its bytes changed" in refused(extract)


@pytest.mark.fault("R6")
def test_a_duplicated_part_is_reported_with_its_row_count(extract, refused):
    shutil.copy(part(extract), part(extract).with_name("another.parquet"))

    told = refused(extract)

    assert "icbc/entries: 1000 rows were extracted and 2000 are there" in told
    assert "another.parquet was not extracted" in told


def test_a_part_of_another_day_is_reported(extract, made, refused):
    shutil.copy(part(made[1]), part(extract))

    assert str(part(extract).relative_to(extract)) in refused(extract)


def test_a_file_that_was_not_extracted_is_reported(extract, refused):
    place = "books/source=boc/table=entries/part.parquet"
    (extract / place).parent.mkdir(parents=True)
    shutil.copy(part(extract), extract / place)

    assert f"{place} is there, and was not" in refused(extract)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.slice(1), "icbc/entries: 1000 rows were extracted and 999 are there"),
        (
            lambda t: t.set_column(
                t.column_names.index("amount"),
                "amount",
                [[row + (place == 3) for place, row in enumerate(t["amount"].to_pylist())]],
            ),
            "icbc/entries: the sum of CNY was 999000 when it was extracted and is 999001",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("currency"),
                "currency",
                [["CNY", "USD", *t["currency"].to_pylist()[2:]]],
            ),
            "icbc/entries: the sum of CNY was 999000",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("currency"),
                "currency",
                [["USD", *t["currency"].to_pylist()[1:]]],
            ),
            "icbc/entries: USD was not extracted and is there",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("id"), "id", [[0, *t["id"].to_pylist()[1:]]]
            ),
            "icbc/entries: the least id was 1 when it was extracted and is 0",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("booked_ms"),
                "booked_ms",
                [[NOON_MS, *t["booked_ms"].to_pylist()[1:]]],
            ),
            "icbc/entries: the hash total was",
        ),
        (
            lambda t: t.set_column(
                t.column_names.index("account"), "account", [["bob", *t["account"].to_pylist()[1:]]]
            ),
            "icbc/entries: texts changed since they were extracted",
        ),
    ],
    ids=["rows", "amount", "currency", "nothing", "id", "moment", "text"],
)
def test_totals_are_computed_again_and_the_one_that_differs_is_named(spark, extract, change, told):
    """A changed file with a changed hash still differs from the bank's totals."""
    table = pq.ParquetFile(part(extract)).read()
    if told.startswith("icbc/entries: the sum of CNY was 999000 when"):
        assert sum(table["amount"].to_pylist()) == 999_000
    pq.write_table(change(table), part(extract))

    with pytest.raises(ReconcileRefused, match=told):
        check_totals(spark, Manifest.read(LocalFolder(extract)), LocalFolder(extract))


def test_totals_beyond_64_bits_are_the_same_when_computed_again(spark, tmp_path):
    with book("sqlite", None, tmp_path) as bank:
        bank.journal(
            [{"id": (1 << 62) + index, "amount": -(1 << 61) - index} for index in range(9)]
        )
        manifest, folder = extracted(spark, rules_of(tmp_path, bank_of(bank)))

    check_totals(spark, manifest, LocalFolder(folder))
    assert manifest.sources[0].tables[0].written.amounts["CNY"] < -(1 << 63)


def test_a_changed_or_missing_manifest_is_refused(extract):
    path = extract / FILE
    plain = json.loads(path.read_text())
    plain["sources"][0]["tables"][0]["written"]["rows"] += 1
    path.write_text(json.dumps(plain))
    with pytest.raises(ReconcileRefused, match="was changed"):
        Manifest.read(LocalFolder(extract))

    path.write_text(path.read_text()[:100])
    with pytest.raises(ReconcileRefused, match="cannot be read"):
        Manifest.read(LocalFolder(extract))

    path.unlink()
    with pytest.raises(ReconcileRefused, match="no complete extract"):
        Manifest.read(LocalFolder(extract))
