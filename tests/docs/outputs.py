"""Whether a program prints what its page shows.

``...`` on a page stands for anything within a line, and on a line of its own for any lines. An id
of a message or transaction stands for any id.
"""

import re

ANY = "..."
ID = re.compile(r"[0-9A-F]{16,}")


def is_output_of(shown, output, is_unordered=False):
    """Whether this output is what a page shows."""
    expected, lines = shown.strip("\n").splitlines(), output.strip("\n").splitlines()
    if not is_unordered:
        return re.fullmatch(
            "".join(map(pattern, expected)), "".join(f"{x.rstrip()}\n" for x in lines)
        )
    rest = list(lines)
    for line in expected:
        if line == ANY:
            return True
        found = next(
            (candidate for candidate in rest if re.fullmatch(pattern(line), f"{candidate}\n")), None
        )
        if found is None:
            return False
        rest.remove(found)
    return rest == []


def pattern(line):
    """What a line of a page stands for."""
    if line.strip() == ANY:
        return r"(?:.*\n)*"
    parts = [ID.sub("[0-9A-F]+", re.escape(part)) for part in line.rstrip().split(ANY)]
    return ".*".join(parts) + r"\n"


def line_count(shown):
    """How many lines are certain in an output that a page shows."""
    return sum(line.strip() != ANY for line in shown.splitlines())


def is_in_order(texts, output):
    """Whether an output has all of these texts, in their order."""
    return re.search(".*".join(map(re.escape, texts)), output, re.DOTALL) is not None
