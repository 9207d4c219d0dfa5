"""The coordinator in etcd, over the JSON gateway of its v3 API.

A set has two keys. ``state`` is permanent, and holds the epoch and the in-sync set. ``leader`` is
bound to the lease of its writer, so etcd deletes it when the lease ends. Each change is one
transaction that compares the revision of ``state`` with the one that the member has seen. Each loss
that an operator accepted is also kept below ``losses``, and each other act of an operator below
``acts``.

The end of the acknowledged log is kept in another folder, so that updates of it wake no watcher.
The same folder has a key with a lease for each member that stands for election.

Each request opens a connection and uses HTTP/1.0: the answer ends when etcd closes the connection,
so there is no framing to parse. A member sends a request only every second or two.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from txmq.errors import ConfigError, ConnectFailed, ConnectionLost, RequestTimeout
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.coordinator import (
    AllowedLoss,
    Leader,
    Leadership,
    LogEnd,
    SetAct,
    Standing,
    View,
    known_members,
    short_name,
)
from txmq.security.tls import ClientContext, ClientTls, reason_of
from txmq_broker.config import etcd_address

__all__ = ["ETCD_VARIABLES", "EtcdCoordinator", "EtcdUser", "etcd_coordinator"]

T = TypeVar("T")

_PREFIX: Final = "/txmq/sets"
_ENDS: Final = "/txmq/ends"
_HEADERS_BYTES_MAX: Final = 64 * 1024
_WATCH_S: Final = 5.0
_TRIES_PER_LEASE: Final = 4
_QUOTED: Final = 100
_IN_ANSWERS: Final = {"header", "result"}
_NO_TOKEN: Final = (
    "etcdserver: user name is empty",
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
)
"""How etcd answers a request without a token, or with one that has expired."""
_NO_USERS: Final = "etcdserver: authentication is not enabled"
_HINTS: Final = {
    "etcdserver: permission denied": "the user needs readwrite permission for the prefix /txmq/",
    "CommonName of client": "an etcd with users takes only client certificates without one",
}
"""What to do about a refusal, by the beginning of its text."""


class EtcdUser(NamedTuple):
    """A user of etcd."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"EtcdUser(name={self.name!r}, password=***)"


class NotAuthenticated(ConnectionLost):
    """etcd rejected a request without a valid token; nothing was changed."""


class SetState(msgspec.Struct, frozen=True):
    """The value of the key ``state``."""

    epoch: int = 0
    in_sync: tuple[str, ...] = ()
    loss: AllowedLoss | None = None
    members: tuple[str, ...] = ()
    removed: tuple[SetAct, ...] = ()
    hand_over: SetAct | None = None

    def seen_by(self, leader: Leader | None, version: int) -> View:
        """The state of the set."""
        return View(
            leader,
            self.epoch,
            self.in_sync,
            version,
            self.loss,
            self.members,
            self.removed,
            self.hand_over,
        )


