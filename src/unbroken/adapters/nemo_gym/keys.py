"""What is derived from the user's signing key for the servers of NeMo Gym.

Every process of one user, or of one `UNBROKEN_KEY`, has the same: nothing needs to be handed around.
"""

from __future__ import annotations

from blake3 import blake3

from unbroken.errors import InternalError
from unbroken.repo.keys import signing_key


def log_key() -> bytes:
    """Return the key, 32 bytes, under which logs and pickled sessions are sealed.

    Raises:
        ConfigError: the user's key cannot be used.
    """
    return _derived("unbroken 2026-11 nemo gym log")


def control_token() -> str:
    """Return what a control request has to carry.

    Raises:
        ConfigError: the user's key cannot be used.
    """
    return _derived("unbroken 2026-11 nemo gym control").hex()


def seal(key: bytes, *parts: bytes) -> bytes:
    """Return 16 bytes that only a holder of `key` can make, over the parts in their order."""
    mac = blake3(key=key)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest(length=16)


def _derived(context: str) -> bytes:
    key = signing_key(create=True)
    if key is None:
        raise InternalError("No signing key was created.")
    return blake3(key, derive_key_context=context).digest()
