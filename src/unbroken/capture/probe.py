"""Find out before training what a restore of an environment will give.

Families that are known by name cost nothing. Any other environment is built twice in a process of its own
and put to the trial; the live environment is never touched. An environment that cannot be built again (no
`spec`) is recorded: then every restore is checked against a digest instead.

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
from unbroken.errors import ConfigError
from unbroken.types import Fidelity

TIMEOUT = 60.0


def probe(env: Any, *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on a live environment, from its class or from twins made after its `spec`."""
    verdict = known(env)
    if verdict is not None:
        return verdict
    makers = [maker for layer in (env, list(chain(env))[-1]) if (maker := _maker(layer)) is not None]
    if not makers:
        return Verdict(
            How.REPLAY,
            Fidelity.EXACT,
            "it has no spec to build a twin from, so its actions are recorded and each restore is checked",
        )
    verdict = probe_factory(makers[0], timeout=timeout)
    if verdict.reason.startswith(UNBUILDABLE) and len(makers) > 1:
        return probe_factory(makers[1], timeout=timeout)
    return verdict


UNBUILDABLE = "it could not be built again"


def probe_factory(make: Callable[[], Any], *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on what `make` builds. Takes a few seconds, at most `timeout`."""
    if not timeout > 0:
        raise ConfigError(f"A probe cannot take {timeout} seconds.", hint="Give a positive timeout.")
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    payload = cloudpickle.dumps((make, dict(registry._captors)))
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
        found = json.loads(answer.read_text())
        return Verdict(How(found["how"]), Fidelity(found["fidelity"]), found["reason"])


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
    spec = copy.deepcopy(spec)
    if spec.kwargs.get("render_mode") == "human":
        spec.kwargs["render_mode"] = None
    return partial(gymnasium.make, spec)


def main() -> None:
    """Be the probe's process: a factory on standard input, the verdict into the file named."""
    import pickle

    from unbroken.capture.trial import Clock, judge

    clock = Clock()
    clock.install()  # before the environment is imported: it may take functions out of `time`
    make, captors = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from our own parent
    registry._captors.update(captors)
    try:
        make().close()
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
        verdict = _unknown(f"{UNBUILDABLE} ({type(error).__name__}: {error})")
    else:
        verdict = judge(make, clock)
    found = {"how": verdict.how.value, "fidelity": verdict.fidelity.value, "reason": verdict.reason}
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
