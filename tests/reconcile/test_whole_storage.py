"""Whole runs whose results are on a Hadoop file system and not in a local folder."""

import pytest
from msgspec.structs import replace
from pyarrow.fs import LocalFileSystem
from typer.testing import CliRunner

from tests.reconcile.extracts import DAY, NOON_MS, bank_of, rules_of
from tests.reconcile.whole_stage import RULES
from tests.servers import spark_session
from txmq.cli.root import app
from txmq.reconcile import storage
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.loader import load
from txmq.reconcile.results import Results
from txmq.reconcile.rules import LogRules
from txmq.reconcile.storage import open_folder

pytestmark = pytest.mark.timeout(600)  # The first of them starts Spark.

CODES = {"clean": 0, "within limits": 1, "over limits": 2}
SITE = """<configuration>
<property><name>{key}</name><value>{link}</value></property>
</configuration>"""


class Core:
    """A bank's database in memory, with the driver that Spark has itself."""

    url = "jdbc:derby:memory:core;create=true"


class Disk:
    """Arrow's file systems without Hadoop's native library: this machine's disk is the cluster."""

    @staticmethod
    def from_uri(uri):
        return LocalFileSystem(), uri.removeprefix("hdfs://cluster")


@pytest.fixture
def view(spark, monkeypatch, tmp_path):
    """Mount a folder, and return its URI: Spark has a link to it, and Python one of a scheme."""
    far = tmp_path / "far"
    far.mkdir()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()

    def mount(name, scheme):
        key = f"fs.viewfs.mounttable.{name}.link./recon"
        site = SITE.format(key=key, link=f"{scheme}{far}")
        (tmp_path / "core-site.xml").write_text(site)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        monkeypatch.setattr(storage, "FileSystem", Disk)
        hadoop.set(key, far.as_uri())  # Java has read its environment before.
        return f"viewfs://{name}/recon"

    return mount


@pytest.fixture
def run_there(spark, monkeypatch, tmp_path):
    """Run the command for a stage whose results are elsewhere; return its options."""
    spark_session.lend(monkeypatch, spark)

    def run(stage, uri, expected, number=0):
        there = stage.copy_without_results(tmp_path / f"there{number}")
        config = there.home / "recon.toml"
        config.write_text(RULES.replace('directory = "recon"', f'directory = "{uri}"'))
        arguments = ["--date", str(expected.day), "--config", str(config)]
        done = CliRunner().invoke(app, ["reconcile", *arguments, "--quiet"])
        assert done.exit_code == CODES[expected.result.verdict], done.output
        other = Results(uri).current(expected.day)
        assert other.run_id == expected.run_id
        assert (other.extract_id, other.result_digest) == (
            expected.extract_id,
            expected.result_digest,
        )
        return arguments

    return run


def test_a_view_of_a_mounted_folder_has_the_same_result(wednesday, view, run_there):
    run_there(wednesday[0], view("mounted", "file://"), wednesday[1])


@pytest.mark.soak  # test_storage.py covers deaths at each change of a store like this.
def test_dates_on_another_file_system_have_the_same_results(wednesday, thursday, view, run_there):
    (first, one), (stage, two) = wednesday, thursday
    uri = view("far", "hdfs://cluster")
    for number, (there, run) in enumerate([(first, one), (stage, two), (stage, two)]):
        arguments = run_there(there, uri, run, number)

    found, wanted = (
        {path for path in Results(place).folder.files() if not path.endswith((".crc", "lock"))}
        for place in (uri, stage.directory)
    )
    assert found == wanted
    listed = CliRunner().invoke(app, ["reconcile", "breaks", *arguments])
    assert "delivered-uncredited" in listed.output


def test_a_bank_over_jdbc_is_extracted_into_a_remote_folder(spark, view, tmp_path):
    connection = spark._jvm.java.sql.DriverManager.getConnection(Core.url)
    statement = connection.createStatement()
    columns = (
        '"id" BIGINT, "transfer" VARCHAR(9), "account" VARCHAR(9), "amount" BIGINT, '
        '"currency" CHAR(3), "kind" VARCHAR(9), "booked" BIGINT'
    )
    statement.execute(f"CREATE TABLE journal ({columns})")
    for row in (1, "T1", "alice", -5), (2, "T1", "clearing", 5):
        values = ", ".join(map(repr, (*row, "CNY", "debit", NOON_MS)))
        statement.execute(f"INSERT INTO journal VALUES ({values})")
    bank = bank_of(Core)

    rules = rules_of(tmp_path, bank)
    (tmp_path / "broker" / "log").mkdir(parents=True)
    rules = replace(rules, log=LogRules(str(tmp_path / "broker")))
    here = extract_day(spark, rules, DAY, open_folder(rules.directory))
    there = open_folder(view("core", "hdfs://cluster"))
    found = extract_day(spark, rules, DAY, there)

    assert found.extract_id == here.extract_id
    load(spark, found, there.at("extracts", found.business_date, found.extract_id))
