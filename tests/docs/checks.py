"""The check of a block of a page, by its language. A wrong block raises an exception."""

import ast
import builtins
import configparser
import importlib
import json
import re
import shlex
import sqlite3
import subprocess
import tomllib
import xml.etree.ElementTree as ET
from functools import cache
from typing import NamedTuple, get_args

import msgspec
import psycopg

from tests.docs.commands import split, understand
from tests.docs.outputs import ANY, is_in_order, is_output_of, line_count
from tests.docs.pages import CODE, ROOT, all_pages, commands, excerpts
from tests.docs.scratch import execute
from tests.docs.vocabulary import see_words
from tests.servers.databases import conninfo
from txmq.cli.serve import foreign_names
from txmq.reconcile import read_rules
from txmq.reconcile.log.source import COLUMNS
from txmq.reconcile.rules import Rules
from txmq.security.signatures import Credentials
from txmq.settings.loading import kinds_of, load
from txmq_broker.config import BrokerSettings

READY = re.compile(r"ready \S+ \S+:\d+ names \S+:\d+ data \S+\n")
"""What `txmq serve` prints, which no test here starts."""
WAITS = re.compile(
    r"\b(\w+) = (?:PushConsumer|ScheduledPull|Client|Relay)\(|\b(?:Client|Relay)\(.* as (\w+):"
)
TESTS = re.compile(r"^def test_", re.MULTILINE)
RUN = {"schema", "topic", "group", "message", "tx", "dlq", "cluster", "xa"}
"""Commands of txmq that end by themselves, and need no more than a broker and a database."""
PLACEHOLDER = re.compile(r"[A-Z]{2,}")
AFTERTHOUGHT = re.compile(r"(?<=`)[:.]")
"""Ends what a line "It prints `...`" says of the output."""
NOT_RUN = {
    "mermaid": "a diagram, which `make site` draws",
    "dockerfile": "needs Docker",
    "java": "needs a JVM and RocketMQ's client",
    "go": "needs Go and RocketMQ's client",
    "cpp": "needs a compiler; tests/interop runs RocketMQ's client by programs of its own",
    "javascript": "tests/interop runs RocketMQ's client by programs of its own",
}
"""Languages whose blocks no test here runs, and why."""
ILLUSTRATED = {
    "txmq xa": "shows transactions that services and their crashes have left behind",
}
"""Commands whose output on a page is an example, not what they print in an empty environment."""
OPERATED = {
    "howto/monitor",
    "howto/replicate",
    "howto/several-brokers",
    "howto/topics-and-groups",
    "reference/cli",
}
"""Pages whose commands are about brokers at work and their topics; they are parsed."""


class Program(NamedTuple):
    """A program, with what the page says to add to it."""

    text: str
    shown: str
    """What it prints, as the page shows it; ``...`` for a part below which the page shows nothing.
    """
    is_unordered: bool
    said: list[str]
    """What it prints, as the page mentions it below a part."""


def check(page, scratch):
    """Run and compare everything that a page shows."""
    blocks = page.blocks()
    for place, block in enumerate(blocks):
        try:
            assert block.language in CHECKS, (
                f"no test knows what to do with a block of {block.language or 'no language'}: "
                "name its language, or add a check to tests/docs/checks.py"
            )
            if block.language == "python":
                see_names(page, block)
                if not block.is_fragment:
                    run_program(page, block, program_at(blocks, place), scratch)
                else:
                    assert any(above.language == "python" for above in blocks[:place])
            elif not block.is_output:
                CHECKS[block.language](page, block, scratch)
        except Exception as error:
            error.add_note(f"the block is in {page.path.relative_to(ROOT)}, line {block.line}")
            raise


def program_at(blocks, place):
    """The program that begins with this block."""
    parts, outputs, is_unordered = [blocks[place]], [ANY], False
    for block in blocks[place + 1 :]:
        if block.is_output:
            outputs[-1] = block.text
            is_unordered = is_unordered or "any order" in block.before
        elif block.language == "python":
            if not block.is_fragment:
                break
            parts.append(block)
            outputs.append(ANY)
    said = [text for part in parts for text in CODE.findall(AFTERTHOUGHT.split(part.said)[0])]
    text = "\n".join(part.text for part in parts)
    shown = "\n".join(output.rstrip("\n") for output in outputs)
    return Program(text, shown, is_unordered, said)


def see_names(page, block):
    """Fail if a comment or an attribute of a program has a name that exists nowhere else: no test
    calls each function that a page shows.
    """
    comments = re.findall(r"# (.+)", block.text)
    attributes = re.findall(r"\.(\w+)", block.text)
    see_words(page, "\n".join([*comments, *attributes]), block.text)


def run_program(page, block, program, scratch):
    """Run a program in a process of its own, unless a command of the page does."""
    file = block.file or f"program_{block.line}.py"
    (scratch.folder / file).write_text(scratch.real(program.text))
    if re.search(rf"^\$ .*\b{re.escape(file)}", page.text, re.MULTILINE):
        return
    shown = program.shown
    if TESTS.search(program.text):
        result = scratch.run(["pytest", file])
        assert result.code == 0, result.output
        return
    lines = line_count(shown) or 1 if waits(program.text) else None
    result = scratch.run(["python", file], lines)
    see_end(result)
    see_output(shown, result.output, program.is_unordered)
    assert is_in_order(program.said, result.output), f"it prints no {program.said}: {result.output}"


