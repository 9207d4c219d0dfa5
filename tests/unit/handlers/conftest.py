import pytest

from tests.unit.handlers.handler_stage import SETTINGS, in_world


@pytest.fixture
def serve():
    """Runs a coroutine function of a stage against a broker in a simulated world."""

    def run(main, settings=SETTINGS):
        in_world(main, settings=settings)

    return run
