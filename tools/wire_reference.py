"""Print docs/reference/wire.md: every request, and who serves it, read from the handlers
themselves.
"""

import asyncio
import inspect

from txmq.protocol.codes import RequestCode
from txmq.remoting.dispatch import RunHandler
from txmq_broker.app import Broker
from txmq_broker.testing import embedded

HEAD = """\
# Requests on the wire

<!-- Printed by `python -m tools.wire_reference`; change the handlers, not this page. -->

Which of RocketMQ's requests are served, and by whom.
Every other code is answered with 3, "request type ... not supported", by brokers and name servers
alike. Requests that a broker sends to clients are marked so.

| code | request | broker | name server | |
|---|---|---|---|---|
"""

TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE: "sent to a producer that has not ended its half message",
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "sent to clients when their group changes",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "sent to the client that waits for a reply",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "sent to clients when their offsets are reset",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "sent to clients when a tool asks",
}


def first_line(handler: object) -> str:
    """What a handler's docstring says behind its codes."""
    if isinstance(handler, RunHandler):
        handler = handler.serve
    text = (inspect.getdoc(handler) or "").split("\n", 1)[0]
    return text.partition(": ")[2] or text


def page(broker: Broker) -> str:
    """The whole page."""
    ours, names = broker.served()
    rows = []
    for code in RequestCode:
        handler = ours.get(code) or names.get(code)
        note = first_line(handler) if handler else TO_CLIENTS.get(code, "not served")
        marks = ["yes" if code in table else "" for table in (ours, names)]
        rows.append(f"| {int(code)} | {code.name} | {marks[0]} | {marks[1]} | {note} |")
    return HEAD + "\n".join(rows) + "\n"


async def main() -> None:
    """Start a broker, read its tables, print the page."""
    async with embedded() as broker:
        print(page(broker), end="")


if __name__ == "__main__":
    asyncio.run(main())
