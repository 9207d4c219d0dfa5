"""The formula for disks on the page about sizing fits a broker's files."""

import asyncio
import re
from pathlib import Path

import pytest

import txmq
from txmq_broker.app import Broker
from txmq_broker.testing import settings_for_test

PAGE = (Path(__file__).resolve().parents[2] / "docs/explanation/sizing.md").read_text()
(OVERHEAD,) = map(int, re.findall(r"messages a day × \(body \+ (\d+) bytes\)", PAGE))
MESSAGES = 500


def file_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def grown_by(folder, body):
    """Bytes by which a broker's files grow for each message with this body."""
    settings = settings_for_test(str(folder))
    async with Broker(settings) as broker, txmq.Producer("sizing", broker.names) as producer:
        await producer.send(txmq.Message(topic="Orders", body=b"first"))
    before = file_bytes(folder)
    async with Broker(settings) as broker, txmq.Producer("sizing", broker.names) as producer:
        for number in range(MESSAGES):  # One at a time, which takes the most.
            key = f"order-{number}"
            await producer.send(txmq.Message(topic="Orders", body=body, tags="placed", keys=(key,)))
    return (file_bytes(folder) - before) / MESSAGES


@pytest.mark.parametrize("size", [100, 1024])
def test_the_size_of_a_message_on_disk_fits_the_formula_of_the_page(tmp_path, size):
    grown_bytes = asyncio.run(grown_by(tmp_path, b"x" * size))

    assert grown_bytes - size == pytest.approx(OVERHEAD, rel=0.03)
