"""A file that is checked when it is read: damage is named, and repaired where it can be."""

import logging

import pytest

from txmq.errors import DamagedFile, ForeignFile, RemoteProtocolError
from txmq.protocol.checked_body import pack, unpack
from txmq.runtime.disk import LocalDisk
from txmq.testing import Loss, MemoryDisk, SeededEntropy, power_cuts
from txmq_broker.store.checked_file import CheckedFile

PATH = "config/topics.json"
OLD = f"{PATH}.old"
OURS = "0123456789abcdef"
TEXT = b'{\n "topicConfigTable": {"Orders": 1}\n}'
PACKED = pack("topics.json", OURS, TEXT)


def opened(disk, *, is_doubled=False):
    return CheckedFile(disk, PATH, is_doubled=is_doubled)


def saved(*texts, is_doubled=False, disk=None):
    """A disk on which these texts were saved one after the other."""
    disk = disk or MemoryDisk()
    file = opened(disk, is_doubled=is_doubled)
    for text in texts:
        file.save(OURS, text)
    return disk


def put(disk, path, data):
    disk.replace(path, data)


def text_of(disk, path):
    file = disk.open(path)
    try:
        return unpack("topics.json", file.read(0, file.size())).text
    finally:
        file.close()


# --- the bytes ---


def test_the_file_is_readable_text_with_its_owner_in_the_header():
    header, text = PACKED.split(b"\n", 1)

    assert header.startswith(b'{"name":"topics.json","owner":"0123456789abcdef","size":')
    assert text == TEXT
    assert unpack("topics.json", PACKED) == (OURS, TEXT)


def test_every_flipped_bit_is_detected():
    for position in range(len(PACKED)):
        for bit in range(8):
            damaged = bytearray(PACKED)
            damaged[position] ^= 1 << bit
            with pytest.raises(RemoteProtocolError):
                unpack("topics.json", bytes(damaged))


def test_every_cut_is_detected():
    for length in range(len(PACKED)):
        with pytest.raises(RemoteProtocolError):
            unpack("topics.json", PACKED[:length])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is empty"),
        (bytes(500), "it holds 500 zeros and nothing else"),
        (PACKED[:20], "its first line is not a whole header"),
        (TEXT, "its first line is not a whole header"),
        (PACKED[:-7], "its last 7 bytes are missing"),
        (PACKED + b"\0\0", "2 foreign bytes follow its end"),
        (PACKED.replace(b"Orders", b"Ordres"), "its bytes do not match its checksum"),
        (PACKED.replace(b"0123", b"4567"), "its bytes do not match its checksum"),
        (pack("groups.json", OURS, TEXT), "it holds 'groups.json'"),
    ],
)
def test_each_kind_of_damage_has_its_own_message(data, text):
    with pytest.raises(RemoteProtocolError, match=text):
        unpack("topics.json", data)


# --- the file and its predecessor ---


@pytest.mark.parametrize("is_doubled", [False, True])
def test_a_saved_text_is_loaded_again(is_doubled, caplog):
    disk = MemoryDisk()
    assert opened(disk).load(OURS) is None

    for number in range(3):
        file = opened(disk, is_doubled=is_doubled)
        file.load(OURS)
        file.save(OURS, b"%d" % number)

        assert opened(disk).load(OURS) == b"%d" % number
    assert text_of(disk, OLD) == (b"2" if is_doubled else b"1")
    assert not caplog.records


def test_a_directory_of_this_machine_keeps_the_predecessor(tmp_path):
    disk = saved(b"one", b"two", b"three", disk=LocalDisk(tmp_path))

    assert text_of(disk, PATH) == b"three"
    assert text_of(disk, OLD) == b"two"
    assert disk.names("config") == ["topics.json", "topics.json.old"]


