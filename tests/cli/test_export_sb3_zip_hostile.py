"""export --to sb3-zip of documents that were made to harm: SB3's `load` opens pickles and calls what is in them.

Each document lies on disk in a run that a training has written; it was changed on the way there.
"""

from __future__ import annotations

import base64
import math
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.command import Answer, unbroken

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

from stable_baselines3 import PPO
from stable_baselines3.common.save_util import load_from_zip_file

from tests.adapters.sb3 import trainings
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.adapters.sb3.zip_file import place_of_model
from unbroken.adapters.sb3.zip_guard import class_of
from unbroken.sb3 import CheckpointCallback
from unbroken.state.nodes import Class, Coded, Dict, List, Object, Value
from unbroken.state.snapshot import Snapshot

PPO_S = "stable_baselines3.ppo.ppo:PPO"
POPEN = Class(q="subprocess:Popen")
BY_WAY_OF_A_MODULE = Class(q="stable_baselines3.common.buffers:psutil.subprocess.Popen")
OPENS_A_FILE = Class(q="stable_baselines3.common.logger:CSVOutputFormat")
RELU = Class(q="torch.nn.modules.activation:ReLU")

Change = Callable[[Object], None]


def run_of(folder: Path, change: Change) -> None:
    """Write a run whose checkpoints hold a changed model."""
    capture = TrainingSource.capture

    def changed(source: TrainingSource) -> Snapshot:
        saved = capture(source)
        place = place_of_model(saved)
        for component in saved.components.values():
            node = component.roots.get(place)
            if isinstance(node, Object):
                change(node)
        return saved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingSource, "capture", changed)
        model = trainings.ppo(policy_kwargs={"net_arch": [8]})
        model.learn(1, callback=CheckpointCallback(9999, str(folder / "run")))


def export(folder: Path) -> Answer:
    return unbroken("export", "run", "--to", "model.zip", "--force", "--json", cwd=folder)


def with_attributes(**values: Value) -> Change:
    def change(node: Object) -> None:
        node.a.update(values)

    return change


def with_policy(name: str, value: Value) -> Change:
    def change(node: Object) -> None:
        policy: Any = node.a["policy_kwargs"]
        policy.v[name] = value
        node.a["hint"] = BY_WAY_OF_A_MODULE

    return change


def called(name: str) -> Change:
    def change(node: Object) -> None:
        msgspec.structs.force_setattr(node, "c", name)

    return change


def payload(folder: str) -> str:
    """Return a pickle that makes a folder, as SB3's file has pickles."""

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.mkdir, (Path(folder),)

    return base64.b64encode(pickle.dumps(Harm())).decode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_policy("features_extractor_class", POPEN), "subprocess:Popen was saved"),
        (with_policy("features_extractor_class", BY_WAY_OF_A_MODULE), "Popen was saved"),
        (with_policy("features_extractor_class", OPENS_A_FILE), "CSVOutputFormat was saved"),
        (with_policy("features_extractor_class", RELU), "needs a class of features extractors"),
        (
            with_policy("activation_fn", Class(q="stable_baselines3.common.torch_layers:create_mlp")),
            "create_mlp was saved",
        ),
        (with_policy("activation_fn", Class(q="torch.optim.adam:Adam")), "needs a class of layers"),
        (with_policy("optimizer_class", RELU), "needs a class of optimizers"),
        (with_policy("optimizer_class", "Adam"), "policy_kwargs['optimizer_class'] is 'Adam'"),
        (with_policy(":serialized:", payload("harm")), "SB3 would take for a pickle of its own"),
        (
            with_policy("net_arch", Coded(k="iterator", c="builtins:map", v=List(v=[RELU, List(v=[1])]))),
            "holds policy_kwargs",
        ),
        (with_attributes(_setup_model=RELU), "_setup_model would stand in front of a method of PPO"),
        (with_attributes(learning_rate=RELU), "learning_rate is the class"),
        (with_attributes(learning_rate="boom"), "learning_rate is 'boom', and SB3 needs a number"),
        (
            with_attributes(
                clip_range=Object(c="stable_baselines3.common.utils:ConstantSchedule", a={"val": "0.2"})
            ),
            "clip_range is a ConstantSchedule",
        ),
        (with_attributes(rollout_buffer_class=RELU), "needs a class of buffers"),
        (with_attributes(policy_kwargs=5), "policy_kwargs is 5, and SB3 needs a dict"),
        (with_attributes(observation_space=5), "observation_space is 5, and SB3 needs a space"),
        (with_attributes(policy_class=5), "policy_class is 5, and SB3 needs a policy of PPO"),
        (with_attributes(policy_class=RELU), "needs a policy of PPO"),
        (with_attributes(gamma="much"), "gamma is 'much', and SB3 needs a number"),
        (with_attributes(num_timesteps="x"), "num_timesteps is 'x', and SB3 needs a number of steps"),
        (with_attributes(num_timesteps=None), "num_timesteps is None"),
        (with_attributes(num_timesteps=math.pi), "num_timesteps is 3.14"),
        (with_attributes(num_timesteps=-5), "num_timesteps is -5"),
        (
            called("stable_baselines3.common.base_class:BaseAlgorithm"),
            "no algorithm stable_baselines3.common",
        ),
        (called("stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm"), "no algorithm"),
        (called("stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm"), "no algorithm"),
        (called("stable_baselines3.ppo:PPO"), "no algorithm"),
        (called("stable_baselines3.\0:PPO"), "no algorithm"),
        (called("stable_baselines3.dqn.dqn:DQN"), "needs a policy of DQN"),
        (called("sb3_contrib.ars.ars:ARS"), "needs a policy of ARS"),
        (called("sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO"), "needs a policy of RecurrentPPO"),
    ],
)
def test_what_sb3_would_call_is_refused_before_anything_is_written(
    change: Change, says: str, tmp_path: Path
) -> None:
    run_of(tmp_path, change)
    (tmp_path / "model.zip").write_bytes(b"mine")
    answer = export(tmp_path)
    assert answer.code == 2, answer.err
    assert says in " ".join(answer.err.split())
    assert (tmp_path / "model.zip").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.zip", "run"]


