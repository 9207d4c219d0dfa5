"""One broker of ``txmq serve --brokers``: ``python -m txmq.cli.broker_process``.

Only the supervisor of the brokers starts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from txmq.cli import logs
from txmq.runtime.background import fast_loop

__all__ = ["main"]

log = logging.getLogger(__name__)


def main() -> None:
    """Run one broker; the last argument is the file descriptor of its supervisor."""
    from txmq_broker.processes.child import CRASHED, BrokerChild

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = BrokerChild(int(sys.argv[-1]))
        logs.configure(child.plan.log_form, child.plan.log_level, broker=child.plan.settings.name)
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            code = runner.run(child.run())
    except ConnectionError:
        code = CRASHED  # The supervisor was killed while this process started.
    except Exception:
        log.exception("this broker ends because of an error")
        code = CRASHED
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
