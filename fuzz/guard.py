"""What must hold for every input: our own errors only, nothing run, nothing opened, little memory, little time.

Invariant: while an input is decoded, the interpreter reports each import, call of the compiler, file, process,
socket and foreign function that is asked for (PEP 578), and any of them is a finding.

Not promised: that what a C library does without the interpreter is seen.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress

from unbroken.errors import InternalError, UnbrokenError

FORBIDDEN = (
    "compile", "exec", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "marshal.", "code.__new__",
    "shutil.", "tempfile.", "glob.", "pty.", "mmap.", "builtins.input", "builtins.breakpoint", "cpython.run",
    "function.__new__", "object.__delattr__", "signal.", "winreg.", "pickle.find_class", "fcntl.", "urllib.",
)  # fmt: skip
LATER = ("pwd", "unicodedata", "encodings.idna", "encodings.raw_unicode_escape", "encodings.unicode_escape")
"""What the standard library imports when it first needs it."""
SECONDS = 5.0
"""One input may take so long, of a processor's time: on a busy machine, and under a tracer, too."""


class Finding(Exception):
    """An input for which something does not hold."""


class Guard:
    """Decodes inputs and raises `Finding` where what must hold does not. One for a process: a hook stays for good."""

    def __init__(self) -> None:
        self._watching = False
        self._seen: list[str] = []
        for name in LATER:
            importlib.import_module(name)
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._watching and event.startswith(FORBIDDEN):
            self._seen.append(f"{event} {str(arguments)[:200]}")

    def warm(self, decode: Callable[[bytes], object], inputs: Iterable[bytes]) -> None:
        """Decode inputs without a look at what is run: the first call of a decoder builds what it keeps."""
        for data in inputs:
            with suppress(Exception):
                decode(data)

    def check(self, decode: Callable[[bytes], object], data: bytes) -> bool:
        """Decode an input; return whether it was accepted.

        Raises:
            Finding: another error than ours, something was run or opened, or it took too long.
        """
        self._seen.clear()
        started = time.process_time()
        accepted = True
        self._watching = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                decode(data)
        except UnbrokenError as error:
            if isinstance(error, InternalError):
                raise Finding(f"a bug of ours: {error}") from error
            accepted = False
        except BaseException as error:
            raise Finding(f"{type(error).__name__}: {str(error)[:300]}") from error
        finally:
            self._watching = False
        if self._seen:
            raise Finding(f"it ran or opened: {'; '.join(self._seen[:3])}")
        if (taken := time.process_time() - started) > SECONDS:
            raise Finding(f"it took {taken:.1f} s")
        return accepted
