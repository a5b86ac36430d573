"""The sessions of NeMo Gym in a checkpoint, and one session with its calls. Only the sessions that a page shows are decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.protocol import SessionState
from unbroken.adapters.nemo_gym.records import SessionRecord
from unbroken.adapters.nemo_gym.trainer.payload import COMPONENT, read_payload
from unbroken.adapters.nemo_gym.view.sessions import session_state
from unbroken.errors import CorruptObject
from unbroken.format.records import Commit
from unbroken.report.gym import facts_of
from unbroken.state.parts import split_name
from unbroken.ui.app.kept import Kept
from unbroken.ui.app.paging import page_number, paged
from unbroken.ui.app.site import Missing, Opened, Site

SESSIONS = 50
CALLS = 50
"""On a page."""
STATES = 2
"""So many checkpoints' records are kept."""
LONGEST = 4000
"""Letters of an argument or a result that a page shows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One session in the list."""

    server: str
    key: str
    record: SessionRecord

    @property
    def last(self) -> str:
        """The path of its last call."""
        return max(self.record.calls, key=lambda call: call.revision).path if self.record.calls else ""


@dataclass(frozen=True, slots=True)
class Sessions:
    """The records of all sessions of a checkpoint, each undecoded, by server and key in order."""

    servers: tuple[str, ...]
    found: tuple[tuple[str, str, bytes], ...]


def routes(site: Site) -> APIRouter:
    """Return the list of sessions, and the page of one."""
    router = APIRouter()
    states: Kept[Sessions] = Kept(STATES)

    def sessions_of(opened: Opened, commit: Commit) -> Sessions:
        with opened.reading(commit):
            return states.get(
                (opened.run.where, commit.sequence, commit.write_id), lambda: _read(opened, commit)
            )

    @router.get("/runs/{address}/checkpoints/{sequence}/sessions")
    def sessions(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        commit = opened.commit(sequence)
        asked = request.query_params
        words, server, status = asked.get("q", "").strip(), asked.get("server", ""), asked.get("status", "")
        held = sessions_of(opened, commit)
        found = [one for one in held.found if server in ("", one[0])]
        if words or status:
            found = [one for one in found if _fits(one, words, status)]
        page = paged(found, page_number(asked.get("page", "1")), size=SESSIONS, query=asked).mapped(
            lambda one: Line(one[0], one[1], _decoded(*one))
        )
        about = {
            "opened": opened, "commit": commit, "page": page, "servers": held.servers, "all": len(held.found),
            "words": words, "server": server, "status": status, "statuses": ("open", "refused", "retired", "moved"),
        }  # fmt: skip
        return site.page(request, "sessions.html", title=f"Sessions at step {commit.step:,}", about=about)

    @router.get("/runs/{address}/checkpoints/{sequence}/session")
    def session(request: Request, address: str, sequence: int) -> Response:
        opened = site.opened(address)
        commit = opened.commit(sequence)
        asked = request.query_params
        named = asked.get("server", ""), asked.get("key", "")
        known = next((one for one in sessions_of(opened, commit).found if one[:2] == named), None)
        if known is None:
            raise Missing
        record = _decoded(*known)
        state = session_state(known[0], record)
        about = {
            "opened": opened,
            "commit": commit,
            "server": known[0],
            "record": record,
            "state": state,
            "facts": _facts(state),
            "context": text_of(state.context),
            "page": paged(state.tool_history, page_number(asked.get("page", "1")), size=CALLS, query=asked),
            "text_of": text_of,
        }
        return site.page(request, "session.html", title=f"Session {record.id}", about=about)

    return router


def _read(opened: Opened, commit: Commit) -> Sessions:
    """Read the component that holds NeMo Gym.

    Raises:
        Missing: there is none.
        CorruptObject: it cannot be read.
    """
    manifest = opened.repository.manifest(commit)
    names = sorted(entry.component for entry in manifest.documents.values())
    name = next((name for name in names if split_name(name)[0] == COMPONENT), None)
    if name is None:
        raise Missing
    payload = read_payload(opened.repository.load(commit, [name]).components[name])
    servers = {
        server: part.records
        for server, part in sorted(payload.servers.items())
        if part.status.role not in ("agent", "model")
    }
    found = tuple((server, key, held[key]) for server, held in servers.items() for key in sorted(held))
    return Sessions(tuple(servers), found)


def _fits(one: tuple[str, str, bytes], words: str, status: str) -> bool:
    record = _decoded(*one)
    return status in ("", record.status) and words.lower() in f"{record.id} {record.rollout}".lower()


def _decoded(server: str, key: str, data: bytes) -> SessionRecord:
    try:
        return records.session(data)
    except msgspec.DecodeError as error:
        raise CorruptObject(
            f"The record {key} of {server} cannot be read: {error}.", hint="Look at an older checkpoint."
        ) from error


def _facts(state: SessionState) -> Mapping[str, Any]:
    return facts_of(state)


def text_of(value: object) -> str:
    """Return a plain value as text to be read, cut where it is very long."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST:,} more letters)"
