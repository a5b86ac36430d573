"""The public face: which names there are, and how they are called."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

import unbroken
from unbroken import errors

NAMES = [
    "Best",
    "CheckpointEngine",
    "Every",
    "MadeLaterWarning",
    "Monitoring",
    "PrioritizedReplayBuffer",
    "ResumeReport",
    "Ring",
    "Run",
    "Settings",
    "UnbrokenError",
    "UncoveredWarning",
    "UntrackedWarning",
    "register_env_capturer",
]


def test_the_names_are_these_and_sorted() -> None:
    assert unbroken.__all__ == NAMES == sorted(NAMES)
    assert {name for name in dir(unbroken) if name in NAMES} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(unbroken, name))


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Runn'"):
        unbroken.Runn  # noqa: B018


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        ("Run.track", "(self, **objects)"),
        ("Run.scratch", "(self, *objects)"),
        ("Run.steps", "(self, total)"),
        ("Run.stop", "(self)"),
        ("Run.mark_in", "(self, tracker, *, first)"),
        ("Run.warm_up", "(self, function, *, always)"),
        ("Run.save", "(self)"),
        ("Run.wait", "(self, *, seconds)"),
        ("Run.record", "(self, *, episodes, **metrics)"),
        ("Run.close", "(self)"),
        ("CheckpointEngine.resume", "(self, *, step, origin)"),
        ("CheckpointEngine.step", "(self, step, *, episodes, metrics)"),
        ("CheckpointEngine.save", "(self, step, *, reason, position, episodes, metrics, wait)"),
        ("CheckpointEngine.request_save", "(self, reason)"),
        ("CheckpointEngine.make_due", "(self, reason)"),
        ("CheckpointEngine.hold", "(self, step, *, position, episodes, metrics)"),
        ("CheckpointEngine.release", "(self)"),
        ("CheckpointEngine.wait", "(self)"),
        ("CheckpointEngine.wait_for_marks", "(self, seconds)"),
        ("CheckpointEngine.load", "(self, step, *, components)"),
        ("CheckpointEngine.latest_step", "(self)"),
        ("CheckpointEngine.close", "(self)"),
        ("PrioritizedReplayBuffer.add", "(self, **row)"),
        ("PrioritizedReplayBuffer.extend", "(self, **rows)"),
        ("PrioritizedReplayBuffer.sample", "(self, size, rng, *, beta)"),
        ("PrioritizedReplayBuffer.update", "(self, indices, priorities)"),
        ("register_env_capturer", "(cls, *, capture, restore, attributes)"),
    ],
)
def test_signatures(function: str, signature: str) -> None:
    found: object = unbroken
    for part in function.split("."):
        found = getattr(found, part)
    assert callable(found)
    bare = inspect.signature(found)
    bare = bare.replace(
        parameters=[p.replace(annotation=p.empty, default=p.empty) for p in bare.parameters.values()],
        return_annotation=bare.empty,
    )
    assert str(bare) == signature


SETTINGS = {
    "job": "''",
    "every": "Every(steps=None, seconds=None, episodes=None, max_loss=300.0, max_overhead=0.02)",
    "keep_last": "5",
    "best": "None",
    "resume": "'auto'",
    "worst_tier": "'rebuilt'",
    "strict": "False",
    "allow_changed": "nothing",
    "trust": "False",
    "keep_first": "False",
    "document_format": "'json'",
    "staging": "None",
    "writer": "'thread'",
    "grace": "30.0",
    "signals": "('SIGTERM', 'SIGUSR1', 'SIGINT')",
    "exit_code": "75",
    "mirror": "''",
    "mirror_keep_last": "3",
    "monitoring": "None",
    "trackers": "('tensorboard', 'wandb', 'mlflow')",
    "journal": "False",
    "incremental": "True",
    "validate": "True",
    "sync_timeout": "None",
    "compression": "'auto'",
    "compression_level": "None",
}
"""Every setting with its default, by which it is called everywhere."""


def options(function: Callable[..., object], kind: inspect._ParameterKind) -> dict[str, str]:
    """Return the parameters of one kind with their defaults, as text."""
    found: dict[str, str] = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is kind and p.name != "self":
            empty = p.default in ((), frozenset()) or repr(p.default) == "<factory>"
            found[p.name] = "required" if p.default is p.empty else "nothing" if empty else repr(p.default)
    return found


KEYWORD, POSITIONAL = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


FACES = {
    "sb3": ["Best", "CheckpointCallback", "Every", "WarmUp"],
    "rllib": ["Best", "EnvRunnerRecreatedWarning", "Every", "IterationLengthWarning", "checkpoints"],
    "tune": ["Best", "Every", "Pointer", "Trainable", "TrialRun", "read_pointer", "start"],
    "ray_train": ["Best", "Every", "Pointer", "TrainRun", "read_pointer", "start"],
    "lightning": ["Best", "CheckpointCallback", "Every"],
    "dcp": ["Best", "RankStateWarning", "StorageReader", "StorageWriter", "rank_state"],
    "distributed": ["REPLICATED", "World", "world"],
    "pretrained": ["Pretrained"],
    "nemo_gym": ["Gym", "Rollout", "RolloutQueue", "RolloutWarning", "Servers", "checkpointed"],
    "neutral": [
        "Carried",
        "Export",
        "Normalizer",
        "Policy",
        "Replay",
        "into_sb3",
        "load",
        "load_network",
        "load_policy",
        "load_value",
    ],
    "envs": ["FreshWorld"],
    "trackers": ["TrackerWarning", "log_mlflow", "mlflow_run", "wandb_run"],
    "testing.env_oracle": [
        "Comparison",
        "Dialect",
        "Outcome",
        "VectorOutcome",
        "three_way",
        "three_way_vector",
        "timeless",
    ],
    "testing.store_suite": ["StoreSuite"],
}
"""Each framework's face, and what it gathers."""