def waits(text):
    """Whether a program runs until Ctrl-C."""
    return any(f"{name}.wait()" in text for pair in WAITS.findall(text) for name in pair if name)


def see_end(result):
    """Fail unless the program has ended well."""
    assert not result.is_overdue, f"it neither ended nor printed what it should:\n{result}"
    if result.is_interrupted:
        is_quiet = "Traceback" not in result.errors  # It may log that its topic does not exist yet.
        assert is_quiet or result.errors.endswith("KeyboardInterrupt\n"), result.errors
    else:
        assert (result.code, result.errors) == (0, ""), f"exit code {result.code}\n{result.errors}"


def see_output(shown, output, is_unordered=False):
    """Fail unless the output is what the page shows."""
    is_right = is_output_of(shown, output, is_unordered)
    assert is_right, f"the page shows\n{shown}\nand it prints\n{output}"


def run_commands(page, block, scratch):
    """Run the commands that end by themselves; parse the others."""
    for command in commands(block.text):
        for words in split(command.line):
            if page.name in OPERATED:
                understand(words)
                see_words(page, command.output)
                continue
            result = run_command(words, command.output, scratch)
            if words[:2] == ["txmq", "serve"] and command.output:
                assert READY.fullmatch(command.output), f"no broker says {command.output}"
            if result is None:
                see_words(page, command.output)
                continue
            assert result.code == 0 or result.is_interrupted, (
                f"{command.line} failed: {result.output}{result.errors}"
            )
            if any(command.line.startswith(name) for name in ILLUSTRATED):
                see_words(page, command.output)
            elif command.output:
                lines = result.output.splitlines(keepends=True)
                if result.is_interrupted:
                    lines = lines[: line_count(command.output)]  # The page shows it while it runs.
                is_unordered = "order may differ" in page.text
                see_output(command.output, "".join(lines), is_unordered)


def read_script(page, block, scratch):
    """A shell understands it; what it calls needs a machine of its reader's."""
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def run_script(page, block, scratch):
    """Run or parse the lines of a script, which shows no output."""
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    run_commands(page, block._replace(text="".join(f"$ {line}\n" for line in lines)), scratch)


def run_command(words, output, scratch):
    """Run a command if a page's environment has what it needs, and parse it if not."""
    match words:
        case ["export", *assignments]:
            scratch.variables |= dict(
                scratch.real(assignment).split("=", 1)
                for assignment in assignments
                if "=" in assignment
            )
        case ["createdb", name]:
            scratch.database(name, is_created=True)
        case ["psql", name, "-c", statement]:
            execute(scratch.database(name), statement)
        case ["python", file] if file.endswith(".py"):
            assert (scratch.folder / file).exists(), f"the page saves no program as `{file}`"
            program = (scratch.folder / file).read_text()
            return scratch.run(words, line_count(output) if waits(program) else None)
        case ["python", "-m", "examples.bank_transfer.accounts", *_]:
            return scratch.run(words)
        case ["spark-submit", *_]:
            understand(words)
            file = next(word for word in words if word.endswith(".py"))
            return scratch.run(["python", file, "reconcile", "--help"])
        case ["txmq", "relay" | "worker", *_] if output:
            return scratch.run([scratch.real(word) for word in words], line_count(output))
        case ["txmq", group, *_] if group in RUN and not any(map(PLACEHOLDER.fullmatch, words)):
            return scratch.run([scratch.real(word) for word in words])
        case _:
            understand(words)
    return None


@cache
def programs():
    """The text of all programs, of which pages may show parts."""
    files = [*sorted((ROOT / "examples").rglob("*.py")), ROOT / "txmq/reconcile/match.py"]
    sources = [file.read_text() for file in files]
    shown = [
        block.text for page in all_pages() for block in page.blocks() if block.language == "python"
    ]
    return "\n".join(sources + shown)


def see_excerpt(page, block, scratch):
    """A block of `py` shows a part of a program that a test runs elsewhere."""
    for part in excerpts(block.text):
        assert part in programs(), f"no program has these lines: {part}"


def read_session(page, block, scratch):
    """A session of Python is parsed, and its names exist. Tests of Spark run the like."""
    lines = re.findall(r"^(?:>>>|\.\.\.) ?(.*\n)", block.text, re.MULTILINE)
    nodes = list(ast.walk(ast.parse("".join(lines))))
    bound = {
        alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    # Spark's own shell has a session by the name of spark.
    unbound = {node.id for node in names} - bound - set(dir(builtins)) - {"spark"}
    assert not unbound, f"the session does not define {unbound}"
    see_words(page, block.text)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("txmq"):
            offered = importlib.import_module(node.module).__all__
            assert all(name.name in offered for name in node.names), ast.unparse(node)


def read_toml(page, block, scratch):
    """Whole rules are read; a part of rules or settings has only keys that exist."""
    try:
        tree = tomllib.loads(block.text)
    except tomllib.TOMLDecodeError:
        trees = [tomllib.loads(line) for line in block.text.splitlines()]  # alternatives
    else:
        trees = [tree]
    if {"name", "bank", "log"} <= trees[0].keys():
        path = scratch.folder / "recon.toml"
        path.write_text(block.text)
        read_rules(path, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "secret"))
        return
    for tree in trees:
        if "secret_key" in tree:
            msgspec.convert(tree, Credentials)
            continue
        problems = [wrong_keys(tree, shape) for shape in structs(Rules)]
        assert [] in [*problems, wrong_settings(tree)], min(problems, key=len)


