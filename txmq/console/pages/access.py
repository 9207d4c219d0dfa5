"""Accounts and their permissions: listed without secrets, created, changed and removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmq.console.forms import ChangePreview, check_repeated, required
from txmq.console.markup import link, url_of
from txmq.console.pages.lists import list_page
from txmq.console.visits import (
    ChangeDone,
    ChangeForm,
    ChangeRoute,
    PageContent,
    PageRoute,
    Visit,
    choose_broker,
)
from txmq.errors import BrokerRefused, NoPermission, NotFound, UsageError
from txmq.ops.rows import PERMISSIONS, account_row
from txmq.protocol.operations import Accounts
from txmq.security.signatures import Credentials

__all__ = ["CHANGES", "PAGES"]

_GROUP_PERMISSIONS: Final = ("SUB", "DENY")


async def show_list(visit: Visit) -> PageContent:
    """Show the accounts of a broker."""
    choice = await choose_broker(visit)
    problem = ""
    found = Accounts([], [])
    try:
        found = await visit.admin.accounts(choice.name)
    except NoPermission:
        raise
    except BrokerRefused as error:
        problem = str(error).strip()
    accounts = {account.access_key: account for account in found.plain_access_configs}
    page = list_page(accounts, visit.page_number(), visit.text("search"))
    values = {
        "title": "Access",
        "choice": choice,
        "page": page,
        "rows": [account_row(choice.name, accounts[key]) for key in page.rows],
        "trusted": found.global_white_addrs,
        "problem_text": problem,
        **_choices(),
    }
    return PageContent("access.html", values)


async def show_account(visit: Visit) -> PageContent:
    """Show one account, and a form that changes it."""
    row = await _row(visit)
    values = {"title": "Account", "row": row, "broker": row["broker"], **_choices()}
    return PageContent("account.html", values)


async def show_removal(visit: Visit) -> PageContent:
    """Show what the removal of an account will do."""
    row = await _row(visit)
    key = row["account"]
    sentences = [
        f"All brokers of the cluster refuse the clients of {key} from their next request on.",
        "Its secret is lost. An account of the same name needs a new one.",
    ]
    if _is_own(visit, key):
        sentences.append("You are logged in with this account: this console refuses you, too.")
    facts = {
        "administrator": "yes" if row["admin"] else "no",
        "topics": ", ".join(row["topics"]) or "none of its own",
        "groups": ", ".join(row["groups"]) or "none of its own",
    }
    return ChangePreview(
        title=f"Remove {key}",
        eyebrow="Account",
        sentences=tuple(sentences),
        facts=facts,
        action=link("/access/removal", broker=row["broker"], key=key),
        button="Remove",
        back=link("/access/account", broker=row["broker"], key=key),
        repeated=key,
        repeated_name="access key",
        is_bad=True,
    ).content()


async def create(form: ChangeForm) -> ChangeDone:
    """Create an account at all brokers of the cluster."""
    visit = form.visit
    choice = await choose_broker(visit)
    key = required(form.fields, "key", "the access key")
    known = await visit.admin.accounts(choice.name)
    if key in {account.access_key for account in known.plain_access_configs}:
        raise UsageError(f"account {key} exists already; open it to change it")
    secret = _secret(form.fields)
    if not secret:
        raise UsageError("the secret key is missing; type it twice")
    await _put(form, key, secret)
    return ChangeDone(url_of("/access", broker=visit.text("broker")), f"account {key} is in force")


async def change(form: ChangeForm) -> ChangeDone:
    """Change the permissions or the secret of an account."""
    row = await _row(form.visit)
    secret = _secret(form.fields)
    await _put(form, row["account"], secret or None)
    session = form.visit.session
    if secret and _is_own(form.visit, row["account"]):
        # This visitor goes on with the new secret; other sessions of the account must log in again.
        session.credentials = Credentials(access_key=row["account"], secret_key=secret)
    words = "has new permissions and a new secret" if secret else "has new permissions"
    return ChangeDone(url_of("/access", broker=row["broker"]), f"account {row['account']} {words}")


async def remove(form: ChangeForm) -> ChangeDone:
    """Remove an account at all brokers of the cluster."""
    visit = form.visit
    key = visit.required("key")
    check_repeated(form.fields, "access key", key)
    await visit.admin.remove_account(key, cluster=visit.settings.cluster)
    return ChangeDone(url_of("/access", broker=visit.text("broker")), f"account {key} is removed")


async def _put(form: ChangeForm, key: str, secret: str | None) -> None:
    fields = form.fields
    await form.visit.admin.put_account(
        key,
        secret,
        admin=bool(fields.get("admin")),
        topics=_permissions(fields, "topics"),
        groups=_permissions(fields, "groups"),
        other_topics=fields.get("other_topics") or None,
        other_groups=fields.get("other_groups") or None,
        unsigned_from=fields.get("unsigned_from", "").strip(),
        cluster=form.visit.settings.cluster,
    )


def _is_own(visit: Visit, key: str) -> bool:
    """Whether an account is the one that the visitor is logged in with."""
    own = visit.session.credentials
    return own is not None and own.access_key == key


def _secret(fields: Mapping[str, str]) -> str:
    """The new secret; empty if the account keeps its own. Errors never contain it."""
    secret, again = fields.get("secret", "").strip(), fields.get("secret_again", "").strip()
    if secret != again:
        raise UsageError("the two secret keys differ; type the same one twice")
    return secret


def _permissions(fields: Mapping[str, str], name: str) -> dict[str, str]:
    """The permissions in a field, one a line, as ``Orders=PUB``; brokers check the words."""
    found: dict[str, str] = {}
    for line in fields.get(name, "").splitlines():
        of, equals, permission = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not of or not equals or not permission or "," in line:
            raise UsageError(f"{name}: write NAME=PERMISSION, as in Orders=PUB, not {line!r}")
        found[of] = permission
    return found


async def _row(visit: Visit) -> dict[str, Any]:
    choice = await choose_broker(visit)
    key = visit.required("key")
    for account in (await visit.admin.accounts(choice.name)).plain_access_configs:
        if account.access_key == key:
            return account_row(choice.name, account)
    raise NotFound(f"broker {choice.name} has no account {key!r}; go back to the list")


def _choices() -> dict[str, Any]:
    return {"topic_permissions": PERMISSIONS, "group_permissions": _GROUP_PERMISSIONS}


PAGES: Final = (
    PageRoute("/access", show_list),
    PageRoute("/access/account", show_account),
    PageRoute("/access/removal", show_removal),
)
CHANGES: Final = (
    ChangeRoute("/access", create, show_list),
    ChangeRoute("/access/account", change, show_account),
    ChangeRoute("/access/removal", remove, show_removal),
)