def test_what_sb3_does_not_need_is_left_out(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    taken = {"text": "mine", ":serialized:": payload(str(harm))}
    run_of(
        tmp_path,
        with_attributes(
            taken=Dict(v=dict(taken)),
            called=Object(c="numpy:vectorize", a={"pyfunc": RELU}),
            hint=BY_WAY_OF_A_MODULE,
            logs=Object(c="stable_baselines3.common.logger:CSVOutputFormat", a={"keys": List(v=[])}),
            set_parameters=RELU,
            tensorboard_log=str(harm),
            start_time="now",
            plain=Dict(v={"text": "mine"}),
        ),
    )
    answer = export(tmp_path)
    assert answer.code == 0, answer.err
    out = {"taken", "called", "hint", "logs", "set_parameters"}
    assert out <= {one["what"] for one in answer.json["left"]}
    data, _, _ = load_from_zip_file(tmp_path / "model.zip", device="cpu")
    assert data is not None
    assert data["plain"] == {"text": "mine"}
    assert not out & data.keys()
    assert [data["tensorboard_log"], data["start_time"]] == [None, 0.0]
    assert PPO.load(tmp_path / "model.zip", device="cpu").num_timesteps == data["num_timesteps"]
    assert not harm.exists()


def test_what_leads_back_to_itself_is_refused_with_sb3_s_words(tmp_path: Path) -> None:
    model: Any = trainings.ppo()
    model.tag = {}
    model.tag["tag"] = model.tag
    model.learn(1, callback=CheckpointCallback(9999, str(tmp_path / "run")))
    answer = export(tmp_path)
    assert answer.code == 2
    assert "SB3 cannot write this model" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_name_vouches_for_the_class_that_says_it_of_itself() -> None:
    from stable_baselines3.common import buffers

    assert vars(buffers)["psutil"].subprocess.Popen is subprocess.Popen  # it can be reached
    for name in (
        BY_WAY_OF_A_MODULE.q,
        "stable_baselines3.common.policies:nn.Module",  # through a module
        "stable_baselines3.common.policies:BaseFeaturesExtractor",  # of another module
        "stable_baselines3.common.policies:BasePolicy.mro",  # a method
        "stable_baselines3.common.utils:set_random_seed",  # a function
        "stable_baselines3.common.logger:CSVOutputFormat",  # a class of no known kind
        "numpy:ndarray",
        "numpy:random.Generator",
        "torch.nn.modules.module:OrderedDict",
        "os:PathLike",
        "",
    ):
        assert class_of(name) is None
    for name in (
        "stable_baselines3.common.torch_layers:NatureCNN",
        "stable_baselines3.common.sb2_compat.rmsprop_tf_like:RMSpropTFLike",
        "sb3_contrib.common.recurrent.buffers:RecurrentRolloutBuffer",
        RELU.q,
        "torch.optim.adam:Adam",
        "gymnasium.spaces.box:Box",
        "numpy:float32",
    ):
        found: Any = class_of(name)
        assert f"{found.__module__}:{found.__qualname__}" == name
