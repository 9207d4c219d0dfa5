"""``txmq serve --brokers N``: several brokers of one cluster, each in a process of its own."""

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txmq.cli import logs
from txmq.cli.common import FAILED
from txmq.cli.output import flush, note, say
from txmq.runtime.background import fast_loop
from txmq.runtime.supervisor import SupervisorEnd
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq_broker.config import BrokerSettings
    from txmq_broker.processes.service import BrokersService

__all__ = ["run_brokers"]

log = logging.getLogger(__name__)

_WORDS: Final = (sys.executable, "-m", "txmq.cli.broker_process")


def run_brokers(
    settings: "BrokerSettings",
    count: int,
    accept_loss: str | None,
    drain_s: float,
    log_form: logs.Form,
    log_level: logs.Level,
) -> tuple[int, str]:
    """Run several brokers until SIGTERM or SIGINT.

    Args:
        settings: The settings that they share.
        count: The number of brokers.
        accept_loss: Why brokers shall start although a part of their log is missing.
        drain_s: How long a broker may take to drain, before it is killed.
        log_form: The format of log lines.
        log_level: The lowest level of log lines.

    Returns:
        The exit code, and the reason if it is not 0.

    Raises:
        ConfigError: The brokers cannot share a setting, or the directory holds something else.
        StoreError: The directory is in use, or a file of the name server is damaged.
        OSError: An address or the directory cannot be opened.
    """
    from txmq_broker.processes.service import BrokersOptions, BrokersService

    options = BrokersOptions(
        count=count,
        words=_WORDS,
        accept_loss=accept_loss,
        drain_s=drain_s,
        log_form=log_form,
        log_level=log_level,
    )
    service = BrokersService(settings, options, lambda: _say_ready(service))
    pages = None
    if settings.http_listen:
        with named_extra():
            from txmq_broker.processes.pages import BrokerPages
        pages = BrokerPages(service).pages()

    async def run() -> SupervisorEnd:
        with _signals(service):
            return await service.run(pages)

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        end = runner.run(run())
    if end is SupervisorEnd.DRAINED:
        return 0, ""
    started = "stopped" if service.was_ready else "cannot start"
    return FAILED, f"{started}: {service.reason or end.value}"


def _say_ready(service: "BrokersService") -> None:
    addresses = ";".join(state.address for state in service.brokers)
    data = Path(service.settings.data).absolute()
    say(f"ready brokers {addresses} names {service.names_text} data {data}")
    flush()


@contextmanager
def _signals(service: "BrokersService") -> Iterator[None]:
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        if service.supervisor.is_stopping:
            note("ending at once")
            service.supervisor.kill()
            return
        note("draining the brokers; a second signal ends them at once")
        service.stop()

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