def test_a_file_system_without_second_names_keeps_the_predecessor(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    disk = saved(b"one", b"two", disk=LocalDisk(tmp_path))

    assert text_of(disk, PATH) == b"two"
    assert text_of(disk, OLD) == b"one"


DAMAGE = {
    "flipped": (PACKED.replace(b"Orders", b"Ordres"), "it is damaged: its bytes do not match"),
    "cut": (PACKED[:-1], "it is damaged: its last 1 bytes are missing"),
    "emptied": (b"", "it is damaged: it is empty"),
    "zeroed": (bytes(4096), "it is damaged: it holds 4096 zeros"),
    "appended to": (PACKED + b"x", "it is damaged: 1 foreign bytes"),
    "deleted": (None, "it was deleted"),
}


@pytest.mark.parametrize("is_doubled", [False, True])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_reported_and_replaced_by_its_predecessor(how, is_doubled, caplog):
    data, reason = DAMAGE[how]
    disk = saved(b"before", TEXT, is_doubled=is_doubled)
    disk.remove(PATH)
    if data is not None:
        put(disk, PATH, data)
    file = opened(disk, is_doubled=is_doubled)

    found = file.load(OURS)

    assert found == (TEXT if is_doubled else b"before")
    (line,) = caplog.messages
    assert line.startswith(f"{PATH}: {reason}")
    assert f"its predecessor {OLD} takes its place" in line
    assert line.endswith("nothing is lost" if is_doubled else "may be missing")

    # Until the file is whole again, its predecessor stays.
    assert not file.is_complete
    assert text_of(disk, OLD) == found
    for _, cut in power_cuts(disk, lambda disk: mend(disk, found, is_doubled=is_doubled)):
        cut.crash(loss=Loss.EVERYTHING)
        assert opened(cut).load(OURS) == found
    mend(disk, found, is_doubled=is_doubled)
    caplog.clear()
    assert opened(disk).load(OURS) == found
    assert not caplog.messages


def mend(disk, text, *, is_doubled):
    file = opened(disk, is_doubled=is_doubled)
    file.load(OURS)
    file.save(OURS, text)
    assert file.is_complete


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("old", [None, b"", PACKED[:-1], pack("topics.json", "other", TEXT)])
def test_with_file_and_predecessor_damaged_the_load_fails_and_names_both(how, old):
    data, reason = DAMAGE[how]
    disk = saved(b"before", TEXT)
    for path, content in ((PATH, data), (OLD, old)):
        disk.remove(path)
        if content is not None:
            put(disk, path, content)
    if data is None and old is None:
        assert opened(disk).load(OURS) is None
        return

    with pytest.raises(DamagedFile, match="cannot replace it: it ") as caught:
        opened(disk).load(OURS)

    assert str(caught.value).startswith(f"{PATH}: {reason}")
    assert OLD in str(caught.value)


def test_a_damaged_predecessor_is_reported_and_replaced_by_the_next_save(caplog):
    disk = saved(b"before", TEXT)
    put(disk, OLD, PACKED[:-1])
    file = opened(disk)

    assert file.load(OURS) == TEXT
    assert caplog.messages[0].startswith(f"{OLD}: it is damaged: its last 1 bytes are missing")
    assert not file.is_complete
    file.save(OURS, b"next")

    assert text_of(disk, OLD) == TEXT


def test_a_file_of_another_directory_is_refused():
    disk = saved(b"before", TEXT)
    put(disk, PATH, pack("topics.json", "fedcba", TEXT))

    with pytest.raises(ForeignFile, match=r"topics.json: it belongs to the log 0+fedcba of"):
        opened(disk).load(OURS)

    assert opened(disk).load("") == TEXT


def test_a_file_that_the_disk_cannot_read_is_restored_from_its_predecessor(caplog):
    disk = saved(b"before", TEXT)
    disk.fail_reads(times=1)

    with caplog.at_level(logging.WARNING):
        assert opened(disk).load(OURS) == b"before"

    assert "the disk cannot read it" in caplog.text


@pytest.mark.parametrize("is_doubled", [False, True])
@pytest.mark.parametrize("loss", Loss)
def test_a_crash_anywhere_in_a_save_leaves_the_old_text_or_the_new_one(loss, is_doubled, caplog):
    disk = saved(b"first", b"old", is_doubled=is_doubled)

    def work(disk):
        file = opened(disk, is_doubled=is_doubled)
        file.load(OURS)
        file.save(OURS, b"new")

    points = list(power_cuts(disk, work))
    assert len(points) > 5
    for number, (event, cut) in enumerate(points):
        for seed in range(5):
            twin = cut.clone()
            twin.crash(SeededEntropy(f"{number}-{seed}"), loss)

            file = opened(twin, is_doubled=is_doubled)
            found = file.load(OURS)
            assert found == (b"new" if event is None else found)
            assert found in (b"old", b"new"), event
            assert not caplog.messages, "a crash is not damage"

            # Either of the two alone is enough to carry on, if both were there.
            file.save(OURS, found)
            assert file.is_complete
            twin.remove(PATH)
            assert opened(twin).load(OURS) in (b"old", b"new")
            caplog.clear()


def test_a_full_disk_refuses_a_save_and_keeps_the_old_text():
    for is_doubled in (False, True):
        disk = saved(b"first", b"old", is_doubled=is_doubled)
        file = opened(disk, is_doubled=is_doubled)
        file.load(OURS)
        disk.capacity = disk.space().used
        with pytest.raises(OSError, match="No space left on device: 'config/topics.json"):
            file.save(OURS, b"new")

        assert opened(disk).load(OURS) == b"old"
        disk.capacity = None
        file.save(OURS, b"new")
        assert opened(disk).load(OURS) == b"new"
