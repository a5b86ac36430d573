"""`unbroken gym`: sessions of NeMo Gym, in a checkpoint or in servers at work."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from unbroken.cli import gym_servers
from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption, guarded
from unbroken.cli.output import show as print_out
from unbroken.errors import ConfigError
from unbroken.report.quantity import counted, size
from unbroken.report.table import Table

if TYPE_CHECKING:
    from unbroken.adapters.nemo_gym.trainer.remote import Remote

# What reads checkpoints and asks servers is imported by the command that needs it: `unbroken ls` pays for none of it.

RUN = "A run (its newest checkpoint), RUN@STEP, or a step's directory."
WIDTH = 120
DIGITS = 12
"""Of a digest that a person sees."""
_ADDRESS = re.compile(r"https?://\S+|(?:[A-Za-z0-9_.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")

app = typer.Typer(
    help="Sessions of NeMo Gym: in a checkpoint, or in servers at work.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True)
class Held:
    """One session, or one rollout of an agent. `place` is the checkpoint or the address that has it."""

    place: str
    server: str
    session: str
    rollout: str
    attempt: int
    calls: int
    status: str
    last: str
    digest: str
    kind: Literal["session", "rollout"] = "session"


@dataclass(frozen=True, slots=True)
class Written:
    """What was exported. Sizes are in bytes."""

    checkpoint: str
    file: str
    sessions: int
    bytes: int
    media: tuple[str, ...]


def sessions(
    places: Annotated[
        list[str], typer.Argument(help="Runs (RUN, RUN@STEP), or addresses of servers (http://host:port).")
    ],
    digests: Annotated[
        bool, typer.Option("--digests", help="Of servers: compute digests of what they hold now.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """List the sessions of a checkpoint, or those of servers at work; of an agent its rollouts. Nothing is stopped or changed for it.

    Servers take the control token that is derived from your key (UNBROKEN_KEY, or the key of your user).
    """
    from unbroken.report.gym import sessions_table

    found: list[Held] = []
    for place in places:
        found += live(place, digests=digests) if is_address(place) else offline(place)
    rollouts = [of for of in found if of.kind == "rollout"]
    rows = (
        (of.server, of.session, of.rollout or "-", str(of.attempt), str(of.calls), of.status, of.last or "-", of.digest[:DIGITS] or "-")
        for of in found
    )  # fmt: skip
    kinds = {"session": len(found) - len(rollouts), "rollout": len(rollouts)}
    held = " and ".join(counted(number, kind) for kind, number in kinds.items() if number)
    servers = len({(of.place, of.server) for of in found})
    told = f"{held} on {counted(servers, 'server')}"
    parts: list[Table | str] = [sessions_table(rows), "", told] if found else ["No sessions."]
    print_out(*parts, data={"sessions": found}, json=json)
    return EXIT_OK


def show(
    run: Annotated[str, typer.Argument(help=RUN)],
    session: Annotated[str, typer.Argument(help="Its id, the beginning of its id, or its rollout.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Show one session: what its server holds of it, and every call with its result."""
    from unbroken.cli.gym_state import saved, session_named
    from unbroken.report.gym import session_parts

    if is_address(run):
        raise ConfigError(
            f"{run} is a server's address, and what a session holds is shown from a checkpoint.",
            hint=f"What the server has now: unbroken gym sessions {run} --digests",
        )
    name, state = session_named(saved(run).state, session, run=run)
    data = {"session": name, **msgspec.to_builtins(state)}
    print_out(*session_parts(name, state, every=True, width=WIDTH), data=data, json=json)
    return EXIT_OK


