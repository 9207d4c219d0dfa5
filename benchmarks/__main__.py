"""``python -m benchmarks`` is ``python benchmarks/run.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside this file

import run  # noqa: E402

sys.exit(run.main())
