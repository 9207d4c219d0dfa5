"""The file of the rules: reading, completing and checking it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

from msgspec.structs import replace

from txmq.errors import ConfigError
from txmq.reconcile.rules import (
    LOG_PLACES,
    SCHEMES,
    STATEMENT_FIELDS,
    TRANSFER_KINDS,
    AccountColumns,
    Bank,
    BankFiles,
    Constant,
    Rules,
)
from txmq.settings.loading import did_you_mean
from txmq.settings.tree import load_tree
from txmq.text import quantity

__all__ = ["read_rules"]

_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_ADDRESS: Final = re.compile(r"[^\s:;]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
"""The scheme of a location; a single letter is the drive of a Windows path instead."""
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_STATEMENT_DEFAULTS: Final = {
    "key": "end_to_end_id",
    **{name: name for name in ("account", "amount", "booked", "currency", "kind")},
    "kinds": {"debit": ("debit",), "credit": ("credit",), "recall": ("credit-reversal",),
              "return": ("debit-reversal",)},
}  # fmt: skip


def read_rules(
    path: Path, environ: Mapping[str, str] | None = None, *, reads_banks: bool = True
) -> Rules:
    """Read the rules in a file; directories are relative to the file.

    ``environ`` has the values of ``${VARIABLE}``; by default, it is the process's environment.
    Without ``reads_banks``, the variables of the banks may be missing, and the banks are not
    checked: a person who only works with results needs no bank's password.

    Raises:
        ConfigError: The file does not exist, or a rule is invalid.
    """
    held = os.environ if environ is None else environ
    lenient = () if reads_banks else ("bank",)
    rules = load_tree(Rules, path, held, complaint="the rules cannot be read:", lenient=lenient)
    checks = [_check_day, _check_log, _check_namespaces, _check_money]
    if reads_banks:
        checks.insert(1, _check_banks)
    for error in chain.from_iterable(check(rules) for check in checks):
        raise ConfigError(f"{path}: {error}")
    log, recon = rules.log, rules.recon
    places = [_local_path(path, "log.directories", place) for place in log.directories]
    one = log.directory and _local_path(path, "log.directory", log.directory)
    return replace(
        rules,
        directory=_local_path(path, "directory", rules.directory),
        log=replace(log, directory=one, directories=tuple(places)),
        bank=tuple(_complete(path, bank) for bank in rules.bank),
        recon=recon and replace(recon, database=_local_database(path, recon.database)),
    )


def _local_path(rules: Path, name: str, place: str) -> str:
    """Make a path or a ``file`` URI absolute. The URI of another file system stays unchanged, and
    one that txmq cannot reach is refused, never taken for a local folder.
    """
    uri, here = _URI.match(place), rules.resolve().parent
    if uri is None:
        return str(here / place)
    scheme, rest, where = uri[1], place[uri.end() :], f"{rules}: {name} {place!r}"
    has_host = re.match(r"//[^/]", rest) is not None
    if scheme.lower() == "file":
        if has_host:
            raise ConfigError(f"{where} names another machine: write file:///path")
        return str(here / rest.removeprefix("//"))
    if name != "directory":
        remedy = "mount it on this machine and on all workers, and write the path"
        raise ConfigError(f"{where} is on {scheme}, which txmq cannot write or read: {remedy}")
    if scheme not in SCHEMES:
        remedy = f"write a path, or a URI of {', '.join(SCHEMES)}"
        raise ConfigError(f"{where} is on {scheme}, which txmq cannot write: {remedy}")
    if not has_host and scheme in {"s3a", "gs", "abfss"}:
        raise ConfigError(f"{where} names no bucket or container: write {scheme}://NAME/FOLDER")
    return place


def _local_database(rules: Path, database: str) -> str:
    """Make the path of a database file relative to the rules' directory."""
    scheme, three, file = database.partition(":///")
    if scheme.partition("+")[0] != "sqlite" or not three:
        return database
    return f"{scheme}:///{rules.resolve().parent / file}"


def _complete(rules: Path, bank: Bank) -> Bank:
    """Make a bank's paths relative to the rules' directory, and fill in a statement's fields."""
    files, entries = bank.files, bank.entries
    if files is None:
        return replace(bank, database=_local_database(rules, bank.database))
    where = f"{bank.name}: files"
    path = _local_path(rules, f"{where}.path", files.path)
    balances = files.balances and _local_path(rules, f"{where}.balances", files.balances)
    bank = replace(bank, files=replace(files, path=path, balances=balances))
    if not files.is_statement:
        return bank
    missing = {name: of for name, of in _STATEMENT_DEFAULTS.items() if not getattr(entries, name)}
    accounts = AccountColumns("", "account", "currency", "closing", "opening")
    return replace(bank, entries=replace(entries, **missing, units="major"), accounts=accounts)


