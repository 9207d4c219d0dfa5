"""A unit test opens no socket or database and starts no process: integration tests do that."""

import sys

import pytest

REFUSED = {
    *("socket.bind", "socket.connect", "sqlite3.connect"),
    *("subprocess.Popen", "os.fork", "os.posix_spawn"),
}
_running = []


def _refuse(event, arguments):
    if _running and event in REFUSED:
        raise AssertionError(f"{_running[-1]} did {event}{arguments}: move it to integration")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def neither_sockets_nor_databases_nor_processes(request):
    _running.append(request.node.name)
    yield
    _running.pop()
