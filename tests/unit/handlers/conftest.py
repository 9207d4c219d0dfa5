import pytest
from handler_stage import SETTINGS, on_sockets


@pytest.fixture
def serve(tmp_path):
    """Runs a coroutine function of a stage against a broker on real sockets."""

    def run(main, settings=SETTINGS):
        on_sockets(main, tmp_path / "data", settings)

    return run
