"""Results on other file systems: whole after any death, and never written by two runs."""

import os
from contextlib import ExitStack
from datetime import date

import msgspec
import pytest

from tests.reconcile import breaks
from tests.reconcile.dying_run import write_table
from tests.reconcile.object_store import Killed, Store
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.explanations import BreakNote, Explanations
from txmq.reconcile.results import Results, open_results
from txmq.reconcile.storage import LEASE_S, Folder, LocalFolder, open_folder

DAY = date(2026, 11, 20)
SITE = """<configuration>
<property><name>fs.viewfs.mounttable.bank.link./recon</name><value>file://{home}/far</value></property>
<property><name>fs.viewfs.mounttable.bank.link./recon/old</name><value>file:///old</value></property>
</configuration>"""


@pytest.fixture(params=[True, False], ids=["objects", "folders"])
def store(request):
    return Store(has_objects=request.param)


def items(count):
    return breaks.items({f"icbc/{index}": "parked" for index in range(count)}, DAY)


def work(folder, letter, count):
    """A run that writes two tables and is published."""
    run = breaks.run(DAY, letter * 16, parked=count)
    with open_results(folder) as results:
        tables = {"items": items(count), "closed": items(1)}
        contents = {
            name: write_table(results, name, table, DAY, run.run_id)
            for name, table in tables.items()
        }
        result = msgspec.structs.replace(run.result, contents=contents)
        run = msgspec.structs.replace(run, result=result, result_digest=result.digest)
        results.publish(run, {"report.html": letter.encode()})
    return run


def deaths(store, act):
    """Let the process die before each of its changes, from the same state; yield after each."""
    before, folders = dict(store.files), set(store.folders)
    for number in range(1_000):
        store.files, store.folders = dict(before), set(folders)
        store.live(dies_at=number)
        try:
            act()
        except Killed:
            store.live()
            yield
        else:
            return
    raise AssertionError("it does not end")


def test_a_run_that_dies_at_any_change_leaves_the_former_or_the_new_result(store):
    former = work(store.folder(), "a", 2)
    left = dict(store.data())
    new = work(store.folder(), "b", 3)
    whole = store.data()
    store.files = {path: (data, 0) for path, data in left.items()}

    seen = []
    for _ in deaths(store, lambda: work(store.folder(), "b", 3)):
        results = Results(store.folder())
        current = results.current(DAY)
        assert current in (former, new)
        results.verify(current)
        assert results.days() == [DAY]
        seen.append(current == new)
        assert work(store.folder(), "b", 3) == new
        assert store.data() == whole

    assert len(seen) > 15
    assert seen == sorted(seen)  # The last step decides.


def test_a_damaged_table_in_force_is_rewritten_after_any_death(store):
    run = work(store.folder(), "a", 2)
    whole = store.data()
    (part,) = (path for path in whole if "/items/" in path)
    store.put(part, b"no rows")

    for _ in deaths(store, lambda: work(store.folder(), "a", 2)):
        current = Results(store.folder()).current(DAY)
        assert current in (None, run)
        # A run whose table is missing is not in force.
        assert current is None or store.data().get(part) in (b"no rows", whole[part])
        work(store.folder(), "a", 2)
        assert store.data() == whole


def test_a_chain_ends_with_the_run_that_continues_no_other(store):
    run = work(store.folder(), "a", 1)
    assert Results(store.folder()).chain(run, DAY) == [run]


def test_signatures_and_notes_are_old_or_new_after_any_death(store):
    run = work(store.folder(), "a", 1)
    people = Explanations(store.folder())
    people.add([BreakNote("0" * 16, "Ann", 1, owner="Bo")])

    def write():
        Results(store.folder()).sign("preparer", run, "Ann", 5, despite="known")
        Explanations(store.folder()).add([BreakNote("0" * 16, "Cy", 2, owner="Di")])

    seen = []
    for _ in deaths(store, write):
        signed = [signature.by for signature in Results(store.folder()).signatures(DAY.isoformat())]
        owner = Explanations(store.folder()).notes()["0" * 16].owner
        assert (signed, owner) in [([], "Bo"), (["Ann"], "Bo"), (["Ann"], "Di")]
        seen.append((*signed, owner))
        if not signed:
            write()
        people.add([BreakNote("0" * 16, "Eve", 3, owner="Flo")])
        assert people.notes()["0" * 16].owner == "Flo"
    assert set(seen) == {("Bo",), ("Ann", "Bo"), ("Ann", "Di")}


