"""A `txmq console` as a real process, the requests of its visitors, and a cluster to show."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from html import unescape

import httpx

from tests.servers.serving import START_SECONDS, STOP_SECONDS, environment
from txmq import LocalTransactionState, TransactionProducer, blocking
from txmq.client import Admin, Session
from txmq.console.app import console_app
from txmq.console.settings import ConsoleSettings
from txmq.message import Message
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendMessageV2
from txmq.protocol.properties import render
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings

HOSTILE = "<script>document.title='owned'</script>\x1b[31m\u202e\"'&{{7*7}}"
PARKING = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=0.01, check_interval=1.0, check_max=1),
)
"""Asks at once, waits for the answer, and parks if it is no decision."""
TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


ORIGIN = "http://localhost:8080"


@asynccontextmanager
async def visitor(names, clock=None, **settings):
    """A visitor of a console in this process, by default without accounts."""
    given = {"origins": frozenset({ORIGIN}), "needs_login": False} | settings
    app = console_app(ConsoleSettings(names=names, **given), clock)
    inner = app._app._app  # Inside the layers that count and check requests.
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=ORIGIN, headers={"origin": ORIGIN}
    )
    async with inner.router.lifespan_context(inner), client:
        yield client


class ConsoleProcess:
    """A console, on a free port by default; its open pages refresh every second."""

    def __init__(self, names, *options, port=0):
        command = [sys.executable, "-m", "tests.integration.console.swift_console", "console"]
        command += ["--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            [*command, "--names", names, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        watch = threading.Timer(START_SECONDS, self.process.kill)
        watch.start()
        self.ready = self.process.stdout.readline()
        watch.cancel()
        assert self.ready.startswith("ready"), self.process.stderr.read()
        self.url = re.search(r"http://127\S+", self.ready)[0]

    def __enter__(self):
        return self

    def __exit__(self, *ending):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=STOP_SECONDS)

    def stop(self):
        """Send SIGTERM: it finishes its answers and exits 0. Returns what it wrote to stderr."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        errors = self.process.stderr.read()
        assert code == 0, errors
        return errors


class Visitor:
    """A browser without scripts: it keeps cookies, and returns the tokens of its pages."""

    def __init__(self, url):
        self.url = url
        self._client = httpx.Client(base_url=url, follow_redirects=True, timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *ending):
        self._client.close()

    def get(self, path, **more):
        return self._client.get(path, **more)

    def post(self, path, page=None, **fields):
        """Fill in a form of a page, by default of the page at the same address."""
        match = TOKEN.search(self.get(page or path).text)
        data = ({"token": match[1]} if match else {}) | fields
        return self._client.post(path, data=data, headers={"origin": self.url})

    def event(self, path, shown=""):
        """The next event for a page with a given mark: its name, its HTML, and its new mark."""
        query = {"page": path, "shown": shown}
        with self._client.stream("GET", "/live", params=query) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.read()
            return next(events_in(answer.iter_lines()))

    def log_in(self, access_key, secret_key, to="/"):
        return self.post(f"/login?next={to}", access_key=access_key, secret_key=secret_key)


def events_in(lines):
    """The events of a stream: name, data and id."""
    name, data, mark = "", [], ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            mark = value
        elif not line and name:
            yield name, "\n".join(data), mark
            name, data, mark = "", [], ""


def mark_of(response):
    """The mark of what a page shows."""
    return re.search(r'data-mark="(\S+)"', response.text)[1]


def text_of(response):
    """Roughly the text that a reader sees of a page, or of a part of it."""
    html = response if isinstance(response, str) else response.text
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def run_apart(work):
    """Run a coroutine in another thread: an open browser has a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def asked(names, question):
    async def ask():
        async with Session(names) as session:
            return await question(Admin(session), session)

    return run_apart(ask())


class Undecided:
    """The listener of a bank that never decides a transfer."""

    def execute_local_transaction(self, _message, _argument):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, _message):
        return LocalTransactionState.UNKNOWN


def park(names, *keys, group="icbc", topic="Transfers", body=b'{"amount": 6000}'):
    """Transactions that the broker has parked; their ids by key."""

    async def main():
        bank = TransactionProducer(group, names, Undecided())
        async with Session(names) as session, bank:
            admin = Admin(session)
            await admin.create_topic(topic, queues=1)
            for key in keys:
                await bank.send_in_transaction(Message(topic=topic, body=body, keys=(key,)), None)
            async with asyncio.timeout(20):
                while True:
                    parked = await admin.transactions(state="parked", group=group)
                    if len(parked) >= len(keys):
                        return {transaction.keys[0]: transaction.id for transaction in parked}
                    await asyncio.sleep(0.01)

    return run_apart(main())


def bury(
    names, *ids, group="g", reason="no such account", body=b"pay", tags="", attempts=17,
    topic="Transfers",
):  # fmt: skip
    """Store dead letters as a broker does; ``%s`` in the body becomes the id."""

    async def put(admin, session):
        dead = f"%DLQ%{group}"
        await admin.create_group(group)
        await admin.create_topic(dead, queues=1)
        await admin.create_topic(f"%RETRY%{group}", queues=1)
        (address,) = (await session.route(dead)).addresses.popitem()[1].values()
        for message_id in ids:
            named = {"UNIQ_KEY": message_id, "KEYS": f"k-{message_id}", "RETRY_TOPIC": topic}
            named |= {"ORIGIN_MESSAGE_ID": "0A" * 16, "DLQ_REASON": reason, "TAGS": tags}
            header = SendMessageV2(
                producer_group=group, topic=dead, default_topic="TBW102",
                default_topic_queue_nums=1, queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
                properties=render({name: text for name, text in named.items() if text}),
                reconsume_times=attempts,
            )  # fmt: skip
            text = body.replace(b"%s", message_id.encode())
            await session.request(address, RequestCode.SEND_MESSAGE_V2, header, body=text)

    asked(names, put)


def consume(names, group, topic, bodies):
    """A group that has consumed all but the last of some messages of a topic."""

    async def run(admin, _session):
        route = await admin.create_topic(topic, queues=1)
        (queue,) = route.writable
        messages = [Message(topic=topic, body=body, keys=("k-1",)) for body in bodies]
        receipts = [await admin.send(message) for message in messages]
        await admin.create_group(group)
        await admin.commit_offset(group, queue, len(bodies) - 1)
        return receipts

    return asked(names, run)


def delay(names, topic, key):
    """A message that waits for an hour, and one that waits for minutes; the first one's handle."""

    async def send(admin, _session):
        await admin.send(Message(topic=topic, body=b"x", keys=("later",), delay_level=9))
        late = Message(topic=topic, body=b"x", properties={"note": key}, deliver_after=3_600)
        return (await admin.send(late)).recall_handle

    return asked(names, send)


@contextmanager
def connected(names, group, topic):
    """A producer that stays connected, in its own thread."""
    with ThreadPoolExecutor(1) as pool:
        producer = blocking.Producer(group, names)
        pool.submit(producer.__enter__).result()
        try:
            pool.submit(producer.send, Message(topic=topic, body=b"x")).result()
            yield
        finally:
            pool.submit(producer.__exit__, None, None, None).result()
