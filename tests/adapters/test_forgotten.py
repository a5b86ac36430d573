"""What a loop changes and no checkpoint has is named when the loop begins, whatever it is; and nothing else is."""

from __future__ import annotations

import re
import textwrap
import warnings
from pathlib import Path

import pytest

import unbroken

CLASSES = """
import itertools, random, threading, weakref
from collections import Counter, defaultdict
from dataclasses import dataclass
import gymnasium, numpy as np, torch

class Mean:
    def __init__(self):
        self.count = 0
    def update(self, x):
        self._add(x)
    def _add(self, x):
        self.count += x
    def read(self):
        return self.count

    def push(self, x):
        self.count = max(self.count, x)

class LessMean(Mean):
    def update(self, x):
        super().update(x / 2)

class Scaler:
    def __init__(self):
        self.low, self.cleared, self.owner = np.zeros(2), threading.Event(), None
    def scale(self, x):
        self.cleared.clear()
        return x - self.low

class Guarded(np.ndarray):
    @property
    def base(self):
        raise RuntimeError("the server is away")

class Slotted:
    __slots__ = ("count",)
    def __init__(self):
        self.count = 0
    def __call__(self):
        self.count += 1

class OfClass:
    count = 0
    def update(self):
        self.count += 1

class Rows:
    def __init__(self):
        self.rows = [0]
    def add(self, row):
        self.rows.append(row)
    def __setitem__(self, i, row):
        self.rows[i] = row

class Agent:
    def __init__(self):
        self.net = torch.nn.Linear(2, 2)
        self.settings = {"rate": 0.1}
    def act(self):
        return self.settings["rate"]

class Trainer:
    def __init__(self):
        self.weights, self.target = np.zeros(2), np.zeros(2)
        self.mean, self.rate, self.losses = Mean(), 1.0, []
    def step(self):
        self.weights += self.rate
        self.rate *= 0.9
        self.losses.append(self.rate)

@dataclass
class Args:
    rate: float = 0.1
    seed: int = 1

class Logger:
    def __init__(self, name):
        self.name = name
    def log(self, value):
        return f"{self.name}: {value}"

GLOBAL = Mean()
"""

