"""The outboxes that an option names."""

import pytest

from txmq.console.settings import OutboxAddress, outbox_address
from txmq.errors import ConfigError

URL = "postgresql://teller:hidden-word@10.0.0.5/bank?sslmode=require"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"bank={URL}", OutboxAddress("bank", URL)),
        (f"bank:my_outbox={URL}", OutboxAddress("bank", URL, "my_outbox")),
        (f" bank:app.my_outbox={URL} ", OutboxAddress("bank", URL, "my_outbox", "app")),
        ("b=sqlite:///x=y.db", OutboxAddress("b", "sqlite:///x=y.db")),
    ],
)
def test_an_outbox_option_has_a_name_a_url_and_an_optional_table(text, wanted):
    assert outbox_address(text) == wanted


@pytest.mark.parametrize("text", ["", URL, f"={URL}", "bank=", "bank=bank.db", f"b\x1b={URL}"])
def test_errors_about_an_outbox_do_not_show_its_password(text):
    with pytest.raises(ConfigError, match="--database needs a name and a URL") as caught:
        outbox_address(text)
    assert "hidden-word" not in str(caught.value)
    assert "hidden-word" not in repr(OutboxAddress("bank", URL))
