"""Files of accounts that are read again: no content of a file stops that."""

import asyncio
import contextlib
import logging
import threading
from pathlib import Path

import pytest
import yaml

from tests.waiting import run, until
from txmq.errors import ConfigError
from txmq.security import watched_files
from txmq_broker.access import acl_files
from txmq_broker.access.acl_files import AclFiles

SHOP = "- {accessKey: the-shop, secretKey: the shop secret}\n"
BILL = "- {accessKey: the-bill, secretKey: the bill secret}\n"
DAMAGED = {
    "a date that does not exist": "- {accessKey: the-till, secretKey: 2026-13-01}\n",
    "a time zone that does not exist": (
        "- {accessKey: the-till, secretKey: 2026-01-01T00:00:00+99:00}\n"
    ),
    "text that its tag calls a truth": "- {accessKey: the-till, admin: !!bool maybe}\n",
    "a number without digits": "- {accessKey: the-till, secretKey: 0x_}\n",
    "a number of 10,000 digits": f"- {{accessKey: the-till, secretKey: {'7' * 10_000}}}\n",
    "half of a pair of surrogates": '- {accessKey: the-till, secretKey: "a secret \\uD800"}\n',
    "deep nesting": f"- {'[' * 5_000}{']' * 5_000}\n",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.touch(0o600)
    path.write_text(f"accounts:\n{SHOP}{BILL}")
    return path


@pytest.fixture(params=["libyaml", "without libyaml"])
def loader(request, monkeypatch):
    if request.param == "without libyaml":
        monkeypatch.delattr(yaml, "CSafeLoader")


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_refuses_the_start_and_names_the_line(file, kind):
    file.write_text(f"accounts:\n{SHOP}{DAMAGED[kind]}")
    with pytest.raises(ConfigError) as refused:
        AclFiles(file)
    text = str(refused.value)
    assert text.startswith(f"{file}: ")
    assert any(place in text for place in ("line 3", "some line", "account the-till"))
    assert not {"2026", "0x_", "777", "secret \\uD800"} & set(text.split())


@pytest.mark.parametrize("kind", DAMAGED)
def test_after_a_damaged_file_a_removed_account_is_still_noticed(file, caplog, monkeypatch, kind):
    monkeypatch.setattr(watched_files, "WATCH_S", 0.001)
    files = AclFiles(file)

    def kept():
        return [record for record in caplog.records if "stay in force" in record.getMessage()]

    async def scenario():
        watch = asyncio.create_task(files.watch())
        file.write_text(f"accounts:\n{SHOP}{BILL}{DAMAGED[kind]}")
        await until(lambda: kept() or watch.done())
        assert not watch.done()
        assert set(files.rules.accounts) == {"the-shop", "the-bill"}
        file.write_text(f"accounts:\n{SHOP}")
        await until(lambda: "the-bill" not in files.rules.accounts)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch

    run(scenario)
    assert [record.levelno for record in kept()] == [logging.ERROR]


def test_requests_are_served_while_accounts_are_read(file, monkeypatch):
    monkeypatch.setattr(watched_files, "WATCH_S", 0.001)
    files = AclFiles(file)
    is_read, may_end, parse = threading.Event(), threading.Event(), acl_files.parse

    def slow_parse(name, text):
        is_read.set()
        assert may_end.wait(10), "the event loop waits for the reading"
        return parse(name, text)

    async def scenario():
        monkeypatch.setattr(acl_files, "parse", slow_parse)
        watch = asyncio.create_task(files.watch())
        file.write_text(f"accounts:\n{SHOP}")
        await until(is_read.is_set)
        assert set(files.rules.accounts) == {"the-shop", "the-bill"}
        may_end.set()
        await until(lambda: set(files.rules.accounts) == {"the-shop"})
        watch.cancel()

    run(scenario)


def test_a_folder_that_is_unreadable_for_a_while_does_not_end_the_watch(file, monkeypatch, caplog):
    files = AclFiles(file)
    file.write_text(f"accounts:\n{SHOP}")

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as folder:
        folder.setattr(Path, "is_dir", refuse)
        for _ in range(10):
            files.refresh()
    (line,) = [record.getMessage() for record in caplog.records]
    assert (
        line == f"{file} cannot be read: Permission denied; the accounts from before stay in force"
    )
    files.refresh()
    assert set(files.rules.accounts) == {"the-shop"}


def test_an_unreadable_file_is_read_again_even_if_unchanged(file, monkeypatch):
    files = AclFiles(file)
    file.write_text(f"accounts:\n{SHOP}")

    def refuse(_):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as reading:
        reading.setattr(Path, "read_text", refuse)
        files.refresh()
    assert set(files.rules.accounts) == {"the-shop", "the-bill"}
    for _ in range(60):
        files.refresh()
    assert set(files.rules.accounts) == {"the-shop"}
