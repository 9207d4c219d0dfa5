import io
import json
import logging
import sys

import pytest

from txmq.cli.logs import JsonFormatter, TextFormatter, configure


def record(text="took %d", *arguments, **more):
    made = logging.LogRecord("txmq_broker.store", logging.INFO, __file__, 1, text, arguments, None)
    made.created = 1714564800.123
    vars(made).update(more)
    return made


def test_a_text_line_has_time_level_logger_message_and_fields():
    line = TextFormatter().format(record("took %d", 3, segments=5, path="/a b", empty=""))

    assert line == (
        '2024-05-01T12:00:00.123Z INFO    txmq_broker.store took 3 segments=5 path="/a b" empty=""'
    )


def test_a_line_break_in_a_message_is_escaped():
    line = TextFormatter().format(record("a\r\nb", other='c"\nd'))

    assert "\n" not in line
    assert line.endswith(r'a\r\nb other="c\"\nd"')


OBEYED = "c\x1b]0;t\x07\x9b31m\u202e\u2028"
SHOWN = "c⟨U+001B⟩]0;t⟨U+0007⟩⟨U+009B⟩31m⟨U+202E⟩ "


def test_text_logs_escape_control_characters_from_clients():
    try:
        raise ValueError(OBEYED)
    except ValueError:
        text = TextFormatter().format(record("%s", OBEYED, client=OBEYED, exc_info=sys.exc_info()))

    first, *traceback = text.split("\n")
    quoted = r'"c\u001b]0;t\u0007\u009b31m\u202e\u2028"'
    assert first == f"2024-05-01T12:00:00.123Z INFO    txmq_broker.store {SHOWN} client={quoted}"
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == f"ValueError: {SHOWN}"


def test_json_logs_escape_control_characters_as_ascii():
    line = JsonFormatter().format(record("%s", OBEYED, client=OBEYED))

    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["client"] == OBEYED


def test_a_json_line_has_time_level_logger_message_and_fields():
    line = JsonFormatter().format(record("took %d", 3, segments=5, what=ValueError("x")))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2024-05-01T12:00:00.123Z",
        "level": "info",
        "logger": "txmq_broker.store",
        "message": "took 3",
        "segments": 5,
        "what": "x",
    }


def test_extra_fields_do_not_replace_standard_fields():
    line = JsonFormatter().format(record("m", time="never", level="x"))

    assert json.loads(line)["level"] == "info"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_log_line_keeps_the_traceback(formatter):
    try:
        raise ValueError("broken")
    except ValueError:
        line = formatter.format(record("m", exc_info=sys.exc_info()))

    assert "ValueError: broken" in line


@pytest.mark.parametrize(("form", "start"), [("text", "20"), ("json", "{")])
def test_logs_go_to_standard_error_from_the_configured_level(monkeypatch, form, start):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    configure(form, "warning")
    logging.getLogger("txmq_broker").info("not this")
    logging.getLogger("txmq_broker").warning("this", extra={"n": 1})

    lines = written.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(start)
