"""The identity file: every byte of it counts."""

from txmq.testing import MemoryDisk
from txmq_broker.store.log.identity import PATH, known_log, write_identity

LOG = 0xABCDEF0123456789


def test_an_identity_with_any_flipped_bit_is_not_intact():
    disk = MemoryDisk()
    write_identity(disk, LOG)
    whole = content(disk)
    assert known_log(disk) == (LOG, True)

    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.replace(PATH, bytes(damaged))

        assert known_log(disk) == (None, False), bytes(damaged)


def content(disk):
    file = disk.open(PATH)
    return file.read(0, file.size())
