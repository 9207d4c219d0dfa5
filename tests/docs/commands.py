"""Whether the commands that pages show would be understood; nothing is run here."""

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib

from tests.docs.pages import ROOT
from tests.docs.program_server import command
from txmq.settings.loading import load
from txmq_broker.config import BrokerSettings

COMPOSE = (ROOT / "docker-compose.yml").read_text()
COMPOSE_OPTIONS = {"--build", "--rm", "--volumes", "--wait"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {
    "fastapi",
    "httpx",
    "pytest",
    "rocketmq-client-python",
    "starlette",
    "uvicorn",
    "venv-pack",
}
"""What pages install beside txmq."""
FOREIGN = {
    ".": "the shell's",
    ".venv/bin/python": "this repository's own tools",
    "chmod": "the shell's",
    "cp": "the shell's",
    "du": "the shell's",
    "docker": "Docker's",
    "export": "the shell's",
    "etcd": "etcd's; tests/servers/etcd_server.py runs it",
    "etcdctl": "etcd's; test_guarded_etcd.py sends the same requests",
    "git": "Git's",
    "openssl": "OpenSSL's; tests/docs/test_tls_page.py runs it",
    "mv": "the shell's",
    "createdb": "PostgreSQL's; `createdb NAME` is done in the environment of its page",
    "curl": "needs the servers of the bank transfer, which its own tests call",
    "hadoop": "Hadoop's",
    "kinit": "Kerberos's",
    "mqadmin": "RocketMQ's; tests/interop runs it",
    "pg_isready": "PostgreSQL's",
    "postgres": "PostgreSQL's",
    "psql": "PostgreSQL's; `psql NAME -c SQL` is done in the environment of its page",
    "redis-cli": "Redis's",
    "/opt/spark/sbin/start-connect-server.sh": "Spark's",
    "sqlite3": "SQLite's, on the books that a demo leaves behind",
    "systemctl": "systemd's",
    "venv-pack": "a package's",
}
"""Programs that pages call and that no test parses, and whose they are."""


def understand(words):
    """Fail if the program that is called would refuse these words."""
    match words:
        case ["txmq", "serve", *more]:
            understood = txmq_command(["serve", *more])
            keys = ("name", "data", "listen", "names_listen", "names")
            found = {key: understood[key] for key in keys}
            found |= {f"replication.{key}": understood[key] for key in ("coordinator", "member")}
            given = [f"{key}={value}" for key, value in found.items() if value]
            load(BrokerSettings, arguments=[*understood["set_"], *given])
        case ["txmq", *more]:
            txmq_command(more)
        case ["spark-submit", *more] if "reconcile.py" in more:
            txmq_command(words[words.index("reconcile.py") + 1 :])
        case ["python", "-m", module, *more]:
            package = importlib.util.find_spec(module).submodule_search_locations
            main = f"{module}.__main__" if package else module
            importlib.import_module(main).arguments().parse_args(more)
        case ["python", "-c", program]:
            compile(program, "program", "exec")
            for module, name in re.findall(r"from (examples[\w.]*) import (\w+)", program):
                assert defines(module, name), f"{module} has no {name}"
        case ["sh", "-ec", line]:
            for call in split(line):
                understand(call)
        case ["python3", "-m", "venv", _]:
            pass
        case ["pip", "install", *packages]:
            others = {package.partition("=")[0] for package in packages}
            ours = {package for package in others if package.startswith(".")}
            extras = {
                extra for requirement in ours for extra in requirement.strip(".[]").split(",")
            }
            unknown = extras - set(PROJECT["optional-dependencies"])
            assert unknown == set(), f"txmq has no extras {unknown}"
            unknown = others - ours - PACKAGES
            assert not unknown, f"no page needs the packages {unknown}; if one does, list them"
        case ["make", target]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
        case ["docker", "compose", *more]:
            compose(more)
        case ["uvicorn", *options] | ["gunicorn", *options]:
            place = next(word for word in options if ":" in word)
            module, name = re.match(r"([\w.]+):(\w+)", place).groups()
            assert defines(module, name), f"{module} has no {name}"
        case _:
            assert words[0] in FOREIGN, f"no test knows the program {words[0]}: {words}"


def compose(words):
    """Fail if a service of docker-compose.yml does not exist, or its command is unknown."""
    action, *more = [word for word in words if word not in COMPOSE_OPTIONS]
    assert action in {"up", "run", "exec", "kill", "down", "logs", "ps"}, action
    if more:
        assert re.search(rf"^  {more[0]}:", COMPOSE, re.MULTILINE), f"no service {more[0]}"
    if action == "exec":
        understand(words[words.index(more[0]) + 1 :])


def defines(module, name):
    """Whether a module of this repository defines the name."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    targets = [
        target
        for node in tree.body
        for target in (*getattr(node, "targets", ()), getattr(node, "target", None))
    ]
    bound = {getattr(target, "id", "") for target in targets}
    return name in bound | {getattr(node, "name", "") for node in tree.body}


def txmq_command(words):
    """The options of a command of txmq."""
    found = command()
    context = found.make_context("txmq", list(words))
    # A group that is a command itself has options of its own before the next word.
    while hasattr(found, "resolve_command") and (rest := rest_of(context)):
        name, found, words = found.resolve_command(context, rest)
        context = found.make_context(name, list(words), parent=context)
    return context.params


def rest_of(context):
    return [*context._protected_args, *context.args]


def split(line):
    """The words of each program that a line of a shell calls."""
    calls = [[]]
    for word in shlex.split(line, comments=True):
        if word in {"|", "&&", "||", ";"}:
            calls.append([])
        else:
            calls[-1].append(word)
    return [words for words in calls if words]


def unknown_words(words):
    """What is not a command or an option of txmq; a mention of a command may lack arguments."""
    found, rest = command(), list(words)
    while rest and hasattr(found, "get_command") and (inner := found.get_command(None, rest[0])):
        found, rest = inner, rest[1:]
    known = {name for option in found.params for name in (*option.opts, *option.secondary_opts)}
    takes_words = getattr(found, "invoke_without_command", True)
    return [word for word in rest if not takes_words or (word[0] == "-" and word not in known)]
