"""A training whose model is tracked as what it saves of itself.

    pretrained_script.py ROOT [--kill-at STEP] [--cold] [--seed N]

It steps by hand: no optimizer is there that would bring the weights back, too. `--cold` leaves the model
as it was built, in spite of the checkpoint. Prints a digest of all tensors.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import random
import signal

import numpy as np
import torch

import unbroken
from tests.adapters.pretrained_model import Tiny, Tokenizer
from unbroken.pretrained import Pretrained

STEPS = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for start in (torch.manual_seed, random.seed, np.random.seed):
        start(given.seed)
    model = Tiny(shards=2)
    built = copy.deepcopy(model.state_dict())
    memory = [tensor.data_ptr() for tensor in model.state_dict().values()]
    run = unbroken.Run(given.root, every=4, quiet=True)
    run.track(policy=Pretrained(model, Tokenizer()))
    for step in run.steps(STEPS):
        assert run.report is not None
        if given.cold and step == run.report.step:
            model.load_state_dict(built)
        run.wait()  # what is resumed must not depend on how fast the disk is
        if step == given.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.randint(50, (8, 5))).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
    assert memory == [tensor.data_ptr() for tensor in model.state_dict().values()]
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(bytes(tensor.clone().untyped_storage()))
    print(run.report.step if run.report else "", found.hexdigest())


if __name__ == "__main__":
    main()
