"""What a guard compares and keeps of a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import LimitExceeded, UsageError
from txmq.idempotent.guard import Verdict, decode_result, encode_result, fingerprint, judge
from txmq.limits import STORED_RESULT_BYTES_MAX

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(JSON)
def test_a_json_result_is_decoded_unchanged_or_refused(result):
    try:
        kept = encode_result(result)
    except UsageError:
        return  # A lone surrogate in a name: no database would take it.
    assert decode_result(kept) == result
    assert "\0" not in kept


@pytest.mark.parametrize("unfit", [object(), {1, 2}, b"", float("inf"), "\ud800", {"\ud800": 1}])
def test_a_result_that_cannot_be_stored_is_refused(unfit):
    with pytest.raises(UsageError, match="JSON"):
        encode_result(unfit)


def test_the_limit_of_a_result_counts_bytes():
    fits = "é" * (STORED_RESULT_BYTES_MAX // 2 - 1)

    assert decode_result(encode_result(fits)) == fits
    with pytest.raises(LimitExceeded):
        encode_result(fits + "é")


@given(st.text(st.characters()), st.text(st.characters()))
def test_payloads_have_equal_fingerprints_only_if_they_are_equal(one, other):
    assert (fingerprint(one) == fingerprint(other)) is (one == other)


def test_bytes_and_their_text_are_the_same_payload():
    prints = {fingerprint(payload) for payload in ("ä", "ä".encode(), bytearray("ä".encode()))}

    assert len(prints) == 1
    assert fingerprint(None) == ""
    assert fingerprint("") != ""


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ("a", "a", (Verdict.DONE, "1")),
        ("a", "b", (Verdict.CONFLICT, None)),
        ("", "b", (Verdict.DONE, "1")),
        ("a", "", (Verdict.DONE, "1")),
    ],
)
def test_payloads_conflict_only_if_both_have_a_fingerprint(ours, theirs, found):
    told = judge(ours, theirs, "1")

    assert (told.verdict, told.result) == found