# Checks that types cannot express. Each one yields errors; only the first error is reported.


def _check_day(rules: Rules) -> Iterator[str]:
    for where, zone in [("day", rules.day.zone), *((bank.name, bank.zone) for bank in rules.bank)]:
        try:
            ZoneInfo(zone)
        except (OSError, ValueError, KeyError):
            hint = did_you_mean(zone, available_timezones()) or "; write one such as Asia/Shanghai"
            yield f"the zone {zone!r} of {where} is unknown{hint}"
    if _CLOCK.fullmatch(rules.day.cut_off) is None:
        yield f"cut_off {rules.day.cut_off!r} is not a time; write one such as 17:00"
    try:
        _ = rules.day.grace_ms
    except ValueError as error:
        yield f"grace {rules.day.grace!r} is invalid: write {error}"


def _check_banks(rules: Rules) -> Iterator[str]:
    names = {bank.name.casefold() for bank in rules.bank}
    if len(names) < len(rules.bank) or "log" in names:
        yield "every bank has a name of its own, and none is called log"
    for bank in rules.bank:
        files = bank.files
        checks = [_check_entries(bank), _check_source(bank)]
        if files is not None:
            check = _check_statements if files.is_statement else _check_balances
            checks += [_check_files(files, bank.entries.time), check(bank, files)]
        yield from (f"{bank.name}: {error}" for error in chain.from_iterable(checks))


def _check_entries(bank: Bank) -> Iterator[str]:
    entries = bank.entries
    for kind in entries.kinds.keys() - set(TRANSFER_KINDS):
        hint = did_you_mean(kind, TRANSFER_KINDS)
        yield f"kinds are {', '.join(TRANSFER_KINDS)}, not {kind}{hint}"
    for word in _duplicates(*entries.kinds.values()):
        yield f"{word!r} is of one of kinds and not of two"
    for account in _duplicates(entries.clearing, entries.suspense, entries.capital):
        yield f"{account!r} is one of clearing, suspense and capital and not two"
    if entries.gapless and not entries.id:
        yield "gapless is about ids, so id has to name their column"


def _check_source(bank: Bank) -> Iterator[str]:
    files, accounts = bank.files, bank.accounts
    if bank.database and files is not None:
        yield "write either database or [bank.files]"
    table = ["table"] if bank.database else []  # A DataFrame needs none.
    needed = {"entries": ["namespace"], "accounts": ["account", "currency", "balance", *table]}
    if files is None or not files.is_statement:
        needed["entries"] += ["key", "account", "amount", "booked", "currency", "kind", *table]
    for name, columns in (("entries", bank.entries), ("accounts", accounts)):
        if columns is not None:
            missing = (key for key in needed[name] if not getattr(columns, key))
            yield from (f"{name}.{key} is missing" for key in missing)
            if files is not None and (columns.table or columns.where):
                yield f"{name}.table and {name}.where are for databases: remove them"
    if files is None and accounts is not None and accounts.opening:
        yield "accounts.opening is for [bank.files]: a database has all entries"


def _check_files(files: BankFiles, time: str) -> Iterator[str]:
    for name, path in (("path", files.path), ("balances", files.balances)):
        try:
            path.format(date=date(2024, 1, 1))
        except (ValueError, LookupError, AttributeError, TypeError):
            yield f"files.{name} {path!r} is invalid: braces are only for {{date}}"
    try:
        if "\n".encode(files.charset) != b"\n":
            yield f"files.charset {files.charset!r} has lines of another kind: convert it to utf-8"
    except LookupError:
        yield f"files.charset {files.charset!r} is unknown; write one such as gb18030"
    if files.decimal == files.grouping:
        yield f"files.decimal and files.grouping are both {files.decimal!r}"
    if files.moments and not time.startswith("timestamp"):
        yield f'files.moments is for texts: write time = "timestamp", not {time!r}'


