"""What an installed wheel can do, tried by the Python that has it and by nothing of a checkout.

python -P stranger.py MODULE...

A public name loads, or says in one line which extra it needs. A message reaches a broker in this
process, which needs no extra.
"""

import asyncio
import re
import sys
from importlib import import_module
from tempfile import TemporaryDirectory

import txmq
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings


def load_names(module: str) -> None:
    """Load every public name of a module."""
    try:
        loaded = import_module(module)
        for name in getattr(loaded, "__all__", ()):
            getattr(loaded, name)
    except txmq.errors.ConfigError as error:
        if not re.fullmatch(r".*txmq\[\w+\].*", str(error)):
            raise


async def send() -> None:
    """Send one message."""
    with TemporaryDirectory() as data:
        settings = BrokerSettings(data=data, listen="127.0.0.1:0", names_listen="127.0.0.1:0")
        async with (
            Broker(settings) as running,
            txmq.Producer("stranger", running.names) as producer,
        ):
            await producer.send(txmq.Message(topic="Orders", body=b"tea"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        load_names(name)
    asyncio.run(send())
