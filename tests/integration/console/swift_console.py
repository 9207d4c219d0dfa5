"""The program ``txmq``, whose open console pages refresh every second instead of every 5 s."""

import sys

from txmq.cli import main
from txmq.console import streams

streams.REFRESH_S = 1.0

if __name__ == "__main__":
    sys.exit(main())
