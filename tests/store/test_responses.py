"""The client's errors, in its own texts, and what they mean here."""

from __future__ import annotations

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, UnauthenticatedError

from unbroken.errors import ObjectMissing, StoreDenied, StoreError, StoreFull, StoreUnavailable
from unbroken.store.responses import refusal


def answered(status: int, word: str = "") -> str:
    """Return the client's text for an answer that it did not expect."""
    body = (
        f'<?xml version="1.0"?><Error><Code>{word}</Code><Message>hunter2</Message></Error>' if word else ""
    )
    return (
        "Generic S3 error: Error performing PUT http://host/bucket/k?sig=hunter2 in 1.9ms - "
        f"Server returned non-2xx status code: {status} Some Words: {body}\n\nDebug source:\nhunter2"
    )


UNSENT = "Generic S3 error: Error performing PUT http://host/k in 17us - HTTP error: {}\n\nDebug source: Os {{ code: 111 }}"


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (GenericError(answered(503, "SlowDown")), StoreUnavailable, "(503 SlowDown)"),
        (GenericError(answered(500)), StoreUnavailable, "(500)"),
        (GenericError(answered(429)), StoreUnavailable, "(429)"),
        (GenericError(answered(409, "OperationAborted")), StoreUnavailable, "(409 OperationAborted)"),
        (GenericError(UNSENT.format("error sending request")), StoreUnavailable, "did not answer"),
        (GenericError(UNSENT.format("builder error")), StoreError, "no request could be made"),
        (GenericError(answered(403, "SignatureDoesNotMatch")), StoreDenied, "(403 SignatureDoesNotMatch)"),
        (PermissionDeniedError(answered(403, "AccessDenied")), StoreDenied, "(403 AccessDenied)"),
        (UnauthenticatedError("no token"), StoreDenied, "not permitted."),
        (GenericError(answered(507)), StoreFull, "(507)"),
        (GenericError(answered(507)), StoreFull, "`unbroken prune s3://bucket/run --keep-last 1`"),
        (GenericError(answered(403, "QuotaExceeded")), StoreDenied, "QuotaExceeded"),
        (GenericError(answered(400, "QuotaExceeded")), StoreFull, "QuotaExceeded"),
        (GenericError(answered(400, "AuthorizationHeaderMalformed")), StoreError, "was refused (400"),
        (FileNotFoundError(answered(404, "NoSuchKey")), ObjectMissing, "There is no object k."),
        (FileNotFoundError(answered(404, "NoSuchBucket")), StoreError, "there is no such bucket"),
        (GenericError(answered(404, "ContainerNotFound")), StoreError, "there is no such bucket"),
    ],
)
def test_each_error_has_one_class_and_says_no_more_than_it_may(
    error: BaseError | FileNotFoundError, kind: type[StoreError], told: str
) -> None:
    found = refusal(error, doing="writing", where="s3://bucket/run", key="k")
    assert type(found) is kind
    assert told in str(found)
    assert found.key == "k"
    assert found.hint
    assert "hunter2" not in str(found)
