"""Where credentials come from, and that nothing shows them."""

import hashlib
import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError
from txmq.security.credentials import load_credentials, read_credentials
from txmq.security.signatures import Credentials, SigningKey


def private(tmp_path, text):
    file = tmp_path / "credentials.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300), st.binary(max_size=300))
def test_a_signing_key_computes_hmac_sha1(secret, content, body):
    expected = hmac.digest(secret, content + body, hashlib.sha1)
    assert SigningKey(secret).digest(content, body) == expected


def test_a_signature_equals_that_of_rocketmqs_clients():
    credentials = Credentials(access_key="RocketMQ", secret_key="12345678")
    fields = {"topic": "T", "a": "1", "Signature": "old", "_UNIQUE_KEY_QUERY": "true"}
    content = b"RocketMQ" + b"1" + b"T" + b"body"
    expected = b64encode(hmac.new(b"12345678", content, hashlib.sha1).digest()).decode()
    assert credentials.sign(fields, b"body")["Signature"] == expected


def test_credentials_come_from_two_variables_or_a_file(tmp_path):
    assert load_credentials({}) is None
    both = {"TXMQ_ACCESS_KEY": "web-shop", "TXMQ_SECRET_KEY": "the secret"}
    assert load_credentials(both) == Credentials(access_key="web-shop", secret_key="the secret")
    file = private(tmp_path, 'access_key = "web-shop"\nsecret_key = "the secret"\n')
    assert load_credentials({"TXMQ_CREDENTIALS": str(file)}) == load_credentials(both)
    with pytest.raises(ConfigError, match="TXMQ_SECRET_KEY is set and TXMQ_ACCESS_KEY is not"):
        load_credentials({"TXMQ_SECRET_KEY": "the secret"})


@pytest.mark.parametrize(
    "text", ['access_key = "the secret', 'secret_key = "the secret"', "access_key = 1"]
)
def test_an_invalid_credentials_file_is_refused_without_showing_the_secret(tmp_path, text):
    with pytest.raises(ConfigError, match="write access_key = ") as refused:
        read_credentials(private(tmp_path, text))
    assert "the secret" not in str(refused.value)


def test_positional_or_non_text_keys_are_refused():
    with pytest.raises(ConfigError, match="name the keys: Credentials\\(access_key=") as refused:
        Credentials("web-shop", "the secret")
    assert "the secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="secret_key is a text, not a value of type bytes"):
        Credentials(access_key="web-shop", secret_key=b"the secret")


def test_the_secret_appears_neither_in_repr_nor_in_errors():
    shown = repr(Credentials(access_key="web-shop", secret_key="the secret"))
    assert "web-shop" in shown
    assert "the secret" not in shown
    with pytest.raises(ConfigError, match="secret_key needs at least 7 characters"):
        Credentials(access_key="web-shop", secret_key="short")
