"""The configuration file reaches every face: what the script leaves out, the file says."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository

FILE = """\
checkpoint:
  storage_path: filed
  job: mine
  save_every_n_steps: 16
  max_checkpoints: 2
  signals: []
"""


@pytest.fixture(autouse=True)
def _in_a_directory_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("UNBROKEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("unbroken.yaml").write_text(FILE)


def test_a_callback_of_stable_baselines3_may_leave_everything_to_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO

    from unbroken.sb3 import CheckpointCallback

    PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0).learn(
        64, callback=CheckpointCallback()
    )
    commits = Repository.open("filed", "mine").commits()
    assert (len(commits), commits[0].step) == (2, 64)
    assert " · settings from unbroken.yaml · " in capsys.readouterr().err


def test_what_a_callback_of_stable_baselines3_is_given_wins(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO

    from unbroken.sb3 import CheckpointCallback

    callback = CheckpointCallback(10_000, "coded", "named", keep_last=7)
    PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0).learn(64, callback=callback)
    assert [commit.step for commit in Repository.open("coded", "named").commits()] == [64, 0]
    assert not Path("filed").exists()
    with pytest.raises(ConfigError, match="CheckpointCallback has no option 'keep_lst'"):
        CheckpointCallback(10, "coded", keep_lst=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_what_rllib_is_given_in_the_driver_holds_where_the_algorithm_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from unbroken.rllib import checkpoints

    settings = checkpoints(keep_last=4).settings
    assert settings is not None
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    found = pickle.loads(pickle.dumps(settings)).overridden({"UNBROKEN_EXIT_CODE": "9"})
    assert (found.root, found.job, found.keep_last, found.signals, found.exit_code) == (
        "filed",
        "mine",
        4,
        (),
        9,
    )
    assert found.origins["root"] == "unbroken.yaml:2"


def test_a_callback_of_lightning_may_leave_the_place_to_it() -> None:
    pytest.importorskip("lightning")
    from unbroken.lightning import CheckpointCallback

    found = CheckpointCallback(sync_timeout=7)._settings.overridden({})
    assert (found.root, found.job, found.keep_last, found.sync_timeout) == ("filed", "mine", 2, 7)
    with pytest.raises(ConfigError, match=r"no option 'resum'\. Did you mean resume\?"):
        CheckpointCallback(resum="auto")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_writer_of_sharded_models_takes_what_is_of_storage_and_nothing_else() -> None:
    pytest.importorskip("torch")
    from unbroken.dcp import StorageReader, StorageWriter

    found = StorageWriter(compression="gzip", keep_first=True).settings
    assert (found.root, found.keep_last, found.compression, found.keep_first) == ("filed", 2, "gzip", True)
    with pytest.raises(ConfigError, match="StorageWriter has no option 'every'"):
        StorageWriter("runs", every=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert StorageReader("coded").settings.root == "coded"


def test_outside_of_a_trial_a_mistyped_setting_is_named_before_anything_else() -> None:
    pytest.importorskip("ray")
    from unbroken import tune

    with pytest.raises(ConfigError, match=r"no setting 'evry'\. Did you mean every\?"):
        tune.start("/runs", config={}, evry=5)
