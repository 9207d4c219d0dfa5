"""The usual send is checked in few steps; it must be allowed exactly when the plain rule allows it.

The plain rule reads the fields as they came, knows nothing of the quick way, and computes the
signature with Python's ``hmac``.
"""

import hmac
from base64 import b64encode
from types import SimpleNamespace

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tests.property.protocol_strategies import TEXT
from txmq.errors import NoPermission
from txmq.protocol import command
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SignedSend
from txmq_broker.access.accounts import AccessRules, AclFile
from txmq_broker.access.front_door import Authorizer

SECRETS = {"publisher": "secret of publisher", "both_sides": "secret of reader"}
TOPICS = ("T", "U")


def rules(**permissions):
    """The rules of a file in which accounts have permissions of topics."""
    accounts = [
        {"accessKey": name, "secretKey": SECRETS[name], "topicPerms": topics}
        for name, topics in permissions.items()
    ]
    return AccessRules.of({"plain_acl.yml": msgspec.convert({"accounts": accounts}, AclFile)})


RULES = rules(publisher=["T=PUB"], both_sides=["T=SUB", "U=PUB|SUB"])
MAY_PUBLISH = {("publisher", "T"), ("both_sides", "U")}
SMALL = st.integers(-2, 1100).map(str)
INT32 = st.one_of(SMALL, st.integers(-(2**31), 2**31 - 1).map(str))
INT64 = st.integers(-(2**63), 2**63 - 1).map(str)
TRUTHS = st.sampled_from(["true", "false"])
FIELDS = st.fixed_dictionaries(
    {"a": TEXT, "b": st.sampled_from(TOPICS), "c": TEXT, "d": INT32, "e": INT32, "f": INT32,
     "g": INT64, "h": INT32},
    optional={"i": TEXT, "j": INT32, "k": TRUTHS, "l": INT32, "m": TRUTHS, "n": TEXT},
)  # fmt: skip
USUAL = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1795828449126",
         "h": "0", "i": "KEYS\x01k\x02", "j": "0", "k": "false", "m": "false"}  # fmt: skip


def digest_of(fields, secret, body):
    content = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    return hmac.digest(secret.encode(), content.encode() + body, "sha1")


def sign(fields, account, body, secret=None):
    fields = {**fields, "AccessKey": account}
    digest = digest_of(fields, secret or SECRETS[account], body)
    return {**fields, "Signature": b64encode(digest).decode()}


def received(fields, body):
    (part,) = command.FrameReader().feed(
        command.encode(RequestCode.SEND_MESSAGE_V2, 1, fields, body=body)
    )
    return command.decode_whole(part)


def is_allowed(authorizer, request):
    peer = SimpleNamespace(address="203.0.113.9:4711", host="203.0.113.9", subject=None)
    try:
        authorizer.check(peer, request)
    except NoPermission:
        return False
    return True


def is_right(fields, body):
    """The plain rule."""
    account = fields.get("AccessKey", "")
    if (account, fields["b"]) not in MAY_PUBLISH:
        return False
    expected = b64encode(digest_of(fields, SECRETS[account], body)).decode()
    return fields.get("Signature") == expected


@given(
    FIELDS,
    st.sampled_from(sorted(SECRETS)),
    st.binary(max_size=300),
    st.data(),
)
def test_a_signed_send_is_allowed_exactly_if_the_plain_rules_allow_it(fields, account, body, data):
    authorizer = Authorizer(SimpleNamespace(value=RULES))
    signed = sign(fields, account, body)
    request = received(signed, body)
    assert type(request.ext) is SignedSend
    assert is_allowed(authorizer, request) == is_right(signed, body)

    # One field is changed after signing, at a broker that just allowed the original.
    name = data.draw(st.sampled_from([*sorted(FIELD_CHANGES), "body"]))
    changed, changed_body = dict(signed), body
    if name == "body":
        changed_body = data.draw(st.binary(max_size=300))
    else:
        changed[name] = data.draw(FIELD_CHANGES[name])
    request = received(changed, changed_body)
    assert is_allowed(authorizer, request) == is_right(changed, changed_body)


FIELD_CHANGES = {
    "a": TEXT, "b": st.sampled_from(TOPICS), "c": TEXT, "d": INT32, "e": INT32, "f": INT32,
    "g": INT64, "h": INT32, "i": TEXT, "j": INT32, "k": TRUTHS, "l": INT32, "m": TRUTHS, "n": TEXT,
    "AccessKey": st.sampled_from([*SECRETS, "stranger", ""]),
    "Signature": st.one_of(TEXT, st.binary(max_size=21).map(lambda data: b64encode(data).decode())),
}  # fmt: skip


@given(st.sampled_from([*USUAL, "AccessKey", "Signature"]))
def test_a_signed_send_without_one_of_its_fields_is_refused(name):
    signed = sign(USUAL, "publisher", b"body")
    authorizer = Authorizer(SimpleNamespace(value=RULES))
    assert is_allowed(authorizer, received(signed, b"body"))
    del signed[name]
    assert not is_allowed(authorizer, received(signed, b"body"))


@given(FIELDS)
@example(USUAL)
def test_new_rules_apply_to_the_next_send(fields):
    fields = {**fields, "b": "T"}
    source = SimpleNamespace(value=RULES)
    authorizer = Authorizer(source)
    request = received(sign(fields, "publisher", b"body"), b"body")
    assert is_allowed(authorizer, request)

    source.value = rules(publisher=["T=SUB"])
    assert not is_allowed(authorizer, request)
    source.value = rules(both_sides=["T=PUB"])
    assert not is_allowed(authorizer, request)
    source.value = RULES
    assert is_allowed(authorizer, request)
