import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from txmq.cli.config import reference
from txmq.cli.serve import banner, not_settings
from txmq.settings.description import describe
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.core.rocketmq_settings import NAMES

CHECKOUT = Path(__file__).parents[3]
ANYWHERE = ("--listen", "127.0.0.1:0", "--names-listen", "127.0.0.1:0")


def environment(**more):
    """The environment of a started program: the checkout, without settings of the developer."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TXMQ_")}
    clean.pop("PYTHONUNBUFFERED", None)  # A reader of a pipe must get the line without it.
    return {**clean, "PYTHONPATH": str(CHECKOUT), **more}


def started(*arguments, cwd, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "txmq", *arguments],
        cwd=cwd, env=environment(**more),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def stopped(process, how=signal.SIGTERM):
    process.send_signal(how)
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, out, err


def refused_start(*arguments, cwd):
    """What a program says in one line that does not start."""
    process = started(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    return err.splitlines()[-1]


def ran(*arguments, **more):
    return subprocess.run(
        [sys.executable, *arguments],
        **{"env": environment()} | more, capture_output=True, text=True, timeout=20,
    )  # fmt: skip


# What an operator reads


def test_the_banner_shows_the_data_directory_and_the_durability_of_answers(tmp_path):
    text = banner(BrokerSettings(data=str(tmp_path), advertise="10.0.0.9:10911"))

    assert text.splitlines() == [
        "txmq 0.1.0",
        "  broker  broker-a in DefaultCluster",
        "  listen  127.0.0.1:10911, advertised as 10.0.0.9:10911",
        "  names   127.0.0.1:9876",
        f"  data    {tmp_path}",
        "  copies  leader; answers do not wait for followers",
        "  flush   sync: a send is answered when its message survives a power cut",
        "  tls     disabled: connections are not encrypted",
        "  access  no accounts: loopback alone",
    ]


def test_the_banner_warns_that_asynchronous_flushing_may_lose_messages():
    settings = BrokerSettings(names="a:1;b:2", data="d", store=StoreSettings(flush="async"))

    text = banner(settings)

    assert "names   a:1;b:2 (elsewhere)" in text
    assert "a power cut may take the last messages" in text
    assert f"data    {Path('d').absolute()}" in text


def test_the_reference_has_a_row_for_every_setting():
    page = reference(describe(BrokerSettings), NAMES)

    for setting in describe(BrokerSettings):
        assert f"| `{setting.key}` |" in page
    assert "## store\n" in page
    assert "``" not in page


def test_config_reference_prints_the_reference_page(txmq):
    result = txmq("config", "reference")

    assert result.exit_code == 0
    assert result.stdout == reference(describe(BrokerSettings), NAMES).rstrip("\n") + "\n"


def test_the_help_shows_the_real_defaults(txmq):
    text = re.sub(r"[\s│]+", " ", txmq("serve", "--help").stdout)
    options = ("data", "listen", "names_listen", "name", "cluster")

    for default in (*(getattr(BrokerSettings(), option) for option in options), "sync"):
        assert f"[default: ({default})]" in text
    assert "docs/reference/configuration.md" in text


# Errors before it serves


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--set", "store.flsh=async"), "did you mean store.flush?"),
        (("--set", "nonsense"), "is not a setting; write key=value"),
        (("--flush", "quick"), 'it takes "sync" or "async"'),
        (("--config", "nowhere.toml"), "cannot read settings from nowhere.toml"),
        (("-c", "nowhere.conf"), "cannot read settings from nowhere.conf"),
        (("--set", "aclEnable=true"), "it takes true only if acl names the file of accounts"),
        (("--set", "authenticationEnabled=true"), "it takes false: the access control of RocketMQ"),
        (("--acl", "nowhere.yml"), "nowhere.yml cannot be read: No such file or directory"),
        (("--names", "a:1", "--names-listen", "b:2"), "exclude each other"),
        (("-n", "a:1", "--names-listen", "b:2"), "exclude each other"),
        (("--listen", "nowhere"), "listen cannot be 'nowhere'; it takes host:port"),
        (("--listen", "127.0.0.1:99999"), "listen cannot be '127.0.0.1:99999'; it takes"),
        (("--listen", "0.0.0.0:10911"), "--set advertise=192.0.2.1:10911"),
        (("--set", "advertise=localhost:1"), "--set advertise=192.0.2.1:10911"),
        (("--set", "retention.delete_at=99"), "retention.delete_at cannot be '99'"),
    ],
)
def test_an_invalid_setting_exits_2(txmq, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)

    result = txmq("serve", *arguments, "--names-listen" if "--listen" in arguments else "--name",
                  "127.0.0.1:0" if "--listen" in arguments else "b")  # fmt: skip

    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "names"])
def test_a_malformed_accounts_file_exits_2(txmq, tmp_path, command):
    file = tmp_path / "plain_acl.yml"
    file.touch(0o600)
    file.write_text("accounts:\n- accessKey: the-shop\n  secretKey: 2026-13-01\n")

    result = txmq(command, "--acl", str(file), "--listen", "127.0.0.1:0")

    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "plain_acl.yml: a value in line 3 is not valid for its type, such as a number or a date"
        in result.stderr
    )
    assert "2026" not in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_setting_in_the_environment_is_named(txmq):
    result = txmq("serve", env={"TXMQ_STORE__FLSH": "async"})

    assert (result.exit_code, "in variable TXMQ_STORE__FLSH" in result.stderr) == (2, True)


def test_environment_variables_of_command_options_are_not_settings(txmq, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text("nmae = 'x'")
    environ = dict.fromkeys(not_settings(), "")
    environ |= {"TXMQ_CONFIG": str(path), "TXMQ_LOG_FORMAT": "json", "TXMQ_LOG_LEVEL": "error"}

    result = txmq("serve", env=environ)

    assert result.exit_code == 2
    assert f"did you mean name? (in {path})" in result.stderr


def test_an_unknown_log_format_exits_2(txmq):
    assert txmq("serve", "--log-format", "xml").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [("serve", "--data", "d", "--names-listen", "127.0.0.1:0"), ("names",)],
    ids=["serve", "names"],
)
def test_an_address_in_use_prints_one_sentence_and_exits_1(tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refused_start(*command, "--listen", address, cwd=tmp_path) == (
            f"txmq: cannot start: {address} is taken; choose another --listen"
        )


# Real processes


def test_a_broker_prints_ready_and_stops_cleanly_on_a_signal(tmp_path):
    process = started(
        *("serve", "--data", "d", *ANYWHERE),
        *("--name", "b1", "--flush", "async", "--log-format", "json"),
        cwd=tmp_path, TXMQ_NAMES="10.0.0.1:1",
    )  # fmt: skip
    line = process.stdout.readline()
    code, rest, err = stopped(process)

    assert (code, rest) == (0, "")
    assert re.fullmatch(
        rf"ready b1 127\.0\.0\.1:\d+ names 127\.0\.0\.1:\d+ data {tmp_path / 'd'}\n", line
    )
    assert not line.split()[2].endswith(":0")
    assert f"data    {tmp_path / 'd'}" in err
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in logged)
    told = {line["message"]: line for line in logged if line["logger"] == "txmq.cli.serve"}
    assert list(told) == ["started", "stopped"]
    assert (told["started"]["records_scanned"], told["started"]["bytes_cut"]) == (0, 0)
    assert told["started"]["ms"] >= 0


def test_a_broker_starts_with_a_rocketmq_configuration_file(tmp_path):
    (tmp_path / "broker.conf").write_text(
        "brokerName=b2\nlistenPort=0\nstorePathRootDir=e\nflushDiskType=ASYNC_FLUSH\n"
        "sendMessageThreadPoolNums=16\nnamesrvAddr=192.0.2.7:9876\nwarmMapedFileEnable=true\n"
    )
    command = ("serve", "-c", "broker.conf", "--names-listen", "127.0.0.1:0")
    process = started(*command, cwd=tmp_path)
    line = process.stdout.readline()
    code, _, err = stopped(process)

    assert code == 0
    assert re.fullmatch(
        rf"ready b2 127\.0\.0\.1:\d+ names 127\.0\.0\.1:\d+ data {tmp_path / 'e'}\n", line
    )
    (note,) = [row for row in err.splitlines() if " WARNING " in row]
    assert note.endswith(
        " broker.conf: 2 settings have no meaning here: sendMessageThreadPoolNums, "
        "warmMapedFileEnable; `txmq config reference` says why"
    )


def test_a_rocketmq_setting_that_txmq_cannot_honour_exits_2(txmq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broker.conf").write_text("brokerName=b\nbrokerRole=MASTER\n")

    result = txmq("serve", "-c", "broker.conf")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "brokerRole cannot be 'MASTER' (in broker.conf, line 2)" in result.stderr


def test_a_data_directory_in_use_prints_one_sentence_and_exits_1(tmp_path):
    command = ("serve", "--data", "d", *ANYWHERE)
    first = started(*command, cwd=tmp_path)
    try:
        assert first.stdout.readline().startswith("ready ")
        said = refused_start(*command, cwd=tmp_path)
    finally:
        stopped(first)

    assert said == (
        f"txmq: cannot start: another broker has this data directory open: {tmp_path / 'd'}"
    )


def test_a_damaged_table_is_restored_from_its_predecessor_or_the_start_exits_1(tmp_path):
    command = ("serve", "--data", "d", *ANYWHERE)
    topics = tmp_path / "d/config/topics.json"

    def served(*options):
        process = started(*command, *options, cwd=tmp_path)
        assert process.stdout.readline().startswith("ready ")
        code, _, err = stopped(process)
        assert code == 0
        assert "Traceback" not in err
        return err

    served()
    whole = topics.read_bytes()
    topics.write_bytes(whole[:-9])
    assert (
        "config/topics.json: it is damaged: its last 9 bytes are missing; its predecessor "
        "config/topics.json.old takes its place, and nothing is lost"
    ) in served()
    assert topics.read_bytes() == whole
    assert "topics.json" not in served()

    topics.write_bytes(whole[:-9])
    topics.with_name("topics.json.old").unlink()

    assert refused_start(*command, cwd=tmp_path) == (
        "txmq: cannot start: config/topics.json: it is damaged: its last 9 bytes are missing, and "
        "its predecessor config/topics.json.old cannot replace it: it does not exist; put the file "
        "back from a backup; to go on without what it held: txmq serve --accept-loss REASON"
    )

    err = served("--accept-loss", "only system topics")
    assert "going on without what is missing: config/topics.json: it is damaged" in err
    assert "had no effect" not in err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_name_server_runs_alone_until_a_signal_stops_it(tmp_path, how):
    process = started("names", "--listen", "127.0.0.1:0", "--data", "n", cwd=tmp_path)
    line = process.stdout.readline()
    host, port = line.split()[-1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10):
        pass

    code, rest, err = stopped(process, how)

    assert re.fullmatch(r"ready names 127\.0\.0\.1:\d+\n", line)
    assert (code, rest) == (0, "")
    assert str(tmp_path / "n") in err


def test_without_typer_the_command_line_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('gone', name='typer')")
    paths = os.pathsep.join([str(tmp_path), str(CHECKOUT)])

    result = ran("-m", "txmq", "topic", "list", env=environment(PYTHONPATH=paths))

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "txmq: the command line needs typer: pip install 'txmq[cli]'\n"


def test_serve_loads_no_other_command_and_other_commands_load_no_broker():
    program = (
        "import sys\n"
        "from typer.main import get_command\n"
        "from txmq.cli.root import app\n"
        "commands = get_command(app)\n"
        "def loaded(part): return any(name.startswith(part) for name in sys.modules)\n"
        "commands.get_command(None, 'serve')\n"
        "print(loaded('txmq.cli.topic'))\n"
        "for name in commands.list_commands(None): commands.get_command(None, name)\n"
        "print(loaded('txmq.cli.topic'), loaded('txmq_broker'))\n"
    )

    result = ran("-c", program)

    assert (result.stdout, result.stderr) == ("False\nTrue False\n", "")


def test_a_broker_does_not_run_with_assertions_disabled(tmp_path):
    result = ran("-O", "-m", "txmq", "serve", "--data", "d", cwd=tmp_path)

    assert (result.returncode, result.stdout) == (2, "")
    assert "without python -O" in result.stderr
    assert not (tmp_path / "d").exists()
