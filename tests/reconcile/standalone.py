"""Owns real Spark servers on loopback, from the programs that come with pyspark: a standalone
cluster of a master and two workers, or a Spark Connect server, each a process of its own.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import pyspark

from tests.servers import spark_session
from tests.servers.database_server import die_with_us
from tests.servers.serving import free_port

HOST = "127.0.0.1"
START_SECONDS = 60
STOP_SECONDS = 20
WORKERS = 2
PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextlib.contextmanager
def cluster(cores=1, memory="1g", count=WORKERS):
    """The URL of a master and its workers; ``cores`` and ``memory`` are those of one worker."""
    home = Path(tempfile.mkdtemp(prefix="txmq-standalone-"))
    port, page = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        master = started(
            stack,
            home / "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", port, "--webui-port", page),
        )
        wait_until(lambda: state(page) is not None, master, "the master answers")
        workers = [
            started(
                stack,
                home / f"worker-{index}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", HOST, "--webui-port", free_port()),
                *("--cores", cores, "--memory", memory, "--work-dir", home / f"work-{index}", url),
            )
            for index in range(count)
        ]
        for worker in workers:
            wait_until(lambda: alive(page) == count, worker, "all workers are registered")
        yield url, workers


@contextlib.contextmanager
def connect_server():
    """A Spark Connect server that works on this machine: its URL, and its process."""
    home = Path(tempfile.mkdtemp(prefix="txmq-connect-"))
    port = free_port()
    settings = spark_session.SETTINGS | {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.connect.progress.reportInterval": "50ms",
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        server = started(
            stack,
            home / "server",
            "org.apache.spark.deploy.SparkSubmit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2]"),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            "spark-internal",
            memory=settings["spark.driver.memory"],
        )
        wait_until(lambda: listens(port), server, "the server listens")
        yield f"sc://{HOST}:{port}", server


def listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection((HOST, port), 5).close()
        return True
    return False


def started(stack, home, name, *arguments, memory="256m"):
    """A program of the cluster's, which is ended with the stack; its log lies in its home."""
    home.mkdir()
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_DIRS": str(home),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={home} -XX:-UsePerfData",
    }
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, name, *map(str, arguments)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            preexec_fn=die_with_us,
        )
    process.log = home / "log"
    stack.callback(ended, process)
    return process


def ended(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def state(page):
    """What the master's page says, or nothing while there is none.

    Spark adds a page's addresses one by one after the server has started: until `/json` is there,
    the page for people answers in its place.
    """
    try:
        with urllib.request.urlopen(f"http://{HOST}:{page}/json/", timeout=5) as answer:
            return json.load(answer)
    except (OSError, json.JSONDecodeError):
        return None


def alive(page):
    return sum(row["state"] == "ALIVE" for row in (state(page) or {"workers": []})["workers"])


def wait_until(condition, process, what):
    """Poll a condition as long as the process that should fulfil it is alive."""
    pause = threading.Event()
    for _ in range(START_SECONDS * 10):
        if condition():
            return
        if process.poll() is not None:
            break
        pause.wait(0.1)
    raise AssertionError(f"not in time: {what}; {process.log.read_text()[-2000:]}")
