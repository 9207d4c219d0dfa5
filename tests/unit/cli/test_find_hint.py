"""How ``txmq find`` says to search on: the command works where this one did."""

import pytest

from txmq.cli.find import _further


@pytest.mark.parametrize(
    ("text", "cluster", "names", "command"),
    [
        ("k-1", None, "127.0.0.1:9876", "txmq find --after T k-1"),
        ("k 1", "Bank", "127.0.0.1:9876", "txmq find --after T --cluster Bank 'k 1'"),
        ("k-1", None, "a:1;b:2", "txmq find --after T --names 'a:1;b:2' k-1"),
        ("-k", None, "127.0.0.1:9876", "txmq find --after T -- -k"),
    ],
)
def test_the_hint_repeats_the_options_of_the_command(text, cluster, names, command, monkeypatch):
    monkeypatch.delenv("TXMQ_NAMES", raising=False)

    assert _further(text, "T", cluster, names) == command


def test_the_hint_omits_name_servers_set_by_the_environment(monkeypatch):
    monkeypatch.setenv("TXMQ_NAMES", "a:1")

    assert _further("k", "T", None, "a:1") == "txmq find --after T k"
    assert _further("k", "T", None, "127.0.0.1:9876").endswith("--names 127.0.0.1:9876 k")