def test_an_extract_appears_only_with_its_last_file(store):
    home = store.folder().at("extracts", "D")
    final = home.at("e")
    other = final.at("icbc", "entries")

    def write():
        """Spark writes into the draft itself."""
        with home.staging() as (draft, _):
            draft.write("icbc/entries/part-00000.parquet", b"rows")
            draft.replace("manifest.json", b"{}")
            return final.take(draft, "manifest.json")

    def left():
        other.write("part-00001.parquet", b"cut in other parts")

    left()
    for _ in deaths(store, write):
        if final.exists("manifest.json"):
            assert not write()
        else:
            left()
            assert write()
        assert final.files() == ["icbc/entries/part-00000.parquet", "manifest.json"]
        assert final.read("manifest.json") == b"{}"


def test_a_second_writer_is_refused_until_the_claim_of_the_first_expires(store):
    folder = store.folder()
    with open_results(folder) as results:
        with pytest.raises(ReconcileRefused, match="another run works in s3a://b/recon .*claims"):
            open_results(store.folder()).__enter__()
        store.now += LEASE_S  # It does not renew its claim any more.
        with open_results(store.folder()):
            pass
        with pytest.raises(ReconcileRefused, match="is gone: this process did not renew"):
            results.publish(breaks.run(DAY), {})
    assert Results(folder).current(DAY) is None
    assert folder.at("claims").files() == []


def test_a_run_that_lost_its_claim_leaves_the_drafts_of_the_new_run(store):
    drafts = store.folder().at("results", ".drafts")
    with ExitStack() as late:
        late.enter_context(open_results(store.folder()))
        store.now += LEASE_S  # It does not renew its claim any more.
        with open_results(store.folder()):
            drafts.write("items/part-0", b"rows")
            late.close()
            assert drafts.files() == ["items/part-0"]
    assert drafts.files() == []


def test_a_store_that_goes_away_raises_the_error_of_the_work_not_of_the_cleanup(store):
    def look():
        with open_results(store.folder()) as results:
            store.is_down = True
            results.current(DAY)

    with pytest.raises(OSError, match="for b/recon/runs"):
        look()


def test_a_viewfs_uri_resolves_to_its_linked_folder(monkeypatch, tmp_path):
    (tmp_path / "core-site.xml").write_text(SITE.format(home=tmp_path))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    folder = open_folder("viewfs://bank/recon/nightly/")

    with open_results(folder):
        pass
    assert isinstance(folder, LocalFolder)
    assert os.listdir(tmp_path / "far" / "nightly") == ["lock"]
    assert folder.at("runs").uri == "viewfs://bank/recon/nightly/runs"
    assert str(open_folder("viewfs://bank/recon/old/x")) == "/old/x"
    with pytest.raises(ConfigError, match="no link of the mount table 'bank' covers /recons"):
        open_folder("viewfs://bank/recons")


def test_an_object_store_is_opened_with_hadoop_settings(monkeypatch, tmp_path):
    asked = {}

    class S3:
        type_name = "s3"

        def __init__(self, **settings):
            asked.update(settings)

        def get_file_info(self, path):
            asked["path"] = path

    monkeypatch.setattr("pyarrow.fs.S3FileSystem", S3)
    names = {"endpoint": "http://127.0.0.1:9000", "endpoint.region": "cn-north-1"}
    rows = "".join(
        f"<property><name>fs.s3a.{name}</name><value>{value}</value></property>"
        for name, value in names.items()
    )
    (tmp_path / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    folder = open_folder("s3a://bank/recon")

    assert isinstance(folder, Folder)
    assert (folder.local, folder.uri) == (None, "s3a://bank/recon")
    assert asked.pop("allow_delayed_open")
    found = {name: value for name, value in asked.items() if value is not None}
    assert found == {
        "endpoint_override": "127.0.0.1:9000", "scheme": "http", "region": "cn-north-1",
        "path": "bank/recon",
    }  # fmt: skip


def test_a_file_system_without_its_library_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", None)
    monkeypatch.delattr("pyarrow.fs.S3FileSystem")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match="'s3a://b/r' cannot be reached from Python: [^\n]*$"):
        open_folder("s3a://b/r")