def structs(shape):
    """A struct of the rules, and all those below it."""
    found = [shape]
    for field in msgspec.structs.fields(shape):
        for below in structs_in(field.type):
            found += structs(below)
    return found


def structs_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [struct for argument in get_args(annotation) for struct in structs_in(argument)]


def wrong_keys(tree, shape):
    """The keys of a part of the rules that the struct lacks."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    wrong = [key for key in tree if key not in fields]
    for key in tree.keys() & fields.keys():
        for value in tree[key] if isinstance(tree[key], list) else [tree[key]]:
            below = structs_in(fields[key])
            if isinstance(value, dict) and below and "dict[" not in str(fields[key]):
                wrong += min((wrong_keys(value, struct) for struct in below), key=len)
    return wrong


def wrong_settings(tree, prefix=""):
    """The keys of a part of the broker's settings that do not exist."""
    wrong = []
    for key, value in tree.items():
        if isinstance(value, dict):
            wrong += wrong_settings(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" not in kinds_of(BrokerSettings):
            wrong.append(f"{prefix}{key}")
    return wrong


def read_properties(page, block, scratch):
    """A broker takes this file, with RocketMQ's names."""
    path = scratch.folder / "broker.conf"
    path.write_text(block.text)
    load(BrokerSettings, file=path, aliases=foreign_names())


def read_ini(page, block, scratch):
    """PostgreSQL knows the settings; other files have sections."""
    if "postgresql.conf" not in block.text:
        configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
        return
    with psycopg.connect(conninfo(scratch.any_database())) as connection:
        for name in re.findall(r"^(\w+) =", block.text, re.MULTILINE):
            query = "SELECT 1 FROM pg_settings WHERE name = %s"
            assert connection.execute(query, [name]).fetchone(), f"no setting {name}"


def run_sql(page, block, scratch):
    """Run it in the SQLite database of a program of the page, else in PostgreSQL."""
    if (
        "createOrReplaceTempView" in page.text
    ):  # tests/reconcile/test_log_source.py runs it on Spark.
        log = sqlite3.connect(":memory:")
        log.execute(f"CREATE TABLE log ({', '.join(COLUMNS.names)})")
        log.execute(block.text)
        log.close()
        return
    tables = re.findall(r"\b(?:FROM|INTO|UPDATE) (\w+)", block.text)
    for path in scratch.folder.glob("*.db"):
        bank = sqlite3.connect(path)
        known = {name for (name,) in bank.execute("SELECT name FROM sqlite_master")}
        if "CREATE" not in block.text and set(tables) <= known:
            bank.executescript(block.text)
            bank.close()
            return
        bank.close()
    is_whole = "CREATE TABLE" in block.text
    execute(scratch.new_database() if is_whole else scratch.any_database(), block.text)


def read_yaml(page, block, scratch):
    """The arguments of txmq in it are understood."""
    assert "\t" not in block.text
    for words in re.findall(r"(?:args|command): \[(.*?)\]", block.text, re.DOTALL):
        words = re.split(r",\s*", words.strip())
        entrypoint = re.search(r"^ENTRYPOINT (\[.+\])$", page.text, re.MULTILINE)
        assert entrypoint or words[0] == "txmq"
        understand([*json.loads(entrypoint[1]), *words] if entrypoint else words)


def read_text(page, block, scratch):
    """A text shows what was printed once, or draws something; commands in it are parsed, and its
    words exist.
    """
    see_words(page, block.text)
    assert not re.search(r"^(\$ )?txmq \w", block.text, re.MULTILINE), "make it a console block"
    options = [block.text] if block.text.startswith("--") else []
    for line in [*options, *re.findall(r"/txmq reconcile (.+)", block.text)]:
        understand(["txmq", "reconcile", *shlex.split(line)])


def nothing(page, block, scratch):
    """A block that no test runs; NOT_RUN says why."""


CHECKS = {
    "python": run_program,
    "py": see_excerpt,
    "pycon": read_session,
    "console": run_commands,
    "bash": run_script,
    "sh": read_script,
    "text": read_text,
    "toml": read_toml,
    "properties": read_properties,
    "ini": read_ini,
    "sql": run_sql,
    "yaml": read_yaml,
    "json": lambda page, block, scratch: json.loads(block.text),
    "xml": lambda page, block, scratch: ET.fromstring(block.text),
    **dict.fromkeys(NOT_RUN, nothing),
}
"""What a test does with a block, by its language."""