class EtcdCoordinator:
    """One member's access to etcd.

    Args:
        endpoints: The addresses of the etcd members, as host and port. One is used until it
            fails; then the next request starts with another one.
        name: The name of the set.
        clock: For leases.
        timeout: The timeout of a request to one endpoint, in seconds.
        tls: The TLS files; without them, connections are not encrypted.
        user: The user of etcd; without one, requests carry no token.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, int]],
        name: str,
        *,
        clock: Clock | None = None,
        timeout: float = 2.0,
        tls: EtcdCertificates | None = None,
        user: EtcdUser | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._clock: Clock = clock or SystemClock()
        self._timeout = timeout
        self._tls = tls
        self._user = user
        self._token: str | None = None if user is not None else ""
        """Sent with each request; ``None`` if a new one must be requested first."""
        self._folder = f"{_PREFIX}/{name}/"
        self._state_key = _text(f"{self._folder}state")
        self._leader_key = _text(f"{self._folder}leader")
        self._ends = f"{_ENDS}/{name}/"
        self._acknowledged_key = _text(f"{self._ends}acknowledged")

    async def view(self) -> View:
        """See :meth:`SetCoordinator.view`."""
        return (await self._read())[0]

    async def lead(
        self, leader: Leader, seen: View, lease_s: int, end: LogEnd
    ) -> Leadership | None:
        """See :meth:`SetCoordinator.lead`."""
        asked = self._clock.monotonic()
        lease, lease_s = await self._grant(lease_s)
        in_sync = seen.in_sync or (leader.member,)
        members = known_members(seen.members, in_sync)
        state = SetState(seen.epoch + 1, in_sync, members=members, removed=seen.removed)
        puts = [
            self._put_state(state),
            _put(self._leader_key, msgspec.json.encode(leader), lease),
        ]
        if seen.loss is not None:
            puts.append(self._put_acknowledged(end))
        if not await self._commit([self._is_seen(seen), self._nobody_leads()], puts):
            await self._call("/v3/lease/revoke", {"ID": lease})
            return None
        return Leadership(leader, state.epoch, lease, lease_s, asked + lease_s)

    async def renew(self, leadership: Leadership) -> Leadership | None:
        """See :meth:`SetCoordinator.renew`."""
        asked = self._clock.monotonic()
        # If one endpoint hangs, this leaves time to ask the next one before the lease ends.
        within_s = min(self._timeout, leadership.lease_s / _TRIES_PER_LEASE)
        body = {"ID": leadership.lease}
        answer = await self._call("/v3/lease/keepalive", body, within_s=within_s)
        left = int(answer.get("result", {}).get("TTL", 0))
        return leadership._replace(certain_until=asked + left) if left > 0 else None

    async def resign(self, leadership: Leadership) -> None:
        """See :meth:`SetCoordinator.resign`."""
        await self._call("/v3/lease/revoke", {"ID": leadership.lease}, refused=True)

    async def change(
        self,
        leadership: Leadership,
        seen: View,
        wanted: View,
        act: SetAct | None = None,
        acknowledged: LogEnd | None = None,
    ) -> View | None:
        """See :meth:`SetCoordinator.change`."""
        state = SetState(
            leadership.epoch,
            tuple(sorted(wanted.in_sync)),
            members=known_members(wanted.members, wanted.in_sync),
            removed=wanted.removed,
            hand_over=wanted.hand_over,
        )
        puts = [self._put_state(state)]
        if act is not None:
            puts.append(self._put_for_good("acts", seen, act))
        if acknowledged is not None:
            puts.append(self._put_acknowledged(acknowledged))
        version = await self._commit([self._is_seen(seen), self._leads(leadership)], puts)
        return state.seen_by(leadership.leader, version) if version else None

    async def acknowledge(self, leadership: Leadership, end: LogEnd) -> None:
        """See :meth:`SetCoordinator.acknowledge`."""
        await self._commit([self._leads(leadership)], [self._put_acknowledged(end)])

    async def acknowledged(self) -> LogEnd | None:
        """See :meth:`SetCoordinator.acknowledged`."""
        answer = await self._call("/v3/kv/range", {"key": self._acknowledged_key})
        found = answer.get("kvs", [])
        return _value(found[0], LogEnd) if found else None

    async def stand(self, member: str, standing: Standing, epoch: int, for_s: int) -> None:
        """See :meth:`SetCoordinator.stand`."""
        lease, _ = await self._grant(for_s)
        key = _text(self._standing(epoch) + member)
        await self._commit([], [_put(key, msgspec.json.encode(standing), lease)])

    async def standing(self, epoch: int) -> dict[str, Standing]:
        """See :meth:`SetCoordinator.standing`."""
        folder = self._standing(epoch)
        answer = await self._call("/v3/kv/range", _all_below(folder))
        return {
            _plain(found["key"]).removeprefix(folder): _value(found, Standing)
            for found in answer.get("kvs", [])
        }

    def _standing(self, epoch: int) -> str:
        """The folder of the members that stand after an epoch."""
        return f"{self._ends}standing/{epoch}/"

    async def allow_loss(self, seen: View, loss: AllowedLoss) -> View | None:
        """See :meth:`SetCoordinator.allow_loss`."""
        name = short_name(loss.member)
        removed = tuple(act for act in seen.removed if act.member != name)
        members = known_members(seen.members, (loss.member,))
        state = SetState(seen.epoch, (loss.member,), loss, members, removed)
        puts = [self._put_state(state), self._put_for_good("losses", seen, loss)]
        version = await self._commit([self._is_seen(seen), self._nobody_leads()], puts)
        return state.seen_by(None, version) if version else None

    async def changed(self, seen: View) -> View:
        """See :meth:`SetCoordinator.changed`."""
        found, revision = await self._read()
        if found != seen:
            return found
        wanted = _all_below(self._folder) | {"start_revision": revision + 1}
        while found == seen:
            # The preceding read has renewed the token.
            watch = self._answering("/v3/watch", {"create_request": wanted}, self._timeout)
            async with watch as (reader, _):
                # A connection may break silently, so the state is read again after a few seconds.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WATCH_S):
                        await _event(reader)
            found, revision = await self._read()
            wanted["start_revision"] = revision + 1
        return found

    # Keys

    async def _read(self) -> tuple[View, int]:
        """The state, and etcd's revision. Reads are safe to repeat, so each endpoint is tried."""
        for _ in self._endpoints[1:]:
            with suppress(ConnectionLost, RequestTimeout):
                return await self._read_once()
        return await self._read_once()

    async def _read_once(self) -> tuple[View, int]:
        get = [{"request_range": {"key": key}} for key in (self._state_key, self._leader_key)]
        answer = await self._call("/v3/kv/txn", {"success": get})
        stored, leading = (part["response_range"].get("kvs", []) for part in answer["responses"])
        state, version, leader = SetState(), 0, None
        if stored:
            state = _value(stored[0], SetState)
            version = int(stored[0]["mod_revision"])
        if leading:
            leader = _value(leading[0], Leader)
        return state.seen_by(leader, version), int(answer["header"]["revision"])

    def _is_seen(self, seen: View) -> dict[str, Any]:
        return _compare("MOD", self._state_key, "mod_revision", seen.version)

    def _nobody_leads(self) -> dict[str, Any]:
        # A key that does not exist has create revision 0.
        return _compare("CREATE", self._leader_key, "create_revision", 0)

    def _leads(self, leadership: Leadership) -> dict[str, Any]:
        return _compare("LEASE", self._leader_key, "lease", leadership.lease)

    def _put_acknowledged(self, end: LogEnd) -> dict[str, Any]:
        return _put(self._acknowledged_key, msgspec.json.encode(end))

    def _put_state(self, state: SetState) -> dict[str, Any]:
        return _put(self._state_key, msgspec.json.encode(state))

    def _put_for_good(self, folder: str, seen: View, decision: SetAct | AllowedLoss) -> Any:
        # An object with field names, because people read it in etcd.
        value = msgspec.json.encode(decision._asdict())
        return _put(_text(f"{self._folder}{folder}/{seen.version}"), value)

    async def _grant(self, lease_s: int) -> tuple[int, int]:
        """A new lease, and the seconds that etcd gives it."""
        granted = await self._call("/v3/lease/grant", {"TTL": lease_s})
        return int(granted["ID"]), int(granted["TTL"])

    async def _commit(self, compare: list[dict[str, Any]], puts: list[dict[str, Any]]) -> int:
        """The revision of a transaction, or 0 if a comparison failed."""
        answer = await self._call("/v3/kv/txn", {"compare": compare, "success": puts})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    # Requests

    async def _call(
        self,
        path: str,
        body: dict[str, Any],
        *,
        refused: bool = False,
        within_s: float | None = None,
    ) -> dict[str, Any]:
        within_s = within_s or self._timeout
        if self._token is None:
            await self._authenticate(within_s)
        try:
            return await self._call_once(path, body, within_s, refused=refused)
        except NotAuthenticated:
            if self._user is None:
                raise
        # The token has expired, or authentication was enabled in etcd just now.
        await self._authenticate(within_s)
        return await self._call_once(path, body, within_s, refused=refused)

    async def _authenticate(self, within_s: float) -> None:
        """Ask for a token.

        Raises:
            ConnectionLost: etcd refuses the user, or the connection broke.
        """
        assert self._user is not None, "without a user there is always a token"
        self._token = ""
        named = {"name": self._user.name, "password": self._user.password}
        path = "/v3/auth/authenticate"
        answer = await self._call_once(path, named, within_s, refused=True)
        if "token" in answer:
            self._token = str(answer["token"])
        elif (reason := _message_of(answer)) != _NO_USERS:
            self._token = None
            raise ConnectionLost(
                f"etcd refused the user {self._user.name!r}: {reason}; look at TXMQ_ETCD_USER and "
                "TXMQ_ETCD_PASSWORD"
            )

    async def _call_once(
        self, path: str, body: dict[str, Any], within_s: float, *, refused: bool
    ) -> dict[str, Any]:
        request = self._answering(path, body, within_s, refused=refused)
        async with request as (reader, address):
            async with asyncio.timeout(within_s):
                data = await reader.read()
            try:
                answer: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
            except msgspec.DecodeError as error:
                if refused and (reason := _reason(data)):
                    refusal = f"{address} refused {path}: {_explained(reason)}"
                    raise ConnectionLost(refusal) from error
                raise ConnectionLost(f"{address} does not answer as etcd does: {path}") from error
            if (message := _message_of(answer)) in _NO_TOKEN:
                raise _no_token(address, message)
            if not refused and not answer.keys() & _IN_ANSWERS:
                raise ConnectionLost(f"{address} does not answer as etcd does: {path}")
        return answer

    @asynccontextmanager
    async def _answering(
        self, path: str, body: dict[str, Any], within_s: float, *, refused: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, str]]:
        """Send a request, and yield its answer's body; with ``refused``, also a refusal's body."""
        reader, writer, address = await self._open(within_s)
        try:
            async with asyncio.timeout(within_s):
                _send(writer, address, path, body, self._token or "")
                await _read_head(reader, address, path, refused=refused)
            yield reader, address
        except TimeoutError as error:
            self._leave(address)
            raise RequestTimeout(
                f"etcd at {address} did not answer within {within_s:g} s"
            ) from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self._leave(address)
            why = self._why_tls(error) or str(error)
            raise ConnectionLost(f"the connection to etcd at {address} broke: {why}") from error
        except NotAuthenticated:
            raise
        except ConnectionLost:
            self._leave(address)
            raise
        finally:
            writer.close()

    async def _open(
        self, within_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        failures: list[str] = []
        for host, port in list(self._endpoints):
            address = f"{host}:{port}"
            try:
                async with asyncio.timeout(within_s):
                    reader, writer = await self._connect(host, port)
            except OSError as error:
                failures.append(f"{address}: {self._why_tls(error) or _why(error)}")
                self._leave(address)
                continue
            return reader, writer, address
        raise ConnectFailed(f"no etcd can be reached ({'; '.join(failures)})")

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tls is None:
            return await asyncio.open_connection(host, port, limit=_HEADERS_BYTES_MAX)
        return await asyncio.open_connection(
            host,
            port,
            limit=_HEADERS_BYTES_MAX,
            ssl=self._tls.context(),
            server_hostname=host,
            ssl_shutdown_timeout=self._timeout,
        )

    def _why_tls(self, error: Exception) -> str:
        if self._tls is None:
            return ""
        if isinstance(error, ssl.SSLError):
            return self._tls.reason_of(error)
        # An etcd without TLS answers the handshake in plain text, resets the connection, or is
        # silent.
        is_cut = isinstance(error, ConnectionResetError) or not str(error)
        return "no answer with TLS" if is_cut else ""

    def _leave(self, address: str) -> None:
        """Start the next request at another endpoint."""
        host, port = self._endpoints[0]
        if address == f"{host}:{port}":
            self._endpoints.append(self._endpoints.pop(0))


def _send(
    writer: asyncio.StreamWriter, address: str, path: str, body: dict[str, Any], token: str
) -> None:
    data = msgspec.json.encode(body)
    head = [
        f"POST {path} HTTP/1.0",
        f"Host: {address}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    if token:
        head.append(f"Authorization: {token}")
    writer.write("\r\n".join([*head, "", ""]).encode() + data)


async def _read_head(
    reader: asyncio.StreamReader, address: str, path: str, *, refused: bool
) -> None:
    """Read the status of an answer and its headers.

    Raises:
        ConnectionLost: The answer is not from etcd, or refuses the request.
    """
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        line = error.partial
        if not line:
            raise ConnectionLost(
                f"{address} closed the connection without an answer; if it is an etcd with TLS, "
                "write etcds://"
            ) from error
    except asyncio.LimitOverrunError:
        line = b""
    if not line.startswith(b"HTTP/"):
        raise ConnectionLost(f"{address} does not answer with HTTP, so it is not etcd")
    while (await reader.readuntil(b"\n")).strip():
        pass
    status = line.decode(errors="replace").split(maxsplit=2)[1:2]
    if status != ["200"] and not refused:
        reason = _reason(await reader.read(_HEADERS_BYTES_MAX))
        if reason in _NO_TOKEN:
            raise _no_token(address, reason)
        raise ConnectionLost(f"{address} refused {path}: {' '.join(status)}, {_explained(reason)}")


def _no_token(address: str, reason: str) -> NotAuthenticated:
    return NotAuthenticated(
        f"etcd at {address} has users ({reason}); set TXMQ_ETCD_USER and TXMQ_ETCD_PASSWORD"
    )


async def _event(reader: asyncio.StreamReader) -> None:
    while line := await reader.readline():
        result = msgspec.json.decode(line).get("result", {})
        if "events" in result:
            return
        if result.get("canceled"):
            raise ConnectionLost(f"etcd ended the watch: {result.get('cancel_reason', '')}")
    raise ConnectionLost("etcd ended the watch")


def _why(error: OSError) -> str:
    """Why a connection failed, in the system's words."""
    if error.errno is None:
        return str(error) or "no answer"
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)


def _message_of(answer: dict[str, Any]) -> str:
    """The message in a refusal, or in an answer that ends with one; empty without a refusal."""
    error = answer.get("error")
    return str(error.get("message", "") if isinstance(error, dict) else answer.get("message", ""))


def _reason(body: bytes) -> str:
    """The message in an answer of etcd, or the first words of any other body."""
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any])["message"])
    except (msgspec.DecodeError, KeyError):
        return body[:_QUOTED].decode(errors="replace").partition("\n")[0].strip()


