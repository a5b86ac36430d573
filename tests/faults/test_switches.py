"""Saves, failed ones too, draw from no generator of the process and turn none of its switches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = r"""
import decimal, gc, hashlib, json, locale, logging, os, random, signal, socket, sys, threading, warnings
import numpy as np
import torch
import unbroken
from unbroken.errors import UnbrokenError

root, spoiled = sys.argv[1:]
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters())

def switches():
    numpy, umask = np.random.get_state(), os.umask(0)
    os.umask(umask)
    found = {
        "random": random.getstate(), "numpy.random": (numpy[1].tobytes(), numpy[2:]),
        "torch.random": torch.get_rng_state().numpy().tobytes(), "numpy": (np.geterr(), np.getbufsize()),
        "denormals": (np.float64(5e-324) * 1 != 0, bool(torch.tensor(1e-40) * 1 != 0)),
        "torch": (
            torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark, torch._C._len_torch_function_stack(),
        ),
        "variables": sorted(os.environ.items()), "directory": os.getcwd(), "umask": umask,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "path": list(sys.path),
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "timers": [signal.getitimer(n) for n in range(3)], "warnings": list(map(str, warnings.filters)),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        "gc": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)), "locale": locale.setlocale(locale.LC_ALL),
        "logging": (logging.root.level, logging.root.handlers, logging.root.manager.disable),
        "decimal": str(decimal.getcontext()), "timeout": socket.getdefaulttimeout(),
        "weights": (net.weight._version, net.weight.requires_grad, net.weight.untyped_storage().resizable()),
    }
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in found.items()}

run = unbroken.Run(root, every=1, quiet=True)
run.track(net=net, optimizer=optimizer)
steps, moved, failed, before = run.steps(6), {}, 0, None
while True:
    try:
        step = next(steps)
    except StopIteration:
        break
    except UnbrokenError:
        failed += 1
        if failed == 2:
            os.remove(root)
            os.rename(root + ".aside", root)
        step = None
    if step == 1 and spoiled == "spoiled":
        random.random()
    after = switches()
    if before is not None and step != 0:
        moved.update({name: step for name in after if after[name] != before[name]})
    if step == 2 and not failed:
        run.wait()
        os.rename(root, root + ".aside")
        open(root, "w").close()
    if step is not None:
        optimizer.zero_grad()
        (net(torch.randn(2, 8)).pow(2).mean() * random.random() * np.random.rand()).backward()
        optimizer.step()
    before = switches()
print(json.dumps([moved, failed]))
"""


@pytest.mark.parametrize("spoiled", ["", "spoiled"])
def test_no_save_moves_a_switch_of_the_process(spoiled: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), spoiled],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    moved, failed = json.loads(ended.stdout)
    assert moved == ({"random": 1} if spoiled else {})
    assert failed >= 1
