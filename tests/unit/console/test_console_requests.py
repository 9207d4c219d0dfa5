"""Which hosts and origins a console accepts."""

import pytest
from starlette.datastructures import Headers

from txmq.console.request_checks import refusal_of
from txmq.console.settings import ConsoleSettings, origins_of
from txmq.errors import ConfigError

LOCAL = origins_of("127.0.0.1", 8080, None, is_loopback=True)


def settings(origins=LOCAL):
    return ConsoleSettings(names="127.0.0.1:9876", origins=origins)


@pytest.mark.parametrize(
    ("listen", "given", "expected"),
    [
        (("127.0.0.1", 8080), None, {"http://127.0.0.1:8080", "http://localhost:8080"}),
        (("127.0.0.1", 80), None, {"http://127.0.0.1", "http://localhost"}),
        (("::1", 8080), None, {"http://[::1]:8080", "http://localhost:8080"}),
        (("0.0.0.0", 8080), "https://ops.example.com", {"https://ops.example.com"}),
        (("0.0.0.0", 8080), "https://OPS.example.com:443/", {"https://ops.example.com"}),
        (("0.0.0.0", 8080), "http://localhost:9000", {"http://localhost:9000"}),
    ],
)
def test_allowed_origins_are_written_as_browsers_send_them(listen, given, expected):
    assert origins_of(*listen, given, is_loopback=listen[0] in {"127.0.0.1", "::1"}) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "name the address that their browsers show"),
        ("http://ops.example.com", "secret keys without TLS"),
        ("ops.example.com", "is not an origin"),
        ("https://ops.example.com/console", "is not an origin"),
        ("https://ann@ops.example.com", "is not an origin"),
        ("https://ops.example.com:x", "is not an origin"),
        ("javascript://ops.example.com", "is not an origin"),
    ],
)
def test_a_public_address_needs_an_https_origin(given, why):
    with pytest.raises(ConfigError, match=why):
        origins_of("0.0.0.0", 8080, given, is_loopback=False)


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8080", "127.0.0.1:8081"])
def test_a_request_for_another_host_is_refused(host):
    status, text = refusal_of("GET", Headers({"host": host}), settings())

    assert status == 421
    assert "127.0.0.1:8080 or localhost:8080" in text


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.example",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:8080.evil.example",
    ],
)
def test_a_form_of_another_origin_is_refused(origin):
    headers = {"host": "127.0.0.1:8080"} | ({"origin": origin} if origin else {})

    status, text = refusal_of("POST", Headers(headers), settings())

    assert status == 403
    assert "nothing was changed" in text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_to_the_console_but_not_embed_it(site):
    headers = {"host": "LOCALHOST:8080", "sec-fetch-site": site, "sec-fetch-mode": "no-cors"}

    assert refusal_of("GET", Headers(headers), settings())[0] == 403
    headers["sec-fetch-mode"] = "navigate"
    assert refusal_of("GET", Headers(headers), settings()) is None


def test_the_consoles_own_pages_and_forms_are_accepted():
    headers = Headers({"host": "localhost:8080", "origin": "http://localhost:8080"})

    assert refusal_of("GET", Headers({"host": "localhost:8080"}), settings()) is None
    assert refusal_of("POST", headers, settings()) is None
    assert refusal_of("DELETE", headers, settings())[0] == 405


def test_the_console_is_encrypted_if_its_origin_is_https():
    assert not settings().is_encrypted
    assert settings(frozenset({"https://ops.example.com"})).is_encrypted
