"""The console's connections to the cluster: one set for each account that is logged in."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from txmq.client import Admin, Session
from txmq.client.routes import MASTER
from txmq.errors import (
    BrokerRefused,
    ConnectFailed,
    NoPermission,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.protocol.bodies import Heartbeat
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, fields_of
from txmq.protocol.headers import Header
from txmq.runtime.entropy import Entropy
from txmq.security.signatures import Credentials

__all__ = ["ClusterLinks", "ClusterReach", "OperatorSession"]

REACH_S: Final = 3.0
"""A server that takes longer than this to answer counts as unreachable."""


class ClusterReach(NamedTuple):
    """Which servers of a cluster answer this console."""

    has_names: bool
    """Whether a name server answers."""
    known: int | None = None
    """The number of masters that it knows; ``None`` if it requires an account for that."""
    reachable: int = 0
    """How many of them accept a connection."""
    problem: str = ""
    """Why no name server answers."""


OPERATOR: Final = "operator"
"""The field in which requests name a person."""


class OperatorSession(Session):
    """A session without an account, whose requests name a person for the brokers' audit.

    Args:
        names: The name servers.
        operator: The person.

    Raises:
        ConfigError: ``names`` names no server.
    """

    def __init__(self, names: str, operator: str) -> None:
        super().__init__(names)
        self._operator = operator

    async def request(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """See :meth:`txmq.client.Session.request`; servers ignore a field that they do not know."""
        fields = dict(header) if isinstance(header, dict) else fields_of(header) if header else {}
        fields.setdefault(OPERATOR, self._operator)
        return await super().request(address, code, fields, body=body, timeout_s=timeout_s)


class ClusterLinks:
    """Opens connections when a page first needs them, and shares them among its visitors.

    Args:
        names: The name servers.
        entropy: Makes wrong secrets, to test that brokers refuse them.
        operator: The person named in requests without an account.

    Raises:
        ConfigError: ``names`` names no server.
    """

    def __init__(self, names: str, entropy: Entropy, operator: str) -> None:
        self._names = names
        self._entropy = entropy
        self._operator = operator
        self._open: dict[Credentials | None, Session] = {}
        Session(names)  # Checks the addresses now, instead of when the first visitor comes.

    async def admin(self, credentials: Credentials | None) -> Admin:
        """The administrative requests of an account, or of visitors without one."""
        session = self._open.get(credentials)
        if session is None:
            session = self._open[credentials] = (
                OperatorSession(self._names, self._operator)
                if credentials is None
                else Session(self._names, credentials=credentials)
            )
            await session.__aenter__()
        return Admin(session)

    async def keep(self, accounts: set[Credentials | None]) -> None:
        """Close the connections of all other accounts."""
        for credentials in self._open.keys() - accounts:
            await self._open.pop(credentials).__aexit__()

    async def close(self) -> None:
        """Close all connections."""
        await self.keep(set())

    async def serves_unsigned(self) -> bool:
        """Whether the brokers serve this console without an account.

        Raises:
            TransportError: No broker answers.
        """
        async with Session(self._names) as session:
            try:
                return all([await _is_served(session, at) for at in await _masters(session)])
            except NoPermission:  # The name server has accounts.
                return False

    async def reach(self) -> ClusterReach:
        """Which servers answer now; this needs no account."""
        async with Session(self._names) as session:
            try:
                async with asyncio.timeout(REACH_S):
                    brokers = await Admin(session).cluster()
            except BrokerRefused:
                return ClusterReach(has_names=True)
            except (TxmqError, TimeoutError) as error:
                text = str(error).strip() or f"no answer within {REACH_S:g} s"
                return ClusterReach(has_names=False, problem=f"no name server answers: {text}")
            masters = [info.addresses[MASTER] for info in brokers if MASTER in info.addresses]

            async def is_reachable(address: str) -> bool:
                try:
                    async with asyncio.timeout(REACH_S):
                        await session.connection(address)
                except (TxmqError, TimeoutError):
                    return False
                return True

            found = await asyncio.gather(*map(is_reachable, masters))
        return ClusterReach(has_names=True, known=len(masters), reachable=sum(found))

    async def check_account(self, credentials: Credentials) -> None:
        """Check that the secret of an account is right.

        The check signs a heartbeat without groups, which every account may send. A broker without
        accounts, or one that trusts the address of this console, would accept any secret. So
        brokers must also refuse the same heartbeat with a wrong secret.

        Raises:
            NoPermission: A broker refuses the account.
            UsageError: A broker does not check the secret.
            TransportError: No broker answers.
        """
        wrong = Credentials(
            access_key=credentials.access_key, secret_key=self._entropy.token(32).hex()
        )
        async with (
            Session(self._names, credentials=credentials) as right,
            Session(self._names, credentials=wrong) as false,
        ):
            for address in await _masters(right):
                if await _is_served(false, address):
                    raise UsageError(
                        f"the broker at {address} accepts any secret from this console, so a "
                        "log-in would prove nothing; give the broker accounts, and do not let it "
                        "trust the address of the console"
                    )
                if not await _is_served(right, address):
                    raise NoPermission(f"the broker at {address} refuses this account")


async def _masters(session: Session) -> list[str]:
    """The addresses of the masters that answer.

    Raises:
        TransportError: No master answers.
    """
    brokers = await Admin(session).cluster()
    found: list[str] = []
    failed: TransportError | None = None
    for address in [info.addresses[MASTER] for info in brokers if MASTER in info.addresses]:
        try:
            await session.connection(address)
        except TransportError as error:
            failed = error
        else:
            found.append(address)
    if not found:
        raise failed or ConnectFailed("the name server knows no broker that is up")
    return found


async def _is_served(session: Session, address: str) -> bool:
    body = Heartbeat(f"console@{session.ids.next()}", [], []).write()
    try:
        await session.request(address, RequestCode.HEART_BEAT, body=body)
    except NoPermission:
        return False
    return True
