"""Find out before training what a restore of an environment will give.

Families that are known by name cost nothing. Any other environment is put to the trial, and the live one is
never touched: one with a `spec` is built twice in a process of its own, which takes a few seconds; one that
cannot be built again, an object of the user's own class, is tried in a copy of this process, which takes
230 of its steps at most and a tenth of a second beside. Either ends after the timeout.

Invariant: a verdict is of the whole chain. A `spec` may know nothing of a wrapper that a person has put around
what it built; a twin that lacks one, or has others, is no twin.

Not promised: an environment that behaves differently in another process than in this one.
"""

from __future__ import annotations

import base64
import copy
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.capture import registry
from unbroken.capture.environments import How, Verdict, chain, is_wrapper_of_library, known
from unbroken.capture.fork import Unanswered, ask_copy
from unbroken.capture.second_process import NoAnswer, SecondProcess
from unbroken.errors import ConfigError
from unbroken.state.nodes import class_name
from unbroken.types import Fidelity

if TYPE_CHECKING:
    from unbroken.capture.clock import Clock
    from unbroken.capture.trial import Evidence

TIMEOUT = 60.0


def probe(env: Any, *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on a live environment, from its class or from twins made after its `spec`."""
    verdict = known(env)
    if verdict is not None:
        return verdict
    if registry.registered(list(chain(env))[-1]) is not None:
        # Nothing outside of copies of this process: there may be a server or a machine behind it.
        return probe_live(env, timeout=timeout)
    makers = [maker for layer in (env, list(chain(env))[-1]) if (maker := _maker(layer)) is not None]
    for maker in makers:
        verdict = probe_factory(maker, layers=own_layers(env), timeout=timeout)
        if not verdict.reason.startswith(UNBUILDABLE):
            return verdict
    return probe_live(env, timeout=timeout)


def probe_live(env: Any, *, timeout: float = TIMEOUT) -> Verdict:
    """Return the verdict on a live environment, tried in copies of this process; it is not touched.

    What holds in one copy is repeated in another, which has nothing of what the first one made.
    """
    _checked(timeout)
    end = time.monotonic() + timeout
    refuted: dict[How, str] = {}
    while True:
        try:
            said = json.loads(ask_copy(lambda: _judged(env, refuted), timeout=_left(end)))
        except Unanswered as why:
            if registry.registered(list(chain(env))[-1]) is not None:
                return Verdict(How.CAPTURER)  # the user's word stands
            return _unknown(f"it could not be tried: {why}")
        verdict, evidence = _read(said["verdict"]), said["evidence"]
        if not evidence:
            return verdict
        different = _different(lambda evidence=evidence: _repeated(env, evidence), _left(end))  # type: ignore[misc]
        if not different:
            return _among_foreign(env, verdict, said["foreign"], end)
        if verdict.how is How.CAPTURER:
            reason = f"what its capturer saves means nothing elsewhere: after a restore {different}"
            return Verdict(How.CAPTURER, Fidelity.APPROXIMATE, reason)
        refuted[verdict.how] = different


def _among_foreign(env: Any, verdict: Verdict, foreign: list[str], end: float) -> Verdict:
    """Return the verdict once states as another process would have written them were tried too."""
    for written in foreign:
        if fails := _different(lambda written=written: _taken(env, written), _left(end)):  # type: ignore[misc]
            told = _unpacked(written).told
            return Verdict(verdict.how, Fidelity.APPROXIMATE, f"{told} ({fails})")
    return verdict


def _left(end: float) -> float:
    return max(0.1, end - time.monotonic())


def _judged(env: Any, refuted: Mapping[How, str]) -> str:
    from unbroken.capture.trial import judge_capturer, judge_in_place

    vouched = registry.registered(list(chain(env))[-1]) is not None
    judgement = judge_capturer(env) if vouched else judge_in_place(env, refuted)
    evidence = judgement.evidence
    kept = "" if evidence is None else _packed(evidence)
    foreign = [_packed(one) for one in judgement.foreign]
    return json.dumps({"verdict": _written(judgement.verdict), "evidence": kept, "foreign": foreign})


def _packed(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - from our own copy


def _repeated(env: Any, evidence: str) -> str:
    from unbroken.capture.trial import repeat_in_place

    return repeat_in_place(env, _unpacked(evidence))


def _taken(env: Any, foreign: str) -> str:
    from unbroken.capture.trial import goes_on, repeat_in_place

    found = _unpacked(foreign)
    return (repeat_in_place if found.must_agree else goes_on)(env, found.evidence)


ELSEWHERE = "in another process"


def _different(repeat: Callable[[], str], timeout: float) -> str:
    """Return what goes on differently when a copy repeats a trial; nothing if all goes on as it did."""
    try:
        found = ask_copy(repeat, timeout=timeout)
    except Unanswered as why:
        return f"{ELSEWHERE} it cannot go on ({why})"
    return f"{found} {ELSEWHERE}" if found else ""


def _written(verdict: Verdict) -> str:
    return json.dumps(
        {
            "how": verdict.how.value,
            "fidelity": verdict.fidelity.value,
            "reason": verdict.reason,
            "step_seconds": verdict.step_seconds,
        }
    )


def _read(text: str) -> Verdict:
    found = json.loads(text)
    how, fidelity = How(found["how"]), Fidelity(found["fidelity"])
    return Verdict(how, fidelity, found["reason"], step_seconds=found["step_seconds"])


def _checked(timeout: float) -> None:
    if not timeout > 0:
        raise ConfigError(f"A probe cannot take {timeout} seconds.", hint="Give a positive timeout.")


UNBUILDABLE = "it could not be built again"


def own_layers(env: Any) -> list[str]:
    """Return the classes that have a say in what an environment does, outermost first: of the base, and of the
    wrappers that are not known by name."""
    *wrappers, base = chain(env)
    return [
        class_name(type(layer)) for layer in (*(w for w in wrappers if not is_wrapper_of_library(w)), base)
    ]


def probe_factory(
    make: Callable[[], Any], *, layers: Sequence[str] = (), timeout: float = TIMEOUT
) -> Verdict:
    """Return the verdict on what `make` builds. Takes a few seconds, at most `timeout`.

    `layers`: the `own_layers` that it has to have; none where `make` is all that there is to judge by.
    """
    _checked(timeout)
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    try:
        payload = cloudpickle.dumps((make, list(layers), registry.every()))
    except Exception as error:  # noqa: BLE001 - whatever pickling a foreign object raises: then there is no twin
        return _unknown(f"{UNBUILDABLE} ({type(error).__name__}: {error})")
    with tempfile.TemporaryDirectory(prefix="unbroken-probe-") as folder:
        answer, complaint = Path(folder) / "verdict.json", Path(folder) / "stderr"
        in_time = True
        # A file and no pipe, which a process that the environment has left behind would hold open.
        with complaint.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-m", "unbroken.capture.probe", str(answer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
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
            child.communicate(payload, timeout=timeout)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            _end(child)
        if answer.exists():  # first of all: with its verdict written, a probe may still fail to end
            return _read(answer.read_text())
        if not in_time:
            return _unknown(f"the probe took longer than {timeout:g} s")
        last = complaint.read_text(errors="replace").strip().rpartition("\n")[2]
        return _unknown(f"{UNBUILDABLE} or ended its process ({last or f'status {child.returncode}'})")


def _unknown(reason: str) -> Verdict:
    return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, f"{reason}; its attributes are captured")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the probe, and what the environment has started in it."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _maker(env: Any) -> Callable[[], Any] | None:
    spec = getattr(env, "spec", None)
    # A wrapper that did not record its arguments is named in it, and cannot be built.
    if spec is None or any(w.kwargs is None for w in spec.additional_wrappers):
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
    from unbroken.capture.clock import Clock
    from unbroken.capture.trial import judge

    clock = Clock()
    clock.install()  # before the environment is imported: it may take functions out of `time`
    make, layers, captors = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from our own parent
    registry.adopt(captors)
    # Before any environment is there, so that it knows of none of their handles.
    second = SecondProcess(lambda evidence: _repeat(make, evidence, clock).encode())
    try:
        env = make()
        found = own_layers(env)
        env.close()
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
        verdict = _unknown(f"{UNBUILDABLE} ({type(error).__name__}: {error})")
    else:
        if layers and found != layers:
            verdict = _unknown(f"{UNBUILDABLE} (what comes out is {' in '.join(reversed(found))})")
        else:
            verdict = judge(make, clock, lambda evidence: _asked(second, evidence))
    _put(Path(sys.argv[1]), _written(verdict))
    second.close()


def _put(answer: Path, text: str) -> None:
    written = answer.with_suffix(".part")
    written.write_text(text)
    written.rename(
        answer
    )  # whoever waits may end this process at any moment: the answer is whole, or is not there


def _repeat(make: Callable[[], Any], evidence: bytes, clock: Clock) -> str:
    from unbroken.capture.trial import repeat

    try:
        return repeat(make, pickle.loads(evidence), clock)  # noqa: S301 - from our own parent
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; that is the finding
        return f"it fails ({type(error).__name__}: {error})"


def _asked(second: SecondProcess, evidence: Evidence) -> str:
    try:
        found = second.ask(pickle.dumps(evidence)).decode()
    except NoAnswer:
        return f"it ends its process {ELSEWHERE}"
    return f"{found} {ELSEWHERE}" if found else ""


if __name__ == "__main__":
    main()