CASES: list[tuple[str, str, str]] = [
    ("total = 0.0", "total += step", "total"),
    ("best = None", "best = step if best is None else max(best, step)", "best"),
    ("rate = 1.0", "if step % 10 == 0:\n    rate *= 0.5\nx = rate", "rate"),
    ("state = 'explore'", "state = 'act' if state == 'explore' else state", "state"),
    ("a, b = 1, 2", "a, b = b, a", "a, b"),
    ("losses = []", "losses.append(step)", "losses"),
    ("seen = set()", "seen.add(step)", "seen"),
    ("table = defaultdict(int)", "table[step] += 1", "table"),
    ("counts = Counter()", "counts.update([step])", "counts"),
    ("numbers = itertools.count()", "next(numbers)", "numbers"),
    ("numbers = (i for i in range(9))", "next(numbers)", "numbers"),
    ("mean = Mean()", "mean.update(1)", "mean"),
    ("mean = Mean()", "mean.count += 1", "mean"),
    ("mean = Slotted()", "mean()", "mean"),
    ("mean = OfClass()", "mean.update()", "mean"),
    ("rows = Rows()", "rows.add(step)", "rows"),
    ("rows = Rows()", "rows[0] = step", "rows"),
    ("rows = Rows()", "rows.rows.append(step)", "rows"),
    ("agent = Agent()", "agent.act()", "agent"),
    ("agents = [Agent()]\nagent = agents[0]", "agent.act()", "agent"),
    ("args = Args()", "args.rate *= 0.9", "args"),
    ("trainer = Trainer()\nrun.track(weights=trainer.weights)", "trainer.step()",
     "trainer.losses, trainer.rate"),
    ("trainer = Trainer()\nrun.track(weights=trainer.weights, target=trainer.target)", "trainer.mean.update(1)",
     "trainer.mean"),
    ("mine = GLOBAL", "GLOBAL.update(1)", "GLOBAL"),
    ("env = gymnasium.make('CartPole-v1')", "env.reset(seed=1)", "env"),
    ("trainer = Trainer()\nrun.track(weights=trainer.weights)", "trainer.mean.push(step)", "trainer.mean"),
    ("episodes = [[] for _ in range(4)]", "episodes[step % 4].append(step)", "episodes"),
    ("history = defaultdict(list)", "history['loss'].append(step)", "history"),
    ("trainer = Trainer()\ntrainer.losses = {'a': []}\nrun.track(weights=trainer.weights)",
     "trainer.losses['a'].append(1)", "trainer.losses"),
    ("mean = LessMean()", "mean.update(step)", "mean"),
    ("envs = [gymnasium.make('CartPole-v1')]", "envs[0].reset(seed=1)", "envs"),
    ("nets = {'a': torch.nn.Linear(2, 2)}", "x = nets['a'].weight", "nets"),
    ("agents = [Agent()]", "x = [agent.act() for agent in agents]", "agents"),
    ("losses, seen = [], set()", "[losses.append(x) for x in range(2)]\nany(seen.add(x) for x in range(2))",
     "losses, seen"),
    ("scaler = torch.amp.GradScaler('cpu')", "x = scaler.get_scale()", "scaler"),
    ("guarded = np.zeros(2).view(Guarded)", "x = guarded + 1", "guarded"),
    # What is no state, or comes back.
    ("pass", "total = step\ntotal += 1", ""),
    ("total = 0", "total = step", ""),
    ("factor = 3", "x = factor * step", ""),
    ("words = ['a', 'b']", "x = words[step % 2]", ""),
    ("batch = []", "batch = []\nbatch.append(step)", ""),
    ("rates = {'a': 1}", "x = [rates[name] for name in rates]", ""),
    ("total = 0", "total = step\nif step > 3:\n    break", ""),
    ("mean = Mean()", "mean.read()", ""),
    ("mean = Mean()", "pass", ""),
    ("mean = Mean()\nrun.track(mean=mean)", "mean.update(1)", ""),
    ("mean = Mean()\nrun.vars.mean = mean", "run.vars.mean.update(1)", ""),
    ("run.vars.total = 0", "run.vars.total += 1", ""),
    ("vars = run.vars\nvars.total = 0", "vars.total += 1", ""),
    ("mean = Mean()\nrun.scratch(mean)", "mean.update(1)", ""),
    ("trainer = Trainer()\nrun.track(weights=trainer.weights)\nrun.scratch(trainer.target, trainer.losses)",
     "trainer.step()", "trainer.rate"),
    ("agent = Agent()\nrun.scratch(agent.net)", "agent.act()", ""),
    ("losses = []\nrun.scratch(losses)", "losses.append(1)", ""),
    ("rows = Rows()\nrun.track(all=[rows])", "rows.add(1)", ""),
    ("trainer = Trainer()\nrun.track(trainer=trainer)", "trainer.step()", ""),
    ("loss = torch.nn.MSELoss()", "x = loss", ""),
    ("layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm1d(2))", "x = layers", "layers"),
    ("scaler = Scaler()", "x = scaler.scale(step)", ""),
    ("scaler = Scaler()\nscaler.owner = scaler", "x = scaler.scale(step)", ""),
    ("x = np.zeros(2)", "x = np.ones(2)\ny = x.sum()", ""),
    ("rows = Rows()\nobjects = {'rows': rows, 'n': 1}\nrun.track(rows=rows)", "objects['rows'].add(step)", ""),
    ("rows = [[1], [2]]\nrun.track(a=rows[0], b=rows[1])", "rows[step % 2].append(step)", ""),
    ("words = {'a': [1, 2]}", "x = words['a'][0]\ny = words['a'].index(1)", ""),
    ("gone = weakref.proxy(Mean())", "x = step", ""),
    ("args = Args()", "x = args.rate * args.seed", ""),
    ("log = Logger('a')", "log.log(step)", ""),
    ("weights = np.zeros(2)\nrun.track(weights=weights)", "weights += 1", ""),
    ("weights = np.zeros(2)\nrun.track(w=weights)", "weights = weights + 1", "bound anew: weights"),
    ("a, b = [1], [2]\nrun.track(a=a, b=b)", "a, b = b, a", "bound anew: a, b"),
    ("weights = np.zeros(2)\nrun.vars.weights = weights", "weights = run.vars.weights", ""),
]  # fmt: skip
"""What a script makes before its loop, what the loop does, and what is named."""


def told_by(tmp_path: Path, before: str, body: str, *, in_function: bool) -> str:
    loop = f"{before}\nfor step in run.steps(5):\n{textwrap.indent(body, '    ')}"
    return told_of(
        tmp_path, f"def train():\n{textwrap.indent(loop, '    ')}\ntrain()" if in_function else loop
    )


def told_of(tmp_path: Path, script: str) -> str:
    space = {"__name__": "__main__", "run": unbroken.Run(tmp_path / "run", quiet=True)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(compile(CLASSES + script, "script.py", "exec"), space)
    texts = [str(one.message) for one in told if issubclass(one.category, unbroken.UntrackedWarning)]
    patterns = {r"Not in the checkpoint: (.*?)\. If": "", r"The loop binds (.*?) anew": "bound anew: "}
    named = [(word, re.match(pattern, text)) for text in texts for pattern, word in patterns.items()]
    return "; ".join(word + one[1] for word, one in named if one)


@pytest.mark.parametrize("in_function", [False, True], ids=["module", "function"])
@pytest.mark.parametrize(("before", "body", "named"), CASES)
def test_what_a_loop_changes_is_named(
    tmp_path: Path, before: str, body: str, named: str, in_function: bool
) -> None:
    assert told_by(tmp_path, before, body, in_function=in_function) == named


def test_a_global_generator_that_a_loop_in_a_function_draws_from_is_named(tmp_path: Path) -> None:
    more = "generator = np.random.default_rng(1)\nlow = np.zeros(2)\n"
    assert told_by(tmp_path, more, "x = generator.random() + low", in_function=False) == "generator, low"
    script = (
        f"{more}def train():\n    for step in run.steps(5):\n        x = generator.random() + low\ntrain()"
    )
    assert told_of(tmp_path / "again", script) == "generator", "a global array may be a constant"
