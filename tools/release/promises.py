"""What an installed wheel promises, tried by the Python that has it and by nothing of a checkout.

python -P promises.py RULES EXTRAS MODULE...

EXTRAS are the extras that are installed, separated by commas. A thing that another extra installs
must fail with one line that names this extra.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from re import findall

import txmq
from txmq.blocking import Producer, PullConsumer
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

TXMQ = [sys.executable, "-m", "txmq"]
START_S = 60
COMMANDS = (
    "--help",
    "config reference",
    "schema sql fence --dialect postgresql",
    "schema create fence --database sqlite:///bank.db",
    "schema create outbox --database sqlite:///bank.db",
    "schema create done --database sqlite:///bank.db",
    "reconcile --help",
    "reconcile breaks --config {rules} --date 2026-01-01",
)
NO_RESULT = "reconcile breaks"
"""It has no result to read, and says so in its own words."""


class Broken(Exception):
    """A promise is not kept."""


def see_named(text: str, what: str, extras: set[str]) -> None:
    """A failure is one line that names an extra which is not installed."""
    lines = text.strip().splitlines()
    named = findall(r"txmq\[(\w+)\]", lines[-1]) if len(lines) == 1 else []
    if not named or set(named) & extras:
        raise Broken(f"{what} must work, or name the extra in one line; it says: {text}")


def attempt(what: str, extras: set[str], action: Callable[..., object], *given: object) -> None:
    """Let an action work, or name its extra."""
    try:
        action(*given)
    except txmq.errors.ConfigError as error:
        see_named(str(error), what, extras)


def load_names(modules: list[str], extras: set[str]) -> None:
    """Load every public name."""
    for module in modules:
        attempt(module, extras, import_module, module)
        for name in getattr(sys.modules.get(module), "__all__", ()):
            attempt(f"{module}.{name}", extras, getattr, sys.modules[module], name)


def run_commands(rules: str, extras: set[str]) -> None:
    """Run commands that need no broker."""
    for command in COMMANDS:
        words = command.format(rules=rules).split()
        done = subprocess.run([*TXMQ, *words], capture_output=True, text=True, check=False)
        if "Traceback" in done.stderr:
            raise Broken(f"txmq {command} prints a traceback: {done.stderr}")
        if done.returncode and not (command.startswith(NO_RESULT) and "spark" in extras):
            see_named(done.stderr, f"txmq {command}", extras)


@contextmanager
def broker() -> Iterator[str]:
    """``txmq serve`` as a process; the address of its name server."""
    serve = [*TXMQ, "serve", "--data", "data", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*serve, "--names-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=Path("serve.log").open("w"),
        text=True,
    ) as process:
        try:
            ready = process.stdout.readline().split()
            if ready[:1] != ["ready"]:
                raise Broken(f"txmq serve did not start: {Path('serve.log').read_text()}")
            yield ready[ready.index("names") + 1]
            process.send_signal(signal.SIGTERM)
            if code := process.wait(START_S):
                raise Broken(f"txmq serve ended with {code}: {Path('serve.log').read_text()}")
        finally:
            process.kill()


def send_and_consume(names: str) -> None:
    """Send one message and pull it."""
    with Producer("stranger", names) as producer:
        producer.send(txmq.Message(topic="Orders", body=b"tea"))
    consumer = PullConsumer("strangers", names, txmq.ConsumerSettings(start=txmq.StartFrom.FIRST))
    consumer.subscribe("Orders")
    with consumer:
        received = consumer.poll(START_S)
    if [message.body for message in received] != [b"tea"]:
        raise Broken(f"sent one message and received {received}")


async def send_in_process() -> None:
    """Send one message to a broker in this process, which needs no extra."""
    settings = BrokerSettings(data="data", listen="127.0.0.1:0", names_listen="127.0.0.1:0")
    async with Broker(settings) as running, txmq.Producer("stranger", running.names) as producer:
        await producer.send(txmq.Message(topic="Orders", body=b"tea"))


def compress_by(algorithm: str) -> None:
    """Compress a body as a producer does."""
    import_module("txmq.protocol.compression").compress(b"x" * 5000, algorithm)


def read_log_in_spark() -> None:
    """Count the records of the broker's log."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    source = import_module("txmq.reconcile.log.source")
    session = import_module("pyspark.sql").SparkSession.builder.master("local[1]").getOrCreate()
    source.register(session)
    records = session.read.format("txmq").load(str(Path("data").absolute()))
    found = records.where("topic = 'Orders'").count()
    session.stop()
    if found != 1:
        raise Broken(f"Spark finds {found} messages of one in the log")


def main(rules: str, extras: set[str], modules: list[str]) -> None:
    """Try everything that these extras promise."""
    load_names(modules, extras)
    run_commands(rules, extras)
    for algorithm in ("zstd", "lz4"):
        attempt(algorithm, extras, compress_by, algorithm)
    attempt("Telemetry", extras, txmq.Telemetry)
    if "cli" in extras:
        with broker() as names:
            send_and_consume(names)
    else:
        asyncio.run(send_in_process())
    if "spark" in extras:
        read_log_in_spark()


if __name__ == "__main__":
    main(sys.argv[1], set(sys.argv[2].split(",")), sys.argv[3:])
