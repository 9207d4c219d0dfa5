"""Changes to files of accounts: comments stay, and what is invalid has no effect."""

import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.names.names_peer import SetClock
from txmq.errors import ConfigError
from txmq_broker.access.acl_editor import AclEditor, AclText
from txmq_broker.access.acl_files import AclFiles

HEAD = """# Ours.
globalWhiteRemoteAddresses:
- 10.0.0.1  # the old host
"""
TEXT = (
    HEAD
    + """accounts:
# People.
- accessKey: operator
  secretKey: operator-secret
  admin: true
# Programs.
- accessKey: the-shop   # web
  secretKey: the-shop-secret
  topicPerms:
  - Orders=PUB

# The last words.
"""
)
BILL = {"accessKey": "the-bill", "secretKey": "the-bill-secret", "groupPerms": ["bill=SUB"]}


def put_account(text, account):
    return AclText.of("", text).put_account(account).text


def remove_account(text, key):
    return AclText.of("", text).remove_account(key).text


def put_key(text, key, value):
    return AclText.of("", text).put_key(key, value).text


def test_a_new_account_leaves_all_other_lines_as_they_are():
    assert put_account(TEXT, BILL) == TEXT.replace(
        "  - Orders=PUB\n",
        "  - Orders=PUB\n"
        "- accessKey: the-bill\n  secretKey: the-bill-secret\n  groupPerms:\n  - bill=SUB\n",
    )


def test_changing_or_removing_an_account_touches_only_its_own_lines():
    shop = {"accessKey": "the-shop", "secretKey": "another-secret"}
    lines = "- accessKey: the-shop   # web\n  secretKey: the-shop-secret\n"
    lines += "  topicPerms:\n  - Orders=PUB\n"
    new = "- accessKey: the-shop\n  secretKey: another-secret\n"
    assert put_account(TEXT, shop) == TEXT.replace(lines, new)
    assert remove_account(TEXT, "the-shop") == TEXT.replace(lines, "")


def test_a_key_of_the_file_is_replaced_or_added():
    changed = put_key(TEXT, "globalWhiteRemoteAddresses", [])
    assert changed == TEXT.replace(HEAD, "# Ours.\nglobalWhiteRemoteAddresses: []\n")
    assert put_key(TEXT, "dataVersion", [{"counter": 1}]).startswith(TEXT)


NAMES = st.text("abc:#'\"{}[]-&*!|>%@ \n\u00e4", min_size=7, max_size=9)
ACCOUNTS = st.lists(NAMES, max_size=3, unique=True)
STYLES = st.sampled_from(
    [
        lambda values: yaml.safe_dump(values),
        lambda values: yaml.safe_dump(values, default_flow_style=True),
        lambda values: yaml.safe_dump(values, default_flow_style=None, indent=4) + "# end",
        lambda values: yaml.safe_dump(values).replace("\n- ", "\n    # about it\n- "),
    ]
)


@given(ACCOUNTS, NAMES, STYLES)
def test_any_change_in_any_yaml_style_has_exactly_the_intended_effect(names, key, style):
    def account(name, secret="some-secret"):
        return {"accessKey": name, "secretKey": secret, "topicPerms": ["T=PUB"]}

    text = style({"accounts": [account(name) for name in names], "globalWhiteRemoteAddresses": []})
    values = yaml.safe_load(text)
    wanted = [account(name) for name in names if name != key]
    at = names.index(key) if key in names else len(names)
    wanted.insert(at, account(key, "a-new-secret"))
    changed = put_account(text, account(key, "a-new-secret"))
    assert yaml.safe_load(changed) == {**values, "accounts": wanted}
    del wanted[at]
    assert yaml.safe_load(remove_account(changed, key)) == {**values, "accounts": wanted}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


@pytest.fixture
def files(file):
    return AclFiles(file)


@pytest.fixture
def editor(files):
    return AclEditor(files, SetClock())


def test_a_change_takes_effect_at_the_next_refresh_and_is_counted(editor, files, file):
    editor.put_account({"accessKey": "the-shop", "topicPerms": ["Orders=SUB"]})
    files.refresh()
    shop = files.rules.accounts["the-shop"].settings
    assert (shop.secret_key, shop.topic_perms) == ("the-shop-secret", ["Orders=SUB"])
    editor.put_addresses(["10.0.0.{1,7}"])
    files.refresh()
    assert files.rules.trusted_texts == ("10.0.0.{1,7}",)
    editor.remove_account("the-shop")
    files.refresh()
    assert set(files.rules.accounts) == {"operator"}
    assert files.rules.versions[str(file)].counter == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert "# The last words." in file.read_text()


REFUSED = {
    "secretKey` is too short": lambda edit: edit.put_account({**BILL, "secretKey": "short"}),
    "topicPerms cannot hold": lambda edit: edit.put_account({**BILL, "topicPerms": ["Orders"]}),
    "needs a secretKey": lambda edit: edit.put_account({"accessKey": "the-bill"}),
    "no account has the accessKey": lambda edit: edit.remove_account("the-bill"),
    "no administrator would be left": lambda edit: edit.remove_account("operator"),
    "not an address pattern": lambda edit: edit.put_addresses(["10.0"]),
    "is not a file of accounts": lambda edit: edit.put_addresses([], "/etc/passwd"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_change_leaves_the_file_and_the_rules_unchanged(editor, files, file, why):
    rules = files.rules
    with pytest.raises(ConfigError) as refused:
        REFUSED[why](editor)
    assert why.removeprefix("secretKey` is too short") in str(refused.value)
    assert "the-bill-secret" not in str(refused.value)
    assert file.read_text() == TEXT
    assert files.rules is rules


def test_a_failed_write_leaves_the_file_unchanged(editor, file, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written: No space left on device; nothing"):
        editor.put_account(BILL)
    assert file.read_text() == TEXT
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_with_invalid_yaml_is_not_overwritten(editor, file):
    file.write_text(TEXT + "accounts: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        editor.put_account(BILL)
    assert file.read_text().endswith("accounts: [")


def test_brokers_that_share_a_file_accept_the_same_change_twice(editor, file):
    other_files = AclFiles(file)
    other_editor = AclEditor(other_files, SetClock())
    for change in (
        lambda edit: edit.put_account(BILL),
        lambda edit: edit.remove_account("the-shop"),
    ):
        # A tool asks each broker of the cluster.
        change(editor)
        change(other_editor)
        other_files.refresh()
    assert set(other_files.rules.accounts) == {"operator", "the-bill"}
    with pytest.raises(ConfigError, match="no account has the accessKey"):
        other_editor.remove_account("the-shop")


def test_a_symbolic_link_to_the_file_is_kept(tmp_path, file):
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    AclEditor(AclFiles(link), SetClock()).put_account(BILL)
    assert link.is_symlink()
    assert "the-bill" in Path(file).read_text()
