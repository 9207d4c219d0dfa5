"""Facts of txmq.protocol.record, with ids from the tests of RocketMQ."""

import pytest

from txmq.errors import RemoteProtocolError
from txmq.protocol.record import (
    host_bytes,
    host_text,
    offset_id,
    position_in,
    split_offset_id,
    unique_id,
)
from txmq.remoting.pool import split_address

ID_V4 = "645100FA00002A9F000000489A3AA09E"
ID_V6 = "24084004018081003FAA1DDE2B3F898A00002A9F0000000000000CA0"


def test_an_offset_id_names_host_port_and_log_position():
    assert split_offset_id(ID_V4) == ("100.81.0.250:10911", 0x489A3AA09E)
    assert split_offset_id(ID_V6) == ("[2408:4004:180:8100:3faa:1dde:2b3f:898a]:10911", 3232)
    assert [position_in(text) for text in (ID_V4, ID_V6)] == [0x489A3AA09E, 3232]


@pytest.mark.parametrize("text", [ID_V4, ID_V6])
def test_an_offset_id_is_written_in_upper_case(text):
    address, position = split_offset_id(text)

    assert offset_id(host_bytes(*split_address(address)), position) == text


def test_an_offset_id_in_lower_case_is_read():
    assert split_offset_id(ID_V4.lower()) == split_offset_id(ID_V4)


@pytest.mark.parametrize(
    "text", ["", "0", "645100FA", ID_V4[:-2], ID_V4 + "00", "x" * 32, "é" * 32]
)
def test_a_malformed_offset_id_is_refused(text):
    for read in (split_offset_id, position_in):
        with pytest.raises(RemoteProtocolError, match="is not a message id"):
            read(text)


def test_a_record_that_claims_a_position_before_the_log_still_has_an_id():
    """Such a record can only come from a broken peer, and must not break its reader."""
    assert offset_id(bytes(8), -1) == "0" * 16 + "F" * 16


@pytest.mark.parametrize(
    ("host", "port", "packed", "shown"),
    [
        ("127.0.0.1", 10911, "7f000001 00002a9f", "127.0.0.1:10911"),
        ("255.255.255.255", 65535, "ffffffff 0000ffff", "255.255.255.255:65535"),
        ("::1", 80, "00000000000000000000000000000001 00000050", "[::1]:80"),
        ("fe80::2%eth0", 1, "fe800000000000000000000000000002 00000001", "[fe80::2]:1"),
    ],
)
def test_hosts_are_packed_as_bytes_with_ports_of_four_bytes(host, port, packed, shown):
    assert host_bytes(host, port) == bytes.fromhex(packed)
    assert host_text(bytes.fromhex(packed)) == shown


def test_an_ipv4_address_mapped_to_ipv6_is_packed_as_ipv4():
    assert host_bytes("::ffff:10.0.0.5", 7) == host_bytes("10.0.0.5", 7)


def test_a_host_name_cannot_be_packed():
    with pytest.raises(ValueError, match="localhost"):
        host_bytes("localhost", 1)


def test_a_unique_id_holds_address_process_seed_time_and_count():
    made = unique_id(bytes([10, 0, 0, 5]), 0x1234, 0x0A0B0C0D, 0x00FEDCBA, 7)

    assert made == "0A000005" + "1234" + "0A0B0C0D" + "00FEDCBA" + "0007"


def test_a_unique_id_keeps_the_low_bits_of_numbers_that_grow():
    """Process ids and counts outgrow their two bytes; the length of the id may not change."""
    made = unique_id(bytes(4), 0x12345, -1, 2**31 + 5, 0x10007)

    assert made == "00000000" + "2345" + "7FFFFFFF" + "00000005" + "0007"
    assert len(made) == 32
