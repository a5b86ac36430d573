"""Decides where each server of a configuration answers: where the configuration says, else where it was before, else anew."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, replace

from unbroken.adapters.nemo_gym.launch.configuration import (
    HEAD,
    HEAD_PORT,
    Instance,
    Plain,
    instances,
    with_addresses,
)
from unbroken.adapters.nemo_gym.launch.record import (
    FIRST_PORT,
    LAST_PORT,
    Record,
    becomes_free,
    free_port,
    is_free,
)
from unbroken.errors import ConfigError

LOW, HIGH = "port_range_low", "port_range_high"
"""NeMo Gym's words for the range that ports are drawn from."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What is to be started, in order, and the configuration with all addresses in it."""

    instances: tuple[Instance, ...]
    config: Plain


def place(
    config: Plain, record: Record, *, head: bool, after_kill: bool, external: Collection[str] = ()
) -> Placed:
    """Give every server of a resolved configuration a port, and keep those that were drawn in `record`.

    Args:
        config: resolved.
        record: of the last start; it is changed, not written.
        head: whether a head server is started as well. Without one, its address is a placeholder that nobody answers at.
        after_kill: the last start was not ended properly, so a former port may be a moment from being free.
        external: servers that somebody else starts, at the address that the configuration gives.

    Raises:
        ConfigError: no server is named, a port that is fixed is taken, or an external server has no address.
        ServerMissing: there is no free port.
    """
    every = instances(config)
    _check_external(every, external)
    found = tuple(one for one in every if one.name not in external)
    elsewhere = {one.port or 0 for one in every if one.name in external}
    entry = config.get(HEAD) or {}
    head_instance = Instance(
        HEAD, HEAD, HEAD, "", host=str(entry.get("host") or "127.0.0.1"), port=entry.get("port")
    )
    if head:  # where the official commands look for it
        record.ports.setdefault(HEAD, HEAD_PORT)
    between = (int(config.get(LOW) or FIRST_PORT), int(config.get(HIGH) or LAST_PORT))
    if between[0] > between[1]:
        raise ConfigError(
            f"{LOW} is {between[0]} and {HIGH} is {between[1]}.", hint="Give the lower one first."
        )
    placed: dict[str, Instance] = {}
    # What the configuration fixes comes first: a port that is drawn must not take it.
    for instance in sorted((*found, head_instance), key=lambda one: one.port is None):
        taken = elsewhere | {one.port or 0 for one in placed.values()}
        if instance.port is None:
            placed[instance.name] = _drawn(instance, record, taken, between=between, after_kill=after_kill)
            continue
        if instance.name != HEAD or head:
            _check_free(instance, taken, after_kill=after_kill)
        placed[instance.name] = instance
    started = tuple(placed[one.name] for one in found)
    if head and entry.get("port") is None and placed[HEAD].port != HEAD_PORT:
        where = placed[HEAD]
        sys.stderr.write(
            f"unbroken: {HEAD} does not have the port {HEAD_PORT}, where the official commands look for it: give them"
            f" ++{HEAD}.host={where.host} ++{HEAD}.port={where.port}\n"
        )
    at = placed[HEAD]
    return Placed(
        (*started, at) if head else started, with_addresses(config, started, head=(at.host, at.port or 0))
    )


def _check_external(every: Collection[Instance], external: Collection[str]) -> None:
    known = {one.name: one for one in every}
    for name in external:
        if name not in known or known[name].port is None:
            what = "is not in the configuration" if name not in known else "has no port there"
            raise ConfigError(
                f"{name}, which somebody else starts, {what}.",
                hint="Give its host and port in the configuration.",
            )


def _drawn(
    instance: Instance, record: Record, taken: Collection[int], *, between: tuple[int, int], after_kill: bool
) -> Instance:
    former = record.ports.get(instance.name)
    port = former
    if port is not None and after_kill:
        becomes_free(instance.host, port)  # the kernel may still be taking its process apart
    if port is None or port in taken or not is_free(instance.host, port):
        port = free_port(instance.host, taken, between=between)
        if former is not None:
            sys.stderr.write(
                f"unbroken: {instance.name}: its port {former} is taken by somebody else; it has {port} now\n"
            )
    record.ports[instance.name] = port
    return replace(instance, port=port)


def _check_free(instance: Instance, taken: Collection[int], *, after_kill: bool) -> None:
    port = instance.port or 0
    if port in taken:
        raise ConfigError(
            f"The port {port} of {instance.name} is that of another server, too.",
            hint="Give it another one.",
        )
    free = becomes_free if after_kill else is_free
    if not free(instance.host, port):
        raise ConfigError(
            f"The port {port} of {instance.name} is taken on {instance.host}.",
            hint="End what listens there, or give another port.",
        )
