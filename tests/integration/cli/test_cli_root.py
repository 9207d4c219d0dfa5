"""The help of the command line, which loads no command."""

import subprocess
import sys


def test_the_help_loads_no_command():
    program = """if True:
        import sys
        from txmq.cli import main
        sys.argv = ["txmq", "--help"]
        try:
            main()
        except SystemExit:
            pass
        loaded = {name for name in sys.modules if name.startswith("txmq.c")}
        print(sorted(loaded), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "reconcile" in done.stdout
    assert "txmq.cli.root" in done.stderr
    assert "txmq.client" not in done.stderr
    assert "txmq.cli.serve" not in done.stderr
