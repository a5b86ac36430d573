"""A server of NeMo Gym as its coordinator sees it: one method for each operation of the control protocol.

Blocking, and may be called from several threads. What a server will not do is an error of ours: no answer in time is
`ServerMissing`, another coordinator `Fenced`, another token `ConfigError`, another protocol `UnsupportedFormat`.

Not promised: that an operation whose answer did not come was not done; nor that one which is given up ends on the
second: an answer that drips is left at the first piece that comes after the time is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.trainer.payload import check_protocol
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnbrokenError, UnsupportedFormat, installing

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T", bound=msgspec.Struct)
_LIKE = 'Give one like "http://10.0.0.7:12001".'
GLOBAL_CONFIG = "/global_config_dict_yaml"
"""Where NeMo Gym's head server gives the configuration that all its servers have."""


def http() -> ModuleType:
    """Return httpx.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise ConfigError(
            "Talking to servers of NeMo Gym needs httpx.",
            hint=installing("httpx"),
        ) from error
    logging.getLogger("httpx").addFilter(_not_ours)
    return httpx


_ours = threading.local()


def _not_ours(_: logging.LogRecord) -> bool:
    return not getattr(_ours, "asking", False)


@contextmanager
def unlogged() -> Generator[None]:
    """Keep httpx from reporting the requests of the block: it has a line for each, and Ray shows them all."""
    _ours.asking = True
    try:
        yield
    finally:
        _ours.asking = False


class Declined(ServerMissing):
    """A server answered that it will not do it. `kind` and `names` are those of its refusal."""

    def __init__(self, server: str, refusal: control.Refusal) -> None:
        super().__init__(f"{server}: {refusal.error}", hint="Look at that server.", servers=[server])
        self.kind = refusal.kind
        self.names = refusal.names


class Remote:
    """One server. `timeout` is what an operation may take, in seconds, where it is given no other."""

    def __init__(self, name: str, url: str, *, token: str, timeout: float = 30.0) -> None:
        library = http()
        self.name = name
        self.url = url.rstrip("/")
        self.epoch = 0
        """What `adopt` gave; 0 before it."""
        self._timeout = timeout
        self._token = token
        try:
            # No proxies: they are for the world outside, and servers of one run talk to each other.
            # No connection twice: one that a server has closed meanwhile would look like one that is gone.
            limits = library.Limits(max_keepalive_connections=0)
            self._client: httpx.Client = library.Client(timeout=timeout, trust_env=False, limits=limits)
            valid = library.URL(self.url).scheme in ("http", "https")
        except (library.InvalidURL, TypeError) as error:
            raise ConfigError(f"{url!r} is no address of the server {name}: {error}.", hint=_LIKE) from error
        if not valid:
            raise ConfigError(f"{url!r} is no address of the server {name}.", hint=_LIKE)

    def status(self, *, timeout: float | None = None) -> control.Status:
        """Ask how the server is. Raises UnsupportedFormat where it speaks another major version."""
        found = self._ask("status", control.Nothing(), control.Status, timeout=timeout)
        check_protocol(found.protocol, f"The server {self.name}")
        return found

    def adopt(self, run: str) -> int:
        """Become its coordinator; whoever was it before is fenced."""
        self.epoch = self._ask("adopt", control.Adopt(run=run), control.Epoch).epoch
        return self.epoch

    def quiesce(self, *, timeout: float, wait: float | None = None) -> None:
        """Let nothing in (an agent: out) any more, and wait until nothing is under way, `timeout` seconds at most."""
        self._ask("quiesce", control.Quiesce(timeout=timeout), control.Nothing, timeout=wait or timeout + 5)

    def export(self, *, lineage: str = "", mark: int = 0, timeout: float | None = None) -> control.Exported:
        """Return what has changed since `mark` of `lineage`."""
        return self._ask(
            "export", control.Export(lineage=lineage, mark=mark), control.Exported, timeout=timeout
        )

    def release(self, *, timeout: float | None = None) -> None:
        """Open the server, whatever it was."""
        self._ask("release", control.Nothing(), control.Nothing, timeout=timeout)

    def committed(self, mark: int) -> None:
        """Tell that what was exported up to `mark` is in a durable checkpoint."""
        self._ask("committed", control.Committed(mark=mark), control.Nothing)

    def prepare(
        self,
        records: Mapping[str, bytes],
        *,
        shared: bytes = b"",
        media: Mapping[str, bytes] | None = None,
        config_hash: str = "",
        timeout: float | None = None,
    ) -> control.Prepared:
        """Have records read and judged; nothing is touched."""
        given = control.Prepare(
            records=[control.Record(key=key, data=data) for key, data in records.items()],
            shared=shared,
            media=dict(media or {}),
            config_hash=config_hash,
        )
        return self._ask("prepare", given, control.Prepared, timeout=timeout)

    def activate(self, *, timeout: float | None = None) -> control.Recovery:
        """Put what was prepared in the place of all that the server has."""
        return self._ask("activate", control.Activate(), control.Recovery, timeout=timeout)

    def drop(self, rollouts: Iterable[str]) -> None:
        """Have nothing kept of these rollouts."""
        self._ask("drop", control.Drop(rollouts=list(rollouts)), control.Nothing)

    def sessions(self) -> Sequence[control.SessionSummary]:
        """Return the sessions, or an agent's rollouts."""
        return self._ask("sessions", control.Nothing(), control.Sessions).sessions

    def digests(self) -> Sequence[control.SessionSummary]:
        """Return them with the digests of their live state."""
        return self._ask("digests", control.Nothing(), control.Sessions).sessions

    def surrender(self, session: str, *, to: str) -> control.Record:
        """Have a session given away to the server at the address `to`."""
        return self._ask("surrender", control.Surrender(session=session, to=to), control.Record)

    def receive(self, record: bytes, *, media: Mapping[str, bytes] | None = None) -> None:
        """Have a session taken over."""
        self._ask("receive", control.Receive(record=record, media=dict(media or {})), control.Nothing)

    def settle(self, session: str, *, moved: bool) -> None:
        """Tell whether a session that was surrendered lives elsewhere now."""
        self._ask("settle", control.Settle(session=session, moved=moved), control.Nothing)

    def policy(self, version: str) -> None:
        """Tell a model server the version of its policy."""
        self._ask("policy", control.Policy(version=version), control.Nothing)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(
        self, operation: str, arguments: msgspec.Struct, answers: type[_T], *, timeout: float | None = None
    ) -> _T:
        library = http()
        headers = {words.CONTROL: self._token, "content-type": "application/msgpack"}
        if operation not in control.FREE:
            headers[words.EPOCH] = str(self.epoch)
        within = self._timeout if timeout is None else timeout
        try:
            with unlogged():
                reply = self._posted(operation, msgspec.msgpack.encode(arguments), headers, within)
        except library.TimeoutException as error:
            raise self._missing(operation, "in time") from error
        except library.TransportError as error:
            raise self._missing(operation, f"at {self.url} ({type(error).__name__}: {error})") from error
        if words.REFUSED in reply.headers:
            raise self._refused(operation, reply)
        if reply.status_code in (502, 503, 504):
            raise self._missing(operation, f"at {self.url} (HTTP {reply.status_code})")
        if reply.status_code == 500:
            said = f"{operation} broke there (HTTP 500): {reply.text[:200].strip() or 'no text'}"
            raise Declined(self.name, control.Refusal(kind="other", error=said))
        if reply.status_code != 200 or "msgpack" not in reply.headers.get("content-type", ""):
            if self._is_head():
                raise ConfigError(
                    f"{self.name} at {self.url} is NeMo Gym's head server, which only knows where the others are.",
                    hint="Use Gym.from_head(address), or give the addresses of the servers themselves.",
                )
            raise ConfigError(
                f"The server {self.name} at {self.url} is one of NeMo Gym that keeps no checkpoints.",
                hint="Wrap its class with unbroken.nemo_gym.checkpointed() where it is started.",
            )
        try:
            return msgspec.msgpack.decode(reply.content, type=answers)
        except msgspec.DecodeError as error:
            raise UnsupportedFormat(
                f"The server {self.name} answered {operation} in words that this Unbroken does not know: {error}.",
                hint="Use the same Unbroken on both sides.",
            ) from error

    def _is_head(self) -> bool:
        """Whether the head server answers here, and none of those that it knows of."""
        try:
            with unlogged():
                reply = self._client.get(f"{self.url}{GLOBAL_CONFIG}", timeout=self._timeout)
        except http().TransportError:
            return False
        return bool(reply.status_code == 200)

    def _posted(
        self, operation: str, content: bytes, headers: Mapping[str, str], within: float
    ) -> httpx.Response:
        """Return the whole answer. httpx bounds each read of it, which an answer in small pieces would stretch for ever."""
        deadline = time.monotonic() + within
        url = f"{self.url}{words.PREFIX}{operation}"
        with self._client.stream("POST", url, content=content, headers=headers, timeout=within) as reply:
            pieces: list[bytes] = []
            for piece in reply.iter_bytes():
                pieces.append(piece)
                if time.monotonic() > deadline:
                    raise self._missing(operation, "in time")
        library = http()
        whole: httpx.Response = library.Response(
            reply.status_code, headers=_undecoded(reply.headers), content=b"".join(pieces)
        )
        return whole

    def _missing(self, operation: str, how: str) -> ServerMissing:
        return ServerMissing(
            f"The server {self.name} did not answer {operation!r} {how}.", servers=[self.name]
        )

    def _refused(self, operation: str, reply: httpx.Response) -> UnbrokenError:
        try:
            refusal = msgspec.msgpack.decode(reply.content, type=control.Refusal)
        except msgspec.DecodeError:
            refusal = control.Refusal(kind="other", error=f"{operation} was refused: {reply.text[:200]}")
        said = f"{self.name}: {refusal.error}"
        if refusal.kind == "token":
            return ConfigError(said, hint="Then start again.")
        if refusal.kind == "fenced":
            return Fenced(said)
        if refusal.kind == "format":
            return UnsupportedFormat(said, hint="Use the same Unbroken on both sides.")
        return Declined(self.name, refusal)


def _undecoded(headers: httpx.Headers) -> list[tuple[str, str]]:
    """Return the headers of an answer that was decoded already."""
    return [
        (k, v) for k, v in headers.multi_items() if k.lower() not in {"content-encoding", "transfer-encoding"}
    ]