def _check_statements(bank: Bank, files: BankFiles) -> Iterator[str]:
    if bank.accounts is not None or files.balances:
        yield f"{files.format} has balances: remove [bank.accounts] and files.balances"
    if not files.is_dated:
        yield f"files.path {files.path!r} has no {{date}}, and a statement is of one date"
    fields = STATEMENT_FIELDS[files.format]
    for name in ("key", "account", "amount", "booked", "recorded", "currency", "kind", "id"):
        value = getattr(bank.entries, name)
        if isinstance(value, str) and value and value not in fields:
            yield f"entries.{name} {value!r} is not one of {', '.join(fields)}"


def _check_balances(bank: Bank, files: BankFiles) -> Iterator[str]:
    if (bank.accounts is None) == bool(files.balances):
        yield "[bank.accounts] and files.balances need each other"
    elif files.balances and ("{date" in files.balances) != files.is_dated:
        yield f"files.balances {files.balances!r} and files.path both need {{date}}, or neither"
    elif bank.accounts is not None and bank.accounts.opening and not files.is_dated:
        yield f"accounts.opening {bank.accounts.opening!r} needs {{date}} in files.path"


def _check_log(rules: Rules) -> Iterator[str]:
    log = rules.log
    given = [place for place in LOG_PLACES if getattr(log, place)]
    if len(given) > 1:
        found = " and ".join(given)
        yield f"log has {found}: give exactly one of directory, directories and cluster"
    for directory in _duplicates(*((directory,) for directory in log.directories)):
        yield f"log: directories has {directory!r} twice, so its transfers would count twice"
    for address in log.cluster.split(";") if log.cluster else ():
        if _ADDRESS.fullmatch(address.strip()) is None:
            yield f"log: cluster has {address!r}; write host:port of the name servers"
    for topic in dict.fromkeys(flow.topic for flow in log.flow):
        groups = sorted({flow.group for flow in log.flow if flow.topic == topic})
        if len(groups) > 1:
            named = " and ".join(map(repr, groups))
            yield f"the flows of the topic {topic} have to have one group, and have {named}"
    banks = [bank.name for bank in rules.bank]
    for flow in log.flow:
        for key in ("payer_bank", "payee_bank"):
            if (name := getattr(flow, key)) is not None and name not in banks:
                known, hint = ", ".join(banks), did_you_mean(name, banks)
                yield f"the flow of {flow.topic}: {key} {name!r} is not one of {known}{hint}"


def _check_namespaces(rules: Rules) -> Iterator[str]:
    named = []
    for bank in rules.bank:
        given = bank.entries.namespace
        several = [given] if isinstance(given, str) else sorted(set(given.names.values()))
        named += [(bank.name, namespace) for namespace in several]
    named += [(f"the flow of {flow.topic}", flow.namespace) for flow in rules.log.flow]
    ledgers = Counter(namespace for _, namespace in named)
    for where, namespace in named:
        if ledgers[namespace] == 1 < len(named):
            why = "a transfer has the same one in every ledger that knows it"
            yield f"{where} alone has the namespace {namespace}: {why}"


def _check_money(rules: Rules) -> Iterator[str]:
    charges, most = rules.outcomes.charges, rules.outcomes.charges_max
    for currency in (*rules.money, *most):
        if _CURRENCY.fullmatch(currency) is None:
            yield f"{currency!r} is not a currency; write one such as CNY"
    if (charges != "none") is not bool(most):
        yield (
            f"outcomes.charges is {charges!r} and outcomes.charges_max has "
            f"{quantity(len(most), 'currency', 'currencies')}: write both, such as "
            'charges = "payee" and charges_max = { CNY = 50_00 }, or neither'
        )
    for currency in most.keys() - rules.money.keys() if rules.money else ():
        yield f"outcomes.charges_max has {currency}, which is not one of {', '.join(rules.money)}"
    sources: list[tuple[str, Any]] = [
        (f"the flow of {flow.topic}", flow) for flow in rules.log.flow
    ]
    sources += [(bank.name, of) for bank in rules.bank for of in (bank.entries, bank.accounts)]
    for where, source in sources if rules.money else ():
        given = source and source.currency
        if isinstance(given, Constant) and given.value not in rules.money:
            known, hint = ", ".join(sorted(rules.money)), did_you_mean(given.value, rules.money)
            yield f"{where}: the currency {given.value} is not one of {known}{hint}"


def _duplicates(*groups: Iterable[str]) -> list[str]:
    """The names that occur in several groups."""
    counts = Counter(chain.from_iterable(map(set, groups)))
    return sorted(name for name, count in counts.items() if count > 1)
