"""What happens to directories of a broker set's members while nobody runs them, or under load.

Each damage is what a disk, a snapshot or an operator does to files; nothing of the product is
called.
"""

import shutil
import signal
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

LOST_BYTES = 60_000
"""What a shortened log lacks; all of it was acknowledged."""


class Damage(StrEnum):
    """How a directory is damaged."""

    SHORTENED = "shortened"
    SHORTENED_WITHOUT_MARK = "shortened-without-its-mark"
    EMPTIED = "emptied"
    EMPTIED_WITHOUT_MARK = "emptied-without-its-mark"
    OLDER = "put-back-to-an-older-state"
    SWAPPED = "swapped-with-another-member"


def snapshot(member, folder):
    """Copy the directory of a running member, in one instant of it."""
    member.signal(signal.SIGSTOP)
    try:
        shutil.copytree(data_of(member), folder)
    finally:
        member.signal(signal.SIGCONT)
    return folder


def damage(kind, member, *, older, other):
    """Damage the directory of a member that is down.

    Args:
        kind: The damage.
        member: The member.
        older: A snapshot of its directory.
        other: Another member that is down, whose directory is swapped with this one.
    """
    data = data_of(member)
    match kind:
        case Damage.SHORTENED | Damage.SHORTENED_WITHOUT_MARK:
            newest = log_files(member)[-1]
            size = newest.stat().st_size
            assert size > LOST_BYTES, f"{newest} has only {size} bytes"
            with newest.open("r+b") as file:
                file.truncate(size - LOST_BYTES)
        case Damage.EMPTIED | Damage.EMPTIED_WITHOUT_MARK:
            for path in log_files(member):
                path.write_bytes(b"")
        case Damage.OLDER:
            shutil.rmtree(data)
            shutil.copytree(older, data)
        case Damage.SWAPPED:
            aside = data.with_name("aside")
            data.rename(aside)
            data_of(other).rename(data)
            aside.rename(data_of(other))
    if kind in (Damage.SHORTENED_WITHOUT_MARK, Damage.EMPTIED_WITHOUT_MARK):
        (data / "high-water").unlink()


def data_of(member):
    return member.folder / "data"


def log_files(member) -> list[Path]:
    """The files of its log, oldest first."""
    return sorted((data_of(member) / "log").glob("*.log"))


class Flip(NamedTuple):
    """One bit of a file that was turned over, and the byte as it was."""

    path: Path
    at: int
    byte: int

    @property
    def position(self):
        """Its place in the log."""
        return int(self.path.stem) + self.at

    def is_mended(self):
        """Whether the byte is what it was."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            return file.read(1)[0] == self.byte


def flip_bits(member, chance, part=0, parts=1):
    """Turn one bit over in each closed file of a member's log, which may be running.

    Args:
        member: The member.
        chance: Chooses the bits.
        part: Where in the files: members with different parts are damaged in different spans.
        parts: How many parts there are.
    """
    flips = []
    for number, path in enumerate(log_files(member)[:-1]):
        size = path.stat().st_size // parts
        # The head of a file's first span is damaged too, in one file of five.
        is_head = part == 0 and number % 5 == 1
        at = 12 if is_head else part * size + size // 4 + chance.randrange(size // 2)
        with path.open("r+b", buffering=0) as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        flips.append(Flip(path, at, byte))
    return flips