def export(
    run: Annotated[str, typer.Argument(help=RUN)] = "",
    out: Annotated[Path | None, typer.Option(help="The file; default: standard output.")] = None,
    media: Annotated[
        Path | None, typer.Option(help="A folder for the images that the document names.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Write nothing: say whether this file is as it was exported.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Write the layered document of a checkpoint (docs/gym-protocol.md) as JSON, with a digest of itself.

    `--check FILE` reads such a file again: exit status 1 if it was changed, or carries no digest.
    """
    from unbroken.cli.gym_export import check_file, text_of, write_file, write_media
    from unbroken.cli.gym_state import saved

    if (check is None) == (not run):
        raise ConfigError(
            "Give either a run to export, or a file to check.",
            hint="Write: unbroken gym export RUN --out FILE, or: unbroken gym export --check FILE",
        )
    if check is not None:
        checked = check_file(check)
        words = (
            checked.problem
            or f"version {checked.version}, {counted(checked.sessions, 'session')}: as exported"
        )
        print_out(f"{check}: {words}", data=checked, json=json)
        return EXIT_NO if checked.problem else EXIT_OK
    found = saved(run)
    text = text_of(found.state)
    if out is not None:
        write_file(out, text, force=force)
    images = () if media is None else tuple(write_media(media, found.payload, found.state))
    if out is None:
        sys.stdout.write(text.decode("utf-8", "replace") + "\n")
        return EXIT_OK
    held = len(found.state.environment.session_states)
    beside = f", {counted(len(images), 'image')} in {media}" if media is not None else ""
    print_out(
        f"{found.place} -> {out} ({counted(held, 'session')}, {size(len(text))}){beside}",
        data=Written(found.place, str(out), held, len(text), images),
        json=json,
    )
    return EXIT_OK


def migrate(
    session: Annotated[str, typer.Argument(help="Its id, the beginning of its id, or its rollout.")],
    source: Annotated[str, typer.Option("--from", help="The address of the server that has it.")],
    target: Annotated[str, typer.Option("--to", help="The address of the server that takes it over.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Move a live session to another process of the same resources server. Its calls wait meanwhile.

    A trainer that is at work stays the servers' coordinator.
    """
    from unbroken.adapters.nemo_gym.trainer import migration

    with closing(remote(source)) as here, closing(remote(target)) as there:
        name = session_at(here, session)
        migration.migrate(here, there, name)
    print_out(
        f"{name}: {here.url} -> {there.url}",
        data={"session": name, "from": here.url, "to": there.url},
        json=json,
    )
    return EXIT_OK


def schema(debug: DebugOption = False) -> int:
    """Print the JSON Schema of the document that `export` writes."""
    from unbroken.adapters.nemo_gym import protocol

    text = msgspec.json.format(msgspec.json.encode(protocol.schema()), indent=2)
    sys.stdout.write(text.decode() + "\n")
    return EXIT_OK


def is_address(text: str) -> bool:
    """Whether a text is a server's address, and no path.

    >>> is_address("http://10.0.0.7:12001"), is_address("10.0.0.7:12001"), is_address("runs/gym@12")
    (True, True, False)
    """
    return bool(_ADDRESS.fullmatch(text)) and not Path(text).exists()


def remote(address: str) -> Remote:
    """Return the server at an address.

    Raises:
        ConfigError: it is no address, the key cannot be used, or httpx is not installed.
    """
    from unbroken.adapters.nemo_gym.keys import control_token
    from unbroken.adapters.nemo_gym.trainer.remote import Remote

    if not is_address(address):
        raise ConfigError(f"{address!r} is no address.", hint="Give one like http://10.0.0.7:12001")
    url = address if "://" in address else f"http://{address}"
    return Remote(url, url, token=control_token())


def session_at(server: Remote, text: str) -> str:
    """Return the id of the session of a server at work that is meant by its id, the beginning of it, or its rollout.

    Raises:
        ConfigError: several are. Where none is, `text` is returned: the server says so.
    """
    from unbroken.cli.gym_state import meant

    held = {one.id: one.rollout for one in server.sessions() if one.status == "open"}
    found = meant(text, held)
    return found[0] if found else text


def offline(run: str) -> Iterable[Held]:
    """Yield the sessions in a checkpoint."""
    from unbroken.cli.gym_state import saved
    from unbroken.report.gym import facts_of

    found = saved(run)
    for session, state in found.state.environment.session_states.items():
        facts, calls = facts_of(state), state.tool_history
        yield Held(
            found.place,
            str(facts["server"]),
            session,
            str(facts["rollout"]),
            int(facts["attempt"]),
            len(calls),
            str(facts["status"]),
            f"/{calls[-1].name}" if calls else "",
            str(facts["digest"]),
        )


def live(address: str, *, digests: bool) -> Iterable[Held]:
    """Yield the sessions of a server at work, or the rollouts of an agent."""
    with closing(remote(address)) as server:
        status = server.status()
        for held in server.digests() if digests else server.sessions():
            rollout = held.rollout or (held.id if status.role == "agent" else "")
            yield Held(
                server.url, status.name, held.id, rollout, held.attempt, held.revision, held.status, held.last, held.digest,
                "rollout" if status.role == "agent" else "session",
            )  # fmt: skip


app.command("sessions")(guarded(sessions))
app.command("show")(guarded(show))
app.command("export")(guarded(export))
app.command("migrate")(guarded(migrate))
app.command("schema")(guarded(schema))
app.command("up")(guarded(gym_servers.up))
app.command("wrap")(guarded(gym_servers.wrap))
app.command("trim")(guarded(gym_servers.trim))
