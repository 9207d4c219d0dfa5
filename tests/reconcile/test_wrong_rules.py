"""A wrong rules file gets one clear line that names the key and the value."""

import pytest

from tests.reconcile.test_rules import FLOW, RULES
from txmq.errors import ConfigError
from txmq.reconcile.rules_file import read_rules

BANK_END = 'namespace = "icbc"\n'
WRONG = [
    ('name = "icbc-ccb"', 'nmae = "icbc-ccb"', ("nmae", "name")),
    ('name = "icbc-ccb"', "name = 7", ("name", "int", "7")),
    ('name = "icbc-ccb"', 'name = "two words"', ("name", "two words")),
    ('directory = "recon"', "", ("directory",)),
    ('directory = "recon"', 'directory = ["recon"]', ("directory", "array")),
    ('[day]\nzone = "Asia/Shanghai"', '[dya]\nzone = "Asia/Shanghai"', ("dya", "did you mean day")),
    ('zone = "Asia/Shanghai"', 'zone = "Asia/Shanghia"', ("zone", "did you mean Asia/Shanghai")),
    (
        'zone = "Asia/Shanghai"',
        'zome = "Asia/Shanghai"',
        ("`zome` - at `$.day`; did you mean zone",),
    ),
    ('zone = "Asia/Shanghai"', "zone = 8", ("day.zone", "int")),
    ('cut_off = "17:00"', 'cut_off = "25:00"', ("cut_off", "25:00")),
    ('cut_off = "17:00"', 'cut_off = "5 pm"', ("cut_off", "5 pm")),
    ('cut_off = "17:00"', 'grace = "soon"', ("grace", "soon")),
    ('cut_off = "17:00"', 'holidays = ["2026-02-30"]', ("day.holidays", "date")),
    ('cut_off = "17:00"', 'weekend = ["caturday"]', ("day.weekend", "caturday")),
    ('cut_off = "17:00"', "history = -1", ("day.history", "-1")),
    ('cut_off = "17:00"', "history = 400", ("day.history", "400")),
    ("[money.CNY]", "[money.cny]", ("cny", "currency")),
    ("[money.CNY]", "[money.RENMINBI]", ("RENMINBI", "not a currency")),
    ("materiality = 1_000_00", "materiality = -1", ("money[...].materiality", "-1")),
    ("materiality = 1_000_00", "digits = 9", ("money[...].digits", "9")),
    ("materiality = 1_000_00", 'tolerance = "1"', ("money[...].tolerance", "str")),
    ("materiality = 1_000_00", "materialty = 5", ("materialty", "money")),
    ('database = "sqlite:///icbc.db"', "readers = 0", ("readers", "is 0")),
    ('name = "icbc"\n', 'name = "log"\n', ("log", "bank")),
    ('table = "journal"', "", ("icbc", "entries.table")),
    ('key = "transfer"', "", ("icbc", "entries.key")),
    ('account = "account"', 'acount = "account"', ("acount", "did you mean account")),
    ('amount = "amount"', "amount = 1.5", ("amount", "float", "1.5")),
    ('{ is = "CNY" }', '{ ist = "CNY" }', ("ist",)),
    ('{ is = "CNY" }', '{ is = "CYN" }', ("the currency CYN is not one of", "did you mean CNY")),
    (FLOW, FLOW + 'currency = { is = "CNX" }\n', ("flow of transfers", "CNX", "did you mean CNY")),
    ('debit = ["debit"]', 'debt = ["debit"]', ("debt", "kinds", "did you mean debit")),
    ('credit = ["credit"]', 'credit = ["debit"]', ("icbc: 'debit' is of one of kinds",)),
    (BANK_END, BANK_END + 'units = "cents"\n', ("entries.units", "cents")),
    (BANK_END, BANK_END + "gapless = true\n", ("icbc", "gapless")),
    (BANK_END, BANK_END + 'clearing = ["1"]\nsuspense = ["1"]\n', ("'1'", "clearing")),
    ('directory = "data"', 'cluster = "mq1"', ("log", "cluster", "mq1")),
    ('topic = "transfers"\nnamespace', 'topik = "transfers"\nnamespace', ("topik", "topic")),
    (FLOW, FLOW + "[limits]\nbreaks = -1\n", ("limits.breaks", "-1")),
    (FLOW, FLOW + '[outcomes]\ncharges = "bank"\n', ("outcomes.charges", "bank")),
    (FLOW, FLOW + '[outcomes]\ncharges = "payee"\n', ("outcomes.charges", "charges_max")),
    (FLOW, FLOW + "[outcomes]\ncharges_max = { CNY = 5 }\n", ("outcomes.charges_max", "none")),
    (FLOW, FLOW + '[outcomes]\ncharges = "payee"\ncharges_max = { CYN = 5 }\n', ("CYN", "CNY")),
    (FLOW, FLOW + FLOW + 'group = "other"\n', ("transfers", "other")),
    ("[day]", "[day", ("line",)),
    ("[day]", "[day]\nfoo = 1", ("foo",)),
    ('table = "', 'tabel = "', ("did you mean table",)),
    ('directory = "data"', 'directry = "data"', ("did you mean directory",)),
    ('topic = "transfers"', "", ("topic",)),
    ("[[log.flow]]", "[[log.flows]]", ("flows",)),
    (FLOW, FLOW.replace("icbc", "icbk"), ("icbc alone has the namespace icbc",)),
    (FLOW, f'{FLOW}payee_bank = "ibc"', ("payee_bank 'ibc' is not one of icbc; did you mean",)),
    (
        FLOW,
        f'{FLOW}group = "one"\n{FLOW}group = "two"\ntags = ["B"]\n',
        ("topic transfers have to have one group, and have 'one' and 'two'",),
    ),
    (
        'directory = "data"',
        'directory = "a"\ncluster = "mq:9876"',
        ("log has directory and cluster: give exactly one of directory, directories and cluster",),
    ),
    (
        'directory = "data"',
        'directories = ["a", "b", "a"]',
        ("directories has 'a' twice, so its transfers would",),
    ),
    (
        'directory = "data"',
        'cluster = "mq:9876;mq2"',
        ("cluster has 'mq2'; write host:port of the name servers",),
    ),
    # Other file systems
    ('"recon"', '"ftp://bank/recon"', ("directory 'ftp://bank/recon' is on ftp, which txmq",)),
    ('"recon"', '"s3a:/recon"', ("directory 's3a:/recon' names no bucket or container",)),
    ('"recon"', '"file://nas/recon"', ("directory 'file://nas/recon' names another machine",)),
    ('"data"', '"hdfs://nn/log"', ("log.directory 'hdfs://nn/log' is on hdfs, which txmq",)),
    (
        'directory = "data"',
        'directories = ["a", "gs://b"]',
        ("log.directories 'gs://b' is on gs, which txmq",),
    ),
    (
        'database = "sqlite:///icbc.db"\n[bank.entries]\ntable = "journal"',
        'files = { path = "abfss://b@a/{date}.csv", format = "csv" }\n[bank.entries]',
        ("icbc: files.path 'abfss://b@a/{date}.csv' is on abfss, which txmq",),
    ),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG)
def test_a_wrong_rule_is_reported_in_one_line_with_its_key_and_value(tmp_path, old, new, words):
    assert old in RULES
    path = tmp_path / "recon.toml"
    path.write_text(RULES.replace(old, new, 1))

    with pytest.raises(ConfigError) as error:
        read_rules(path, {})

    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    assert [word for word in words if word not in line] == []
    assert list(tmp_path.iterdir()) == [path], "it is refused before any work"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b""])
def test_a_missing_binary_or_empty_rules_file_is_named(tmp_path, content):
    path = tmp_path / "recon.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as error:
        read_rules(path, {})

    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_all_values_of_a_key_are_named_if_the_error_does_not_say_which(tmp_path):
    path = tmp_path / "recon.toml"
    path.write_text(
        RULES.replace("[money.CNY]", "[money.EUR]\ndigits = 2\n[money.CNY]\ndigits = 9")
    )

    with pytest.raises(ConfigError, match=r"money\[...\].digits`, which is 2 or 9"):
        read_rules(path, {})