@pytest.mark.parametrize("face", FACES)
def test_a_face_gathers_these_names(face: str) -> None:
    module = importlib.import_module(f"unbroken.{face}")
    assert module.__all__ == FACES[face] == sorted(FACES[face])
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name))


@pytest.mark.parametrize("face", ["envs", "testing.env_oracle", "testing.store_suite"])
def test_what_a_face_does_not_gather_is_underscored(face: str) -> None:
    module = importlib.import_module(f"unbroken.{face}")
    made = {
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    made -= {"main"}  # of a process that the module starts
    assert {name for name in made if not name.startswith("_")} <= set(module.__all__)


@pytest.mark.parametrize(
    ("function", "positional", "keyword"),
    [
        (
            "three_way",
            ["make"],
            {"before": "required", "after": "60", "seed": "7", "first": "0", "verdict": "None"},
        ),
        ("three_way_vector", ["make"], {"before": "required", "after": "60", "seed": "7", "dialect": "None"}),
    ],
)
def test_the_oracle_takes_what_builds_an_environment_and_these_options(
    function: str, positional: list[str], keyword: dict[str, str]
) -> None:
    found = getattr(importlib.import_module("unbroken.testing.env_oracle"), function)
    assert list(options(found, POSITIONAL)) == positional
    assert options(found, KEYWORD) == keyword


def test_settings_and_their_defaults() -> None:
    assert options(unbroken.Settings, KEYWORD) == {"root": "required", **SETTINGS}
    assert options(unbroken.Settings, POSITIONAL) == {}


def test_a_run_takes_every_setting_under_the_same_name_and_default() -> None:
    assert options(unbroken.Run, POSITIONAL) == {"root": "None"}
    assert options(unbroken.Run, KEYWORD) == {**SETTINGS, "world": "None", "quiet": "False"}


@pytest.mark.parametrize(
    ("face", "without"),
    [
        ("sb3.CheckpointCallback", {"job"}),
        ("rllib.checkpoints", set()),
        ("lightning.CheckpointCallback", set()),
        ("tune.start", {"job", "resume"}),
        ("tune.Trainable.start", {"job", "resume"}),
        ("ray_train.start", {"resume"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_face_shows_every_setting_with_its_default(face: str, without: set[str]) -> None:
    module, *path = face.split(".")
    pytest.importorskip({"sb3": "stable_baselines3", "lightning": "lightning"}.get(module, "ray"))
    found: object = importlib.import_module(f"unbroken.{module}")
    for name in path:
        found = getattr(found, name)
    assert callable(found)
    shown = options(found, KEYWORD)
    wanted = {name: default for name, default in SETTINGS.items() if name not in without}
    assert {name: shown.get(name) for name in wanted} == wanted
    assert shown.keys() & without == set()


def test_a_buffer_takes_its_size_and_its_fields() -> None:
    assert options(unbroken.PrioritizedReplayBuffer, POSITIONAL) == {
        "capacity": "required", "fields": "required",
    }  # fmt: skip
    assert options(unbroken.PrioritizedReplayBuffer, KEYWORD) == {"alpha": "0.6", "epsilon": "1e-06"}


def test_rollouts_of_nemo_gym_take_these_options() -> None:
    from unbroken.nemo_gym import Gym, RolloutQueue, Servers, checkpointed

    assert options(Servers, POSITIONAL) == {"config": "required"}
    assert options(Servers, KEYWORD) == {
        "directory": "required", "python": "None", "project": "None", "external": "nothing", "head": "False",
        "restarts": "5", "window": "300.0", "start_timeout": "300.0", "preload": "False", "environment": "None",
    }  # fmt: skip
    assert options(Gym, POSITIONAL) == {"servers": "required"}
    assert options(Gym, KEYWORD) == {
        "agent": "''", "sync_timeout": "300.0", "concurrency": "64", "max_attempts": "3", "patience": "600.0",
        "token": "None",
    }  # fmt: skip
    assert options(RolloutQueue, POSITIONAL) == {"gym": "required", "rows": "required"}
    assert options(RolloutQueue, KEYWORD) == {
        "samples": "1", "ahead": "0", "seed": "0", "epochs": "1", "agent": "''",
    }  # fmt: skip
    assert options(checkpointed, POSITIONAL) == {"cls": "required"}
    assert options(checkpointed, KEYWORD) == {
        "directory": "None", "capability": "None", "exclude": "nothing", "log_states": "False",
        "retire_after_verify": "False",
    }  # fmt: skip


def test_an_interval_and_the_best() -> None:
    names = ("steps", "seconds", "episodes", "max_loss", "max_overhead")
    assert options(unbroken.Every, KEYWORD) == dict.fromkeys(names, "None")
    assert options(unbroken.Every, POSITIONAL) == {}
    assert options(unbroken.Best, POSITIONAL) == {"metric": "required", "mode": "'max'"}


def test_an_engine_takes_its_source_and_its_settings() -> None:
    assert options(unbroken.CheckpointEngine, POSITIONAL) == {"source": "required", "settings": "required"}
    assert list(options(unbroken.CheckpointEngine, KEYWORD)) == [
        "segment", "rebuilder", "trial", "world", "finders", "clock", "now", "environment",
    ]  # fmt: skip


def test_the_callback_is_called_as_the_one_of_stable_baselines3_and_takes_every_setting() -> None:
    callbacks = pytest.importorskip("stable_baselines3.common.callbacks")
    from unbroken.sb3 import CheckpointCallback

    theirs = list(inspect.signature(callbacks.CheckpointCallback).parameters)
    assert list(options(CheckpointCallback, POSITIONAL)) == theirs
    # Its `save_path` is the root, its `name_prefix` the job.
    assert options(CheckpointCallback, KEYWORD).keys() - {"config", "warm_up"} == SETTINGS.keys() - {"job"}


def test_options_are_given_by_keyword() -> None:
    for cls in (unbroken.Run, unbroken.CheckpointEngine, unbroken.Every, unbroken.Settings):
        positional = [
            p.name
            for p in inspect.signature(cls).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty and p.name != "root"
        ]
        assert positional == [], cls


def test_all_errors_have_one_base_and_a_next_step() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert all(issubclass(c, unbroken.UnbrokenError) for c in classes)
    error = errors.RunBusy("Somebody is here.", hint="Wait.")
    assert (str(error), error.hint) == ("Somebody is here. Wait.", "Wait.")


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    script = "import sys, unbroken; print(sorted(m for m in sys.modules if m.startswith('unbroken.') or m == 'numpy'))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
