"""Checks the subject of a commit; the hook of .pre-commit-config.yaml calls it with the message.

``python -m tools.commit_subject FILE``
"""

import sys
from pathlib import Path

LENGTH_MAX = 71


def fault(message):
    """What is wrong with the subject of a commit message, and how to mend it; "" for nothing."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if not subject.strip():
        return "the commit has no subject: its first line says what changed"
    if len(subject) > LENGTH_MAX:
        return (
            f"the subject has {len(subject)} characters and may have {LENGTH_MAX}: "
            f"shorten it, and say the rest in the body: {subject}"
        )
    if len(lines) > 1 and lines[1].strip():
        return f"the second line must be empty, so that git finds the subject: {lines[1]}"
    return ""


def main(arguments):
    """Check the message in a file; the exit code."""
    (path,) = arguments
    if problem := fault(Path(path).read_text(encoding="utf-8")):
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
