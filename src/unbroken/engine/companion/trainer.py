"""The companion from the training's side: it is started, given one save at a time, heard, and ended.

Invariants: what `hand` has returned for is committed, whatever becomes of this process; a companion that
dies is told of, and the next save gets a new one; when `close` returns, there is none and nothing is left
of it.

Not promised: that the save survives a kill of both, or of the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from unbroken.engine.companion import report
from unbroken.engine.companion.letter import Draft, Work
from unbroken.engine.companion.post import Post
from unbroken.engine.saving import Committed, Outcome
from unbroken.errors import ConfigError, InternalError, SaveFailed
from unbroken.repo.pen import Pen
from unbroken.repo.process import Process, identify
from unbroken.state.shared import SharedMemory, read_shared
from unbroken.state.snapshot import Snapshot

_PROGRAM = """\
import sys
sys.path[:] = sys.argv[3:]
from unbroken.engine.companion.process import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""
"""Modules are looked for where the training finds them, and neither in the folder of this file nor in the
one where it was started."""

_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""It computes nothing, so the pools of threads that libraries make would only cost memory."""


def name_of(inspector: Callable[..., object]) -> str:
    """Return the name by which a companion finds a function; "" if only this process can call it.

    Only our own are looked for: the module of another may import anything, and a framework takes seconds.
    """
    module = getattr(inspector, "__module__", "") or ""
    name = getattr(inspector, "__name__", "")
    if not module.startswith("unbroken.") or getattr(sys.modules.get(module), name, None) is not inspector:
        return ""
    return f"{module}:{name}"


class Companion:
    """A process that writes checkpoints. Started when it is first needed.

    `memory` is the staging. `announce` puts on record who it is, before it is given anything.
    """

    def __init__(self, memory: SharedMemory, announce: Callable[[Process], None]) -> None:
        self._memory = memory
        self._announce = announce
        self._process: subprocess.Popen[bytes] | None = None
        self._post: Post | None = None
        self._pen: Pen | None = None
        """What was lent to it with the save that was handed over last."""

    @property
    def pid(self) -> int | None:
        """Its number, while there is one."""
        return None if self._process is None else self._process.pid

    def draft(self, snapshot: Snapshot) -> Draft:
        """Return what can be written of a save before all is known.

        Raises:
            NotCapturable: the state is nested too deeply.
        """
        return Draft(snapshot, self._memory)

    def hand(self, draft: Draft, work: Work) -> None:
        """Hand a save over. When this returns, it outlives this process. Hear `outcome` before the next.

        Raises:
            OSError, StoreError, Fenced: no process or no memory is to be had, or it cannot be put on record;
                nothing was handed over.
        """
        letter = draft.finish(work)
        self._pen = work.pen
        try:
            try:
                self._running().send(letter.descriptors)
            except (BrokenPipeError, ConnectionResetError):  # it was ended while it had nothing to do
                self.dismiss()
                self._running().send(letter.descriptors)
        finally:
            letter.close()

    def outcome(self, snapshot: Snapshot, committed: Committed) -> Outcome:
        """Wait for the end of the save of `snapshot`, which was handed over last; return what `carry_out` does.

        Raises:
            SaveFailed: the companion died, and nobody knows how far it had come.
            UnbrokenError: as `carry_out` does.
        """
        pen = self._pen
        if pen is None:
            raise InternalError("Nothing was handed to the companion.")
        while True:
            said = self._heard()
            # Whoever writes next has to know: it would refuse to build on a blob that is whole again, or build
            # on a pack that is about to go.
            if isinstance(said, report.CommittedReport):
                pen.suspect.difference_update(said.renewed)
                committed(said.tell(snapshot))
                continue
            pen.condemned.update(said.condemned)
            if isinstance(said, report.FailedReport):
                raise said.error()
            return Outcome(said.unrecorded, said.relieved)

    def dismiss(self) -> None:
        """Let it end, which takes as long as what it still has to do, and wait for that."""
        post, self._post = self._post, None
        process, self._process = self._process, None
        if post is not None:
            post.close()
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Let it end for good, and give the memory back."""
        self.dismiss()
        self._memory.close()

    def _heard(self) -> report.Report:
        if self._post is None:
            raise InternalError("Nothing was handed to the companion.")
        message = self._post.receive()
        if message is None:
            process = self._process
            self.dismiss()
            code = None if process is None else process.returncode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            raise SaveFailed(
                f"The process that writes checkpoints has ended ({how}).",
                hint="The next save starts another one.",
            )
        (descriptor,) = message
        try:
            return report.decode(read_shared(descriptor).tobytes())
        finally:
            os.close(descriptor)

    def _running(self) -> Post:
        if self._process is not None and self._process.poll() is not None:
            self.dismiss()
        if self._post is None:
            self._start()
        assert self._post is not None
        return self._post

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise ConfigError(
                "No Python is known here that could be started a second time (this program is frozen or embedded).",
                hint='Use writer="thread".',
            )
        self._post, theirs = Post.pair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.descriptor), str(os.getpid()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a pipe behind the training's output ends with the training
                env={**os.environ, **_SINGLE},
                pass_fds=(theirs.descriptor,),
                start_new_session=True,  # Ctrl-C and a closed terminal are meant for the training
            )
            theirs.close()
            self._announce(identify(self._process.pid))
        except BaseException:
            theirs.close()
            self.dismiss()
            raise
