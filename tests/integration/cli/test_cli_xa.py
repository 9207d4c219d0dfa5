"""What ``txmq xa`` refuses without a database; its work on databases is tested with XA."""

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
def test_invalid_xa_options_are_refused_in_one_line(txmq, command, words, complaint):
    result = txmq("xa", command, *words)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert "secret" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "recover"])
def test_an_unreachable_database_exits_1_and_hides_its_password(txmq, command):
    result = txmq("xa", command, "--database", f"a={GONE}")

    assert result.exit_code == 1
    assert "did not answer" in result.stderr
    assert "secret" not in result.output


def test_xa_databases_can_come_from_the_environment(txmq, monkeypatch):
    monkeypatch.setenv("TXMQ_XA_DATABASES", f"a={GONE} b=sqlite:///bank.db")

    assert "b is not a PostgreSQL" in txmq("xa", "list").stderr


def test_without_the_sql_extra_xa_says_what_to_install(txmq, monkeypatch):
    real = builtins.__import__

    def lacking(name, *rest):
        if name.startswith("txmq.transaction.resources"):
            raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    result = txmq("xa", "list", "--database", f"a={GONE}")

    assert result.exit_code == 1
    assert "pip install 'txmq[sql]'" in result.stderr
