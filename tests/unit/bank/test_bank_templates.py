"""Text from users is shown in the bank's pages and does nothing there."""

from examples.bank_transfer.web.page_templates import TEMPLATES


def test_text_from_users_is_escaped_and_control_characters_are_visible():
    page = TEMPLATES.env.from_string("<p>{{ text }}</p>{{ part|safe }}")

    shown = page.render(text="<b>\x1b[31m\u202e", part="<i>\n</i>")

    assert shown == "<p>&lt;b&gt;⟨U+001B⟩[31m⟨U+202E⟩</p><i>\n</i>"
