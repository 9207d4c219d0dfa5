"""Follows README.md from the broker to the first committed transaction, as a stranger would.

``make wheels`` follows it with the wheel in an empty environment, and the tests with this checkout.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tests.servers.serving import environment, free_port

README = Path(__file__).resolve().parents[2] / "README.md"
NAMES = "127.0.0.1:9876"
PROGRAM_S = 40
BROKER_S = 100


class Command(NamedTuple):
    """One command of the README."""

    words: list[str]
    output: str
    """The output that the README shows below the command."""


def commands():
    """The commands of the README, in their order."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [
        Command(shlex.split(line, comments=True), output)
        for line, _, output in (part.partition("\n") for part in parts)
    ]


def programs():
    """The programs of the README: their file names, and their code."""
    found = re.findall(r"`(\w+\.py)`[^`]*```python\n(.*?)```", README.read_text(), re.DOTALL)
    return dict(found)


def follow(python, folder, variables):
    """Run the broker and all other commands of the README with this Python, in this folder.

    Returns the words of the commands that ran, each with its real output.
    """
    names = f"127.0.0.1:{free_port()}"
    for name, code in programs().items():
        (folder / name).write_text(code.replace(NAMES, names))
    (serve,) = (command.words for command in commands() if command.words[:2] == ["txmq", "serve"])
    ports = ["--listen", f"127.0.0.1:{free_port()}", "--names-listen", names]
    options = {"cwd": folder, "text": True, "env": {**variables, "TXMQ_NAMES": names}}
    results = []
    with subprocess.Popen(
        [python, "-m", *serve, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options
    ) as broker:
        overdue = threading.Timer(BROKER_S, broker.kill)
        overdue.start()
        try:
            ready = broker.stdout.readline()
            if not ready:
                raise RuntimeError(f"{shlex.join(serve)} ended before it was ready")
            results.append((serve, ready))
            for words, _ in commands():
                if words[0] == "python":
                    line = [python, *words[1:]]
                elif words[0] == "txmq" and words != serve:
                    line = [python, "-m", *words]
                else:
                    continue
                done = subprocess.run(
                    line, capture_output=True, timeout=PROGRAM_S, check=False, **options
                )
                if done.returncode != 0 or done.stderr:
                    raise RuntimeError(f"{shlex.join(words)} failed: {done.stdout}{done.stderr}")
                results.append((words, done.stdout))
        finally:
            broker.terminate()
            broker.wait()
            overdue.cancel()
    return results


def wrong_lines(results):
    """The commands whose output the README does not show as it is."""
    shown = {shlex.join(command.words): command.output for command in commands()}
    wrong = []
    for words, output in results:
        expected = shown[shlex.join(words)]
        if words[1] == "serve":
            is_right = output.split()[0] == expected.split()[0] == "ready"
        else:
            is_right = not expected or output == expected
        if not is_right:
            wrong.append(f"{shlex.join(words)} printed {output!r}")
    return wrong


def main(folder):
    """Follow the README with the Python that runs this; the exit code."""
    variables = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    results = follow(sys.executable, Path(folder), variables)
    for words, output in results:
        print(f"$ {shlex.join(words)}\n{output}", end="")
    if wrong := wrong_lines(results):
        print("README.md shows another output:", *wrong, sep=os.linesep, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
