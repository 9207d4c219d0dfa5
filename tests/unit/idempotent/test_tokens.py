"""Tokens: their form, and which are refused without asking the inner guard."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError, TokenRefused, UsageError
from txmq.idempotent.token import CLOCKS_APART_MS, TokenGuard

SECRET = b"a secret of this shop"
ANY = st.binary(min_size=16, max_size=16)


class Still:
    """A clock that tests can set."""

    def __init__(self, wall_ms=1_790_000_000_000):
        self.now_ms = wall_ms

    def monotonic(self):
        return self.now_ms / 1000

    def wall_ms(self):
        return self.now_ms


class Dice:
    """Entropy with a known value."""

    def __init__(self, chance):
        self.chance = chance

    def token(self, size):
        assert size == len(self.chance)
        return self.chance


class Inner:
    """A guard that remembers what it was asked."""

    has_session: Literal[False] = False
    is_blocking = True

    def __init__(self):
        self.asked = []

    def attempt(self, key, *, scope="", payload=None):
        self.asked.append((key, scope, payload))


def guards(chance=bytes(16), **how):
    clock = Still()
    return clock, TokenGuard(Inner(), clock=clock, entropy=Dice(chance), **how)


@given(ANY, st.sampled_from([None, SECRET]))
def test_an_issued_token_is_short_safe_in_urls_and_accepted(chance, secret):
    _, guard = guards(chance, secret=secret)

    token = guard.issue()

    assert len(token) == (30 if secret is None else 72)
    assert token.isascii()
    assert token.replace("-", "").replace("_", "").isalnum()
    guard.check(token)
    guard.attempt(token, scope="pay", payload="1 €")
    assert guard._inner.asked == [(token, "pay", "1 €")]


@given(ANY, st.sampled_from([None, SECRET]), st.data())
def test_other_spellings_of_a_token_are_refused(chance, secret, data):
    """It would be a second key for the same call."""
    _, guard = guards(chance, secret=secret)
    token = guard.issue()
    place = data.draw(st.integers(0, len(token)))
    more = data.draw(st.sampled_from(["=", "==", "\n", " ", "+", "/", "A", "é", "\0"]))

    for spelling in (token[:place] + more + token[place:], token + "=" * place, token[:-1]):
        if spelling != token:
            with pytest.raises(TokenRefused):
                guard.check(spelling)


@given(ANY, st.integers(0, 71), st.sampled_from("AZaz09-_"))
def test_with_a_secret_a_changed_token_is_refused(chance, place, letter):
    _, guard = guards(chance, secret=SECRET)
    token = guard.issue()
    changed = token[:place] + letter + token[place + 1 :]

    if changed != token:
        with pytest.raises(TokenRefused, match="not issued here"):
            guard.check(changed)


def test_a_token_issued_with_another_secret_is_refused():
    tokens = {secret: guards(secret=secret)[1].issue() for secret in (None, SECRET, SECRET * 2)}

    for secret in tokens:
        _, guard = guards(secret=secret)
        for theirs, token in tokens.items():
            if theirs == secret:
                guard.check(token)
            else:
                with pytest.raises(TokenRefused):
                    guard.check(token)


@given(st.text())
def test_arbitrary_text_is_refused_as_a_token(text):
    with pytest.raises(TokenRefused):
        guards(secret=SECRET)[1].check(text)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_an_expired_token_and_one_from_the_future_are_refused(secret):
    clock, guard = guards(secret=secret, good_for=10.0)
    token = guard.issue()

    for moment in (0, 10_000, -CLOCKS_APART_MS):
        clock.now_ms += moment
        guard.check(token)
        clock.now_ms -= moment
    for moment, match in ((10_001, "10 s old"), (-CLOCKS_APART_MS - 1, "in the future")):
        clock.now_ms += moment
        with pytest.raises(TokenRefused, match=match):
            guard.attempt(token)
        clock.now_ms -= moment
    assert guard._inner.asked == []


@pytest.mark.parametrize("wrong", [None, 7, b"bytes"])
def test_a_token_that_is_not_text_is_a_usage_error(wrong):
    with pytest.raises(UsageError):
        guards(secret=SECRET)[1].attempt(wrong)


@pytest.mark.parametrize("how", [{"secret": b"short"}, {"good_for": 0}, {"good_for": -1.0}])
def test_a_short_secret_or_a_lifetime_that_is_not_positive_is_refused(how):
    with pytest.raises(ConfigError):
        guards(**how)


def test_issued_tokens_are_unique():
    guard = TokenGuard(Inner(), secret=SECRET)

    assert len({guard.issue() for _ in range(1_000)}) == 1_000
