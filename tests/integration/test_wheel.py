"""The wheel, installed next to a user's modules that share names with our folders."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.servers.serving import CHECKOUT, environment

A_TEST = """
import broker, txmq, txmq_broker as installed
from txmq.blocking import Producer
from txmq import Message

def test_a_broker_runs_beside_a_module_called_broker(txmq_broker):
    assert broker.WHOSE == "the user's"
    assert [module.__file__.startswith(SITE) for module in (txmq, installed)] == [True, True]
    with Producer("shop", txmq_broker.names) as producer:
        assert producer.send(Message(topic="Orders", body=b"x")).offset == 0
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder into which the wheel of this checkout is unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=50)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def users_environment(site, tmp_path):
    """The environment of a program in a folder that has a `broker.py` and a `tests.py`."""
    (tmp_path / "broker.py").write_text('WHOSE = "the user\'s"')
    (tmp_path / "tests.py").write_text("")
    return {**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(site)])}


def test_the_wheel_holds_exactly_two_packages(site):
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "txmq",
        "txmq_broker",
    }


def test_the_fixture_works_beside_a_users_broker_module(site, users_environment, tmp_path):
    (tmp_path / "test_it.py").write_text(f"SITE = {str(site)!r}\n{A_TEST}")

    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        program, cwd=tmp_path, env=users_environment, capture_output=True, text=True, timeout=50
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_serve_works_beside_a_users_broker_module(users_environment, tmp_path):
    program = [sys.executable, "-m", "txmq", "serve", "--data", "data"]
    program += ["--listen", "127.0.0.1:0", "--names-listen", "127.0.0.1:0"]
    with subprocess.Popen(
        program,
        cwd=tmp_path,
        env=users_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        ready = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=20)

    assert ready.startswith("ready"), errors
    assert process.returncode == 0
    assert Path(tmp_path, "data").is_dir()
