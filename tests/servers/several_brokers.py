"""A `txmq serve --brokers N` as a real process, with its pages and the processes of its brokers."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress

from tests.integration.worker.worker_process import PATIENCE_S, wait_for
from tests.servers.serving import BrokerProcess, ask, environment, free_port
from txmq.client import Admin, Session

SEARCH_ROUTE = 105


class SeveralBrokers(BrokerProcess):
    """The supervisor. ``close`` also ends the brokers that a killed one left behind."""

    def __init__(self, folder, count=2, flush="sync", settings=(), options=()):
        super().__init__(folder, flush, settings)
        self.count = count
        self.options = options
        self.address = f"127.0.0.1:{free_ports(count)}"
        self.http = f"127.0.0.1:{free_port()}"
        self._seen = set()

    @property
    def addresses(self):
        host, port = self.address.split(":")
        return [f"{host}:{int(port) + 10 * place}" for place in range(self.count)]

    def command(self):
        several = ["--brokers", str(self.count), "--http", self.http, *self.options]
        return [*super().command(), *several]

    def start(self):
        super().start()
        self._note_pids()

    def _note_pids(self):
        # A broker that is about to start again has no process.
        self._seen.update(filter(None, self.pids().values()))

    def page(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def info(self):
        return json.loads(self.page("/info")[1])

    def pids(self):
        """The process of each broker that runs now."""
        return {broker["name"]: broker["pid"] for broker in self.info()["brokers"]}

    def ready_lines(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("ready ")]

    def until_healthy(self, killed=None):
        """Wait until all brokers serve, and none is the process that was killed a moment ago."""
        wait_for(
            lambda: killed not in self.pids().values() and self.page("/health/ready")[0] == 200,
            self.tail,
        )
        self._note_pids()

    def refusal(self, *words):
        """The exit code of a command about this directory, and its last line."""
        verb, more = words[0].split(), words[1:]
        done = subprocess.run(
            [sys.executable, "-m", "txmq", *verb, "--data", str(self.folder / "data"), *more],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(),
            cwd=self.folder,
            check=False,
        )
        return done.returncode, done.stderr.splitlines()[-1]

    def create_topic(self, name, queues):
        """As `txmq topic create` does it, at all brokers; returns when routes name them all."""

        async def create():
            async with Session(self.names) as session:
                await Admin(session).create_topic(name, queues)

        asyncio.run(create())
        wait_for(lambda: len(self.brokers_of(name)) == self.count, self.tail)

    def brokers_of(self, topic):
        """The brokers of a topic, as the name server routes it."""
        code, _, body = ask(self.names, SEARCH_ROUTE, topic=topic, acceptStandardJsonOnly="true")
        return (
            sorted(queues["brokerName"] for queues in json.loads(body)["queueDatas"])
            if code == 0
            else []
        )

    def ends_at(self, topic, queues):
        """How many messages each broker has of a topic."""
        counts = []
        first = self.address
        for address in self.addresses:
            self.address = address
            counts.append(sum(self.max_offset(topic, queue) for queue in range(queues)))
        self.address = first
        return counts

    def close(self):
        super().close()
        for pid in self._seen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_ports(count):
    """A port that is free, and so are those of the other brokers above it."""
    while True:
        port = free_port()
        others = [port + 10 * place for place in range(1, count)]
        if all(is_free(neighbour) for neighbour in others):
            return port


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
