"""What ``txmq xa`` refuses before it has a database; what it does with one stands beside XA."""

import builtins

import pytest

GONE = "postgresql://u:secret@127.0.0.1:1/none"


@pytest.mark.parametrize("command", ["list", "recover"])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--database", "postgresql://u:secret@h/bank"], "has no name"),
        (["--database", "bank"], "has no name"),
        (["--database", "a=bank"], "such as postgresql://user@host/database"),
        (["--database", "a=sqlite:///bank.db"], "a is not a PostgreSQL"),
        (["--database", f"a={GONE}", "--database", f"a={GONE}"], "a is given twice"),
        (["--database", f"a:b={GONE}"], "names no branch"),
        (["--database", f"a={GONE}", "--horizon", "soon"], "--horizon takes a duration"),
        (["--database", f"a={GONE}", "--fence", "a b"], "not a plain name"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(txmq, command, words, complaint):
    result = txmq("xa", command, *words)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert "secret" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "recover"])
def test_a_database_that_is_not_there(txmq, command):
    result = txmq("xa", command, "--database", f"a={GONE}")

    assert result.exit_code == 1
    assert "did not answer" in result.stderr
    assert "secret" not in result.output


def test_databases_may_stand_in_a_variable(txmq, monkeypatch):
    monkeypatch.setenv("TXMQ_XA_DATABASES", f"a={GONE} b=sqlite:///bank.db")

    assert "b is not a PostgreSQL" in txmq("xa", "list").stderr


def test_without_the_extra_it_is_said_what_to_install(txmq, monkeypatch):
    real = builtins.__import__

    def lacking(name, *rest):
        if name.startswith("txmq.transaction.resources"):
            raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    result = txmq("xa", "list", "--database", f"a={GONE}")

    assert result.exit_code == 1
    assert "pip install 'txmq[sql]'" in result.stderr
