"""Files are read again when they change, and no failure ends that."""

import asyncio

from tests.waiting import run, until
from txmq.security import watched_files
from txmq.security.watched_files import WatchedFiles


def test_an_unexpected_error_is_logged_without_its_text_and_the_watch_goes_on(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(watched_files, "WATCH_S", 0.001)
    file = tmp_path / "key.pem"
    file.write_text("first")

    def read():
        text = file.read_text()
        if text.startswith("broken"):
            raise RuntimeError(text)
        return text

    files = WatchedFiles(lambda: [file], read, "certificates")

    async def scenario():
        watch = asyncio.create_task(files.watch())
        file.write_text("broken secret")
        await until(lambda: caplog.records or watch.done())
        assert files.value == "first"
        file.write_text("second one")
        await until(lambda: files.value == "second one" or watch.done())
        assert not watch.done()
        watch.cancel()

    run(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "the certificates cannot be read: RuntimeError; the certificates from before stay in force",
        f"certificates read again: {file}",
    ]
