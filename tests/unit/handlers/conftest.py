import pytest
from handler_stage import SETTINGS, on_sockets


@pytest.fixture
def serve():
    """Runs a coroutine function of a stage against a broker on real sockets."""

    def run(main, settings=SETTINGS):
        on_sockets(main, settings=settings)

    return run
