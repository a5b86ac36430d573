"""Functions as a document speaks of them: by name and by a digest of their code, never by the code itself."""

from __future__ import annotations

import hashlib
import importlib.util
import types
from typing import Any

PARTIAL = "partial "
"""What stands before the name of a function of which the program holds a partial."""


_BYTECODE = int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")


def code_hash(code: types.CodeType) -> str:
    """Return the number of this Python's bytecode and a digest: same source, same digest, whatever its line numbers."""
    return f"{_BYTECODE}:{_digest(code)}"


def may_be_one_code(a: str, b: str) -> bool:
    """Return False if two hashes are of different code: True too if what compiled it differs, since nothing tells then.

    An older hash does not say what compiled it, and is compared by its digest.
    """
    (a_by, _, a_digest), (b_by, _, b_digest) = a.rpartition(":"), b.rpartition(":")
    return a_digest == b_digest or bool(a_by and b_by and a_by != b_by)


def _digest(code: types.CodeType) -> str:
    form = (code.co_code, code.co_names, code.co_varnames, _constant(code.co_consts))
    return hashlib.blake2b(repr(form).encode(), digest_size=8).hexdigest()


def _constant(value: object) -> object:
    """Return what is the same in every process: the order of a frozenset hangs on the hash seed."""
    if isinstance(value, types.CodeType):
        return _digest(value)
    if isinstance(value, tuple):
        return [_constant(item) for item in value]
    return sorted(map(repr, map(_constant, value))) if isinstance(value, frozenset) else value


def function_name(function: Any) -> str:
    """Return the name of a callable as it stands in documents."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", "?")
    return f"{getattr(function, '__module__', None)}:{name}"


def partial_name(function: Any) -> str:
    """Return the name under which partials of a function are known."""
    return f"{PARTIAL}{function_name(function)}"


def changing_parts(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function holds that can change: its attributes, and containers among its defaults."""
    found: dict[str, Any] = dict(sorted(vars(function).items()))
    for i, default in enumerate(function.__defaults__ or ()):
        if isinstance(default, (list, dict, set)):
            found[f"<default {i}>"] = default
    for name, default in (function.__kwdefaults__ or {}).items():
        if isinstance(default, (list, dict, set)):
            found[f"<default {name}>"] = default
    return found
