"""Who may see and change what the brokers do not guard: outboxes and reports.

The console reads them with its own rights, so it asks the brokers who the visitor is.
"""

from __future__ import annotations

from txmq.console.visits import Visit
from txmq.errors import NoPermission, RequestNotSupported

__all__ = ["require_operator"]


async def require_operator(visit: Visit) -> None:
    """Pass if the visitor's account is an administrator of all brokers of the cluster.

    The check is a request that only administrators may send. Visitors without an account pass:
    they use this machine, and no broker has accounts.

    Raises:
        NoPermission: The account is no administrator, or the brokers cannot say so.
        TransportError: A broker does not answer.
    """
    if visit.session.credentials is None:
        return
    try:
        await visit.admin.transactions(limit=1, cluster=visit.settings.cluster)
    except NoPermission as error:
        raise NoPermission(
            f"outboxes and reports are for administrators: {str(error).strip()}"
        ) from error
    except RequestNotSupported as error:
        raise NoPermission(
            "these brokers cannot say whether an account is an administrator, so outboxes and "
            "reports are shown only by a console on loopback without accounts"
        ) from error
