"""One call on a thread of its own, while the caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundCall:
    """Starts `work` at once; `wait` tells how it ended. Without threads to be had it runs before that."""

    def __init__(self, work: Callable[[], object], *, name: str = "unbroken-beside") -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name=name, daemon=False)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def wait(self) -> BaseException | None:
        """Wait until it is over, and return what it raised."""
        if self._thread is not None:
            self._thread.join()
        return self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - returned to who waits
            self._error = error
