"""Finds runs in a bucket. There is no directory to walk: every look costs a request, so few are made."""

from __future__ import annotations

from unbroken.errors import ConfigError
from unbroken.format.layout import FORMAT, STEPS
from unbroken.repo import names
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.store.base import exists

SHOWN = 10


def runs_at(url: str) -> list[str]:
    """Return the URL of the run that this is, or of the runs directly below it, sorted.

    Raises:
        ConfigError: it is no URL of a place in a bucket.
        StoreError: the store does not answer, or denies it.
    """
    place = root_of(url)
    above, name = split(place.text)
    if names.is_job(name) and exists(root_of(above).store(name), FORMAT):
        return [place.text]
    return [place.run(job) for job in place.jobs()]


def find_run(url: str) -> str:
    """Return the URL of the run that this is, or of the only run below it.

    Raises:
        ConfigError: there is none, or it is not clear which one is meant.
    """
    found = runs_at(url)
    if not found:
        raise ConfigError(f"{url} holds no run.", hint="Give the root that the training writes to, or a run.")
    if len(found) > 1:
        listed = ", ".join(split(run)[1] for run in found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        raise ConfigError(f"{url} holds {len(found)} runs: {listed}.", hint=f"Name one: {found[0]}")
    return found[0]


def open_run(url: str) -> Repository:
    """Open the run of this URL."""
    above, name = split(url)
    return Repository.open(above, name)


def step_in(url: str) -> tuple[str, str]:
    """Return the URL of the run and `steps/<name>` if this names a step's directory, else nothing."""
    run, found, name = url.rstrip("/").rpartition(f"/{STEPS}/")
    return (run, f"{STEPS}/{name}") if found and "/" not in name else ("", "")


def split(url: str) -> tuple[str, str]:
    """Return the URL above and the last name; no name where only a bucket is given."""
    scheme, _, rest = url.rstrip("/").partition("://")
    above, found, name = rest.rpartition("/")
    return (f"{scheme}://{above}", name) if found else (url, "")
