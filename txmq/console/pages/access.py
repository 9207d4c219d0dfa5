"""Accounts and their permissions: listed without secrets, created, changed and removed."""

from __future__ import annotations

from typing import Any, Final

from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, choose_broker, list_page
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import BrokerRefused, NoPermission, NotFound, UsageError
from txmq.ops.rows import PERMISSIONS, account_row
from txmq.protocol.operations import Accounts
from txmq.security.signatures import Credentials

__all__ = ["routes"]

routes = Routes()

_PERMISSIONS: Final = {"topic_permissions": PERMISSIONS, "group_permissions": ("SUB", "DENY")}


@routes.page("/access")
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
    return render(
        "access.html",
        title="Access",
        choice=choice,
        page=page,
        rows=[account_row(choice.name, accounts[key]) for key in page.rows],
        trusted=found.global_white_addrs,
        problem_text=problem,
        **_PERMISSIONS,
    )


@routes.page("/access/account")
async def show_account(visit: Visit) -> PageContent:
    """Show one account, and a form that changes it."""
    row = await _row(visit)
    return render("account.html", title="Account", row=row, broker=row["broker"], **_PERMISSIONS)


@routes.page("/access/removal")
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
        sentences=sentences,
        facts=facts,
        action=link("/access/removal", broker=row["broker"], key=key),
        button="Remove",
        back=link("/access/account", broker=row["broker"], key=key),
        repeated=key,
        repeated_name="access key",
        is_bad=True,
    ).content()


@routes.change("/access", show_list)
async def create(visit: Visit) -> ChangeDone:
    """Create an account at all brokers of the cluster."""
    choice = await choose_broker(visit)
    key = visit.filled("key", "the access key")
    known = await visit.admin.accounts(choice.name)
    if key in {account.access_key for account in known.plain_access_configs}:
        raise UsageError(f"account {key} exists already; open it to change it")
    secret = _secret(visit)
    if not secret:
        raise UsageError("the secret key is missing; type it twice")
    await _put(visit, key, secret)
    return ChangeDone(url_of("/access", broker=visit.text("broker")), f"account {key} is in force")


@routes.change("/access/account", show_account)
async def change(visit: Visit) -> ChangeDone:
    """Change the permissions or the secret of an account."""
    row = await _row(visit)
    secret = _secret(visit)
    await _put(visit, row["account"], secret or None)
    if secret and _is_own(visit, row["account"]):
        # This session uses the new secret; other sessions of the account must log in again.
        visit.session.credentials = Credentials(access_key=row["account"], secret_key=secret)
    words = "has new permissions and a new secret" if secret else "has new permissions"
    return ChangeDone(url_of("/access", broker=row["broker"]), f"account {row['account']} {words}")


@routes.change("/access/removal", show_removal)
async def remove(visit: Visit) -> ChangeDone:
    """Remove an account at all brokers of the cluster."""
    key = visit.required("key")
    visit.check_repeated("access key", key)
    await visit.admin.remove_account(key, cluster=visit.cluster)
    return ChangeDone(url_of("/access", broker=visit.text("broker")), f"account {key} is removed")


async def _put(visit: Visit, key: str, secret: str | None) -> None:
    await visit.admin.put_account(
        key,
        secret,
        admin=bool(visit.typed("admin")),
        topics=_permissions(visit, "topics"),
        groups=_permissions(visit, "groups"),
        other_topics=visit.typed("other_topics") or None,
        other_groups=visit.typed("other_groups") or None,
        unsigned_from=visit.typed("unsigned_from").strip(),
        cluster=visit.cluster,
    )


def _is_own(visit: Visit, key: str) -> bool:
    """Whether an account is the one that the visitor is logged in with."""
    own = visit.session.credentials
    return own is not None and own.access_key == key


def _secret(visit: Visit) -> str:
    """The new secret; empty if the account keeps its own. Errors never contain it."""
    secret, again = visit.typed("secret").strip(), visit.typed("secret_again").strip()
    if secret != again:
        raise UsageError("the two secret keys differ; type the same one twice")
    return secret


def _permissions(visit: Visit, name: str) -> dict[str, str]:
    """The permissions in a field, one per line, as ``Orders=PUB``; brokers check the words."""
    found: dict[str, str] = {}
    for line in visit.typed(name).splitlines():
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