def _explained(reason: str) -> str:
    hints = [hint for text, hint in _HINTS.items() if reason.startswith(text)]
    return "; ".join([reason, *hints])


def _value(pair: dict[str, str], kind: type[T]) -> T:
    """The value of a key of a set.

    Raises:
        ConnectionLost: Another program wrote it.
    """
    try:
        return msgspec.json.decode(base64.b64decode(pair["value"]), type=kind)
    except msgspec.DecodeError as error:
        key = _plain(pair["key"])
        raise ConnectionLost(f"{key} in etcd is not what members write: {error}") from error


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(text: str) -> str:
    return base64.b64decode(text).decode()


def _all_below(folder: str) -> dict[str, Any]:
    """The range of the keys in a folder, which ends with a slash."""
    return {"key": _text(folder), "range_end": _text(folder[:-1] + chr(ord(folder[-1]) + 1))}


def _compare(target: str, key: str, field: str, value: int) -> dict[str, Any]:
    return {"target": target, "key": key, field: value, "result": "EQUAL"}


def _put(key: str, value: bytes, lease: int = 0) -> dict[str, Any]:
    return {"request_put": {"key": key, "value": base64.b64encode(value).decode(), "lease": lease}}


_VARIABLES: Final = "TXMQ_ETCD"
_CA: Final = f"{_VARIABLES}_CA"
_CERTIFICATE: Final = f"{_VARIABLES}_CERTIFICATE"
_KEY: Final = f"{_VARIABLES}_KEY"
_USER: Final = f"{_VARIABLES}_USER"
_PASSWORD: Final = f"{_VARIABLES}_PASSWORD"
ETCD_VARIABLES: Final = (_CA, _CERTIFICATE, _KEY, _USER, _PASSWORD)


