"""The accounts of a follower are those of its leader, and nothing of its own is lost."""

import asyncio
import logging

import pytest

from txmq.errors import ConfigError
from txmq.runtime.clock import SystemClock
from txmq_broker.access.account_copies import AccountsCopy

OPERATOR = "- {accessKey: operator, secretKey: the first secret, admin: true}\n"
FIRST = f"accounts:\n{OPERATOR}"
SECOND = f"accounts:\n{OPERATOR}- {{accessKey: the-shop, secretKey: the second secret}}\n"
EDITED = f"# by hand\n{FIRST}"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "acl" / "plain_acl.yml"


@pytest.fixture
def copy(file):
    return AccountsCopy(str(file), SystemClock())


def write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.touch(0o600)
    file.write_text(text)


def take(copy, texts, before):
    return asyncio.run(copy.take(texts, before))


def restore(copy):
    asyncio.run(copy.restore())


def kept(file):
    return [path.read_text() for path in file.parent.iterdir() if ".before-" in path.name]


def test_a_follower_without_a_file_gets_one_readable_only_by_its_owner(copy, file):
    assert take(copy, {"": FIRST}, "")
    assert file.read_text() == FIRST
    assert file.stat().st_mode & 0o777 == 0o600


def test_changes_from_the_leader_leave_no_backup_files(copy, file, caplog):
    before = take(copy, {"": FIRST}, "")
    after = take(copy, {"": SECOND}, before)
    assert (file.read_text(), kept(file), before == after) == (SECOND, [], False)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_local_edit_is_kept_as_a_backup_and_logged(copy, file, caplog, is_first):
    before = "" if is_first else take(copy, {"": FIRST}, "")
    write(file, EDITED)
    take(copy, {"": SECOND}, before)
    assert (file.read_text(), kept(file)) == (SECOND, [EDITED])
    (line,) = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert "had other accounts than the leader" in line
    assert ".before-" in line
    assert "secret" not in line


def test_a_local_edit_is_undone_after_a_while(copy, file):
    take(copy, {"": FIRST}, "")
    write(file, EDITED)
    for _ in range(4):
        restore(copy)
    # The leader may have the same file, and ship this change now.
    assert file.read_text() == EDITED
    restore(copy)
    assert (file.read_text(), kept(file)) == (FIRST, [EDITED])
    file.unlink()
    for _ in range(5):
        restore(copy)
    assert file.read_text() == FIRST


def test_a_follower_keeps_its_accounts_if_the_leader_has_none(copy, file, caplog):
    write(file, EDITED)
    assert take(copy, {}, "") == take(copy, {}, "") == ""
    restore(copy)
    assert file.read_text() == EDITED
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"the leader has no accounts; this member keeps its own in {file}"


def test_a_follower_started_without_accounts_refuses_those_of_the_leader():
    copy = AccountsCopy("", SystemClock())
    assert take(copy, {}, "") == ""
    with pytest.raises(ConfigError, match="the leader has accounts.*start it with --acl FILE"):
        take(copy, {"": FIRST}, "")


def test_a_directory_of_accounts_follows_the_files_of_the_leader(tmp_path):
    folder = tmp_path / "acl"
    copy = AccountsCopy(str(folder), SystemClock())
    before = take(copy, {"a.yml": FIRST, "more/b.yml": "accounts: []\n"}, "")
    take(copy, {"a.yml": SECOND}, before)
    assert sorted(path.name for path in folder.rglob("*.yml*")) == ["a.yml"]
    assert (folder / "a.yml").read_text() == SECOND


REFUSED = {
    "a directory here": ({"": FIRST}, "is a directory, and the leader has its accounts in a file"),
    "another name": ({"../x.yml": FIRST}, "not a valid file name"),
    "a whole path": ({"/etc/x.yml": FIRST}, "not a valid file name"),
    "no accounts": ({"x.txt": FIRST}, "not a valid file name"),
    "not YAML": ({"x.yml": "accounts: ["}, "x.yml: line 1 is not YAML"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_accounts_of_the_leader_change_nothing(tmp_path, kind):
    texts, reason = REFUSED[kind]
    copy = AccountsCopy(str(tmp_path), SystemClock())
    with pytest.raises(ConfigError, match=reason):
        take(copy, texts, "")
    assert list(tmp_path.iterdir()) == []


def test_accounts_that_cannot_be_written_are_an_error(tmp_path):
    (tmp_path / "acl").write_text("")
    copy = AccountsCopy(str(tmp_path / "acl" / "plain_acl.yml"), SystemClock())
    with pytest.raises(ConfigError, match="the leader's accounts cannot be written to"):
        take(copy, {"": FIRST}, "")
