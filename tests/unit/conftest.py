"""A unit test opens no socket and starts no process: one that needs to is an integration test."""

import sys

import pytest

REFUSED = {"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn"}
_running = []


def _refuse(event, arguments):
    if _running and event in REFUSED:
        raise AssertionError(f"{_running[-1]} did {event}{arguments}: move it to integration")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def neither_sockets_nor_processes(request):
    _running.append(request.node.name)
    yield
    _running.pop()
