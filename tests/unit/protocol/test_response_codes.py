"""Response codes against the table of the protocol: each has an error class or keeps its number."""

import pytest

from txmq.errors import BrokerRefused, Effect, UnknownRefusal, refusal

NAMED = {
    1: "InternalError", 2: "BrokerBusy", 3: "RequestNotSupported", 4: "TransactionFailed",
    10: "FlushTimeout", 11: "ReplicaUnavailable", 12: "ReplicaTimeout", 13: "MessageIllegal",
    14: "ServiceUnavailable", 15: "VersionNotSupported", 16: "NoPermission", 17: "TopicNotFound",
    18: "TopicExists", 19: "PullNotFound", 20: "PullRetryImmediately", 21: "OffsetMoved",
    22: "NotFound", 23: "SubscriptionInvalid", 24: "SubscriptionMissing", 25: "SubscriptionStale",
    26: "GroupNotFound", 27: "FilterDataMissing", 28: "FilterDataStale", 29: "InvalidParameter",
    200: "ShouldCommit", 201: "ShouldRollBack", 203: "TransactionGroupWrong",
    206: "ConsumerOffline", 207: "ConsumeTimeout", 215: "FlowControlled", 604: "IllegalOperation",
}  # fmt: skip
UNNAMED = [202, 204, 205, 208, 209, 501, 603, 605, 1500, 2000, 3001, -1000, -1]


@pytest.mark.parametrize(("code", "name"), NAMED.items())
def test_a_known_code_becomes_its_error_class(code, name):
    problem = refusal(code, "why")

    assert type(problem).__name__ == name
    assert problem.code == code
    assert problem.remark == "why"
    assert str(problem) == "why"


@pytest.mark.parametrize("code", UNNAMED)
def test_an_unknown_code_becomes_an_unknown_refusal_with_its_number(code):
    problem = refusal(code, "why")

    assert isinstance(problem, UnknownRefusal)
    assert problem.response_code == code
    assert str(problem) == f"code {code}: why"


def test_a_refusal_without_a_remark_has_a_default_text():
    assert str(refusal(17, "")) == (
        "The topic does not exist, and sending to it may not create it."
    )


def test_answers_for_unsafely_stored_messages_have_the_effect_applied():
    """A producer that sends again after one of these sends twice."""
    applied = {code for code in NAMED if refusal(code, "").effect is Effect.APPLIED}

    assert applied == {10, 11, 12}
    assert not any(refusal(code, "").retryable for code in applied)


@pytest.mark.parametrize("code", [200, 201, 203, 604])
def test_a_refused_decision_is_not_retryable(code):
    """The first decision holds, so a second one must have no effect."""
    problem = refusal(code, "")

    assert not problem.retryable
    assert problem.effect is Effect.NONE


def test_no_two_error_classes_share_a_code():
    codes = [leaf.code for leaf in BrokerRefused.__subclasses__() if leaf is not UnknownRefusal]

    assert len(codes) == len(set(codes))
    assert set(codes) == set(NAMED)