class EtcdCertificates:
    """The TLS files for etcd; changes take effect with the next connection."""

    def __init__(self, settings: ClientTls) -> None:
        self._files = ClientContext(settings)
        self._has_certificate = settings.certificate is not None

    def context(self) -> ssl.SSLContext:
        """The context of the next connection."""
        self._files.refresh()
        return self._files.value

    def reason_of(self, error: ssl.SSLError) -> str:
        """Why a connection failed, and how to fix that."""
        if error.reason == "SSLV3_ALERT_BAD_CERTIFICATE" and not self._has_certificate:
            return f"etcd requires a certificate of its clients; set {_CERTIFICATE} and {_KEY}"
        return reason_of(error, _VARIABLES)


def etcd_coordinator(
    address: str, cluster: str, name: str, environ: Mapping[str, str] = os.environ
) -> EtcdCoordinator:
    """The access to the state of a broker set.

    Args:
        address: The address of etcd.
        cluster: The cluster of the set.
        name: The name of the set.
        environ: The environment variables, which name the TLS files and the user.

    Raises:
        ConfigError: The address or a variable is invalid, or a file cannot be used.
    """
    found = etcd_address(address)
    tls = _tls(environ, is_encrypted=found.is_encrypted)
    return EtcdCoordinator(found.endpoints, f"{cluster}/{name}", tls=tls, user=_user(environ))


def _tls(environ: Mapping[str, str], *, is_encrypted: bool) -> EtcdCertificates | None:
    names = (_CA, _CERTIFICATE, _KEY)
    ca, certificate, key = (Path(environ[name]) if environ.get(name) else None for name in names)
    if not is_encrypted:
        if given := [name for name in names if environ.get(name)]:
            raise ConfigError(
                f"{given[0]} is set, and the coordinator's address begins with etcd://, which is "
                "without TLS; write etcds://"
            )
        return None
    if (certificate is None) != (key is None):
        there, missing = (_CERTIFICATE, _KEY) if key is None else (_KEY, _CERTIFICATE)
        raise ConfigError(f"{there} is set and {missing} is not; set both or neither")
    return EtcdCertificates(ClientTls(ca=ca, certificate=certificate, key=key))


def _user(environ: Mapping[str, str]) -> EtcdUser | None:
    name, password = environ.get(_USER), environ.get(_PASSWORD)
    if bool(name) != bool(password):
        there, missing = (_USER, _PASSWORD) if name else (_PASSWORD, _USER)
        raise ConfigError(f"{there} is set and {missing} is not; set both or neither")
    return EtcdUser(name, password) if name and password else None
