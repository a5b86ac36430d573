"""A training goes back to an older checkpoint while its servers go on from their logs: nothing of the future it leaves is used."""

from __future__ import annotations

from pathlib import Path

from tests.nemo_gym.test_whole_tree import finish, model_calls
from tests.nemo_gym.whole_training import ADDS

BACK_TO = 2


def test_what_comes_after_the_older_checkpoint_is_made_anew_under_other_ids(tmp_path: Path) -> None:
    first, _ = finish(tmp_path)
    before = len(model_calls(tmp_path))
    again, said = finish(tmp_path, f"resume={BACK_TO}")
    assert "the training leaves what it had begun after this checkpoint" in said
    assert again["weight"] == first["weight"]
    assert [rest for _, *rest in again["trained"]] == [rest for _, *rest in first["trained"]]
    kept, new = again["trained"][: 2 * BACK_TO], again["trained"][2 * BACK_TO :]
    assert kept == first["trained"][: 2 * BACK_TO]
    timeline = new[0][0].partition(".")[0]
    assert [name for name, *_ in new] == [
        f"{timeline}.{name}" for name, *_ in first["trained"][2 * BACK_TO :]
    ]
    turns = [turn for adds in ADDS[BACK_TO:] for turn in range(adds + 2)] * 2
    assert sorted(model_calls(tmp_path)[before:]) == sorted(turns)
