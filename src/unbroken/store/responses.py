"""From errors of an object store's client to errors of the store: one class for each thing to do next.

The client's own text is not passed on: it holds whole requests and answers, and with some credentials
the request's address is a secret. What is kept is the status and the store's own word for the error.
"""

from __future__ import annotations

import os
import re
from shlex import quote
from urllib.parse import urlsplit

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from unbroken.errors import ObjectMissing, StoreDenied, StoreError, StoreFull, StoreUnavailable

_ENDPOINTS = {
    "s3": (
        ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        (
            "AWS_ENDPOINT_URL is not set, so Amazon S3 was asked: set it where the bucket is another service's; else look at"
            " the network, AWS_REGION and AWS_ACCESS_KEY_ID."
        ),
    ),
    "gs": ((), "Google Cloud Storage was asked: look at the network and at GOOGLE_APPLICATION_CREDENTIALS."),
    "az": (
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        (
            "AZURE_STORAGE_ENDPOINT is not set, so Azure was asked: set it where the container is another service's; else look"
            " at the network and at AZURE_STORAGE_ACCOUNT_NAME."
        ),
    ),
}
"""Which variables say at what address a bucket is asked, and what to look at where none does."""

_STATUS = re.compile(r"status code: ([0-9]{3})\b")
_WORD = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_PASSING = frozenset({408, 409, 425, 429})
_DENIED = frozenset({401, 403})
_FULL = frozenset({413, 507})


def word_of(error: Exception) -> str:
    """Return the store's own word for the error (`SignatureDoesNotMatch`), or nothing."""
    found = _WORD.search(str(error))
    return found[1] if found else ""


def refusal(error: Exception, *, doing: str, where: str, key: str) -> StoreError:
    """Return the store's error for `error`, which was met while `doing` something to `key` in `where`."""
    answered, word = _STATUS.search(str(error)), word_of(error)
    status = int(answered[1]) if answered else None
    what = f"{doing.capitalize()} {where}/{key}".rstrip("/")
    said = _said(status, word)
    if word in _NO_BUCKET:
        return StoreError(
            f"{where} cannot be used: there is no such bucket{said}.",
            hint="Create the bucket first, or check the root's spelling.",
            key=key,
        )
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"There is no object {key}.", key=key)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or status in _DENIED:
        return StoreDenied(
            f"{what} is not permitted{said}.",
            hint="Check the credentials in the environment and what they may do in this bucket.",
            key=key,
        )
    if status in _FULL or "Quota" in word:
        return StoreFull(
            f"No room is left for {doing} {where}/{key}{said}.",
            hint=f"Free space (`unbroken prune {quote(where)} --keep-last 1` does), or keep fewer checkpoints (keep_last).",
            key=key,
        )
    if status is not None and status < 500 and status not in _PASSING:
        return StoreError(
            f"{what} was refused{said}.", hint="Check the root, the endpoint and the region.", key=key
        )
    if status is None and "builder error" in str(error):
        return StoreError(
            f"{what} failed: no request could be made.",
            hint="An endpoint without TLS must be allowed: AWS_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true.",
            key=key,
        )
    if status is None:
        return StoreUnavailable(f"{what} failed: the store did not answer.", hint=_whom(where), key=key)
    return StoreUnavailable(f"{what} failed{said}.", key=key)


def _whom(where: str) -> str:
    """Return who was asked, and which variable says so. Of an address only the host: the rest may be a secret."""
    variables, unset = _ENDPOINTS.get(where.partition("://")[0], ((), ""))
    named = next((name for name in variables if os.environ.get(name)), None)
    if named is None:
        return unset
    try:
        address = urlsplit(os.environ[named])
        host = f"{address.scheme}://{address.hostname}{f':{address.port}' if address.port else ''}"
    except ValueError:
        return f"It was asked at what {named} says, which is no address."
    return f"It was asked at {host}, as {named} says: is it up, and is that right?"


def _said(status: int | None, word: str) -> str:
    told = " ".join(part for part in ("" if status is None else str(status), word) if part)
    return f" ({told})" if told else ""
