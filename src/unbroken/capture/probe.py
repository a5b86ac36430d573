"""Find out before training what a restore of an environment will give.

Families that are known by name cost nothing. Any other environment is put to the trial, and the live one is
never touched: one with a `spec` is built twice in a process of its own, which takes a few seconds; one that
cannot be built again, an object of the user's own class, is tried in a copy of this process, which takes
230 of its steps at most and a tenth of a second beside. Either ends after the timeout.

Not promised: an environment that behaves differently in another process than in this one.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from unbroken.capture import registry
from unbroken.capture.environments import How, Verdict, chain, known
from unbroken.capture.fork import Unanswered, ask_copy
from unbroken.errors import ConfigError
from unbroken.types import Fidelity

TIMEOUT = 60.0


def probe(env: Any, *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on a live environment, from its class or from twins made after its `spec`."""
    verdict = known(env)
    if verdict is not None:
        return verdict
    makers = [maker for layer in (env, list(chain(env))[-1]) if (maker := _maker(layer)) is not None]
    for maker in makers:
        verdict = probe_factory(maker, timeout=timeout)
        if not verdict.reason.startswith(UNBUILDABLE):
            return verdict
    return probe_live(env, timeout=timeout)


def probe_live(env: Any, *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on a live environment, tried in a copy of this process; it is not touched."""
    _checked(timeout)
    try:
        return _read(ask_copy(lambda: _written(_judged(env)), timeout=timeout))
    except Unanswered as why:
        return _unknown(f"it could not be tried: {why}")


def _judged(env: Any) -> Verdict:
    from unbroken.capture.trial import judge_in_place

    return judge_in_place(env)


def _written(verdict: Verdict) -> str:
    return json.dumps(
        {"how": verdict.how.value, "fidelity": verdict.fidelity.value, "reason": verdict.reason}
    )


def _read(text: str) -> Verdict:
    found = json.loads(text)
    return Verdict(How(found["how"]), Fidelity(found["fidelity"]), found["reason"])


def _checked(timeout: float) -> None:
    if not timeout > 0:
        raise ConfigError(f"A probe cannot take {timeout} seconds.", hint="Give a positive timeout.")


UNBUILDABLE = "it could not be built again"


def probe_factory(make: Callable[[], Any], *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on what `make` builds. Takes a few seconds, at most `timeout`."""
    _checked(timeout)
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    try:
        payload = cloudpickle.dumps((make, registry.every()))
    except Exception as error:  # noqa: BLE001 - whatever pickling a foreign object raises: then there is no twin
        return _unknown(f"{UNBUILDABLE} ({type(error).__name__}: {error})")
    with tempfile.TemporaryDirectory(prefix="unbroken-probe-") as folder:
        answer = Path(folder) / "verdict.json"
        child = subprocess.Popen(
            [sys.executable, "-m", "unbroken.capture.probe", str(answer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "SDL_VIDEODRIVER": "dummy",
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            start_new_session=True,  # so that what the environment starts ends with it
        )
        try:
            _, complaint = child.communicate(payload, timeout=timeout)
        except subprocess.TimeoutExpired:
            _end(child)
            return _unknown(f"the probe took longer than {timeout:g} s")
        if not answer.exists():
            last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            return _unknown(f"{UNBUILDABLE} or ended its process ({last or f'status {child.returncode}'})")
        return _read(answer.read_text())


def _unknown(reason: str) -> Verdict:
    return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, f"{reason}; its attributes are captured")


def _end(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _maker(env: Any) -> Callable[[], Any] | None:
    spec = getattr(env, "spec", None)
    if spec is None:
        return None
    gymnasium: Any = importlib.import_module("gymnasium")
    try:
        spec = copy.deepcopy(spec)
    except Exception:  # noqa: BLE001 - its arguments are the user's objects, which may raise anything
        return None
    if spec.kwargs.get("render_mode") == "human":
        spec.kwargs["render_mode"] = None
    return partial(gymnasium.make, spec)


def main() -> None:
    """Be the probe's process: a factory on standard input, the verdict into the file named."""
    import pickle

    from unbroken.capture.clock import Clock
    from unbroken.capture.trial import judge

    clock = Clock()
    clock.install()  # before the environment is imported: it may take functions out of `time`
    make, captors = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from our own parent
    registry.adopt(captors)
    try:
        make().close()
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
        verdict = _unknown(f"{UNBUILDABLE} ({type(error).__name__}: {error})")
    else:
        verdict = judge(make, clock)
    Path(sys.argv[1]).write_text(_written(verdict))


if __name__ == "__main__":
    main()
