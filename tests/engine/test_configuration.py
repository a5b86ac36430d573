"""`unbroken.yaml`: each key does what it says, or the file is refused with the line of the key."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

import unbroken
from unbroken.engine.configuration import model, names, variables
from unbroken.engine.configuration.effective import effective
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.options import OPTIONS, settings_of
from unbroken.engine.schedule import DEFAULT_EVERY, Every
from unbroken.engine.settings import Settings
from unbroken.engine.world import World, usual
from unbroken.errors import ConfigError
from unbroken.format.compression import BlobCodec, Compression
from unbroken.repo.retention import Best

SEED = """\
# checkpoint_config.yaml
checkpoint:
  save_every_n_steps: 1000
  save_every_n_episodes: 10
  save_every_n_hours: 1

  storage_path: "/shared/checkpoints/nemo_gym"
  max_checkpoints: 10
  checkpoint_format: "ray_distributed"

  serialization:
    format: "json_pickle_hybrid"
    compression: "zstd"
    compression_level: 3

  distributed:
    coordinator_rank: 0
    sync_timeout: 300
    incremental_save: true

  recovery:
    auto_resume: true
    resume_if_exists: true
    validate_state: true
"""
SETTINGS = ["root", "job", *sorted(OPTIONS)]


def under(path: Path, text: str, **variables: str) -> Settings:
    """Return the settings of a script that gives none, under a file of this text."""
    file = path / "unbroken.yaml"
    file.write_text(text)
    return effective({"UNBROKEN_CONFIG": str(file), **variables})


def test_the_file_of_the_paper_is_taken_as_it_stands(tmp_path: Path) -> None:
    settings = under(tmp_path, SEED)
    assert settings == Settings(
        root="/shared/checkpoints/nemo_gym",
        every=Every(steps=1000, episodes=10, seconds=3600),
        keep_last=10,
        document_format="json",
        compression="zstd",
        compression_level=3,
        sync_timeout=300,
        incremental=True,
        resume="auto",
        validate=True,
    )
    assert settings.codec == Compression(BlobCodec.ZSTD, 3, by_speed=False)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("save_every_n_steps: 500", {"every": Every(steps=500)}),
        ("save_every_n_episodes: 7", {"every": Every(episodes=7)}),
        ("save_every_n_hours: 0.5", {"every": Every(seconds=1800)}),
        ("storage_path: elsewhere", {"root": "elsewhere"}),
        ("max_checkpoints: 2", {"keep_last": 2}),
        ("checkpoint_format: local_filesystem", {}),
        ("serialization: {format: messagepack}", {"document_format": "msgpack"}),
        ("serialization: {compression: none}", {"compression": "none"}),
        ("serialization: {compression: gzip, compression_level: 9}", {"compression": "gzip", "compression_level": 9}),
        ("distributed: {coordinator_rank: 0}", {}),
        ("distributed: {sync_timeout: 20.5}", {"sync_timeout": 20.5}),
        ("distributed: {incremental_save: false}", {"incremental": False}),
        ("recovery: {auto_resume: false}", {"resume": "never"}),
        ("recovery: {resume_if_exists: false}", {"resume": "never"}),
        ("recovery: {validate_state: false}", {"validate": False}),
        ("root: elsewhere", {"root": "elsewhere"}),
        ("job: dqn", {"job": "dqn"}),
        ("every: 500", {"every": Every(steps=500)}),
        ("every: {max_loss: 1h, max_overhead: 0.5}", {"every": Every(max_loss="1h", max_overhead=0.5)}),
        ('every: "steps=5,seconds=6"', {"every": Every(steps=5, seconds=6)}),
        ("keep_last: 3", {"keep_last": 3}),
        ("best: loss:min", {"best": Best("loss", "min")}),
        ("best: {metric: eval/mean_reward}", {"best": Best("eval/mean_reward")}),
        ("resume: must", {"resume": "must"}),
        ("resume: 400", {"resume": 400}),
        ("worst_tier: older", {"worst_tier": "older"}),
        ("strict: true", {"strict": True}),
        ("allow_changed: [n_envs, gamma]", {"allow_changed": {"n_envs", "gamma"}}),
        ("trust: true", {"trust": True}),
        ("trust: [my.Class]", {"trust": {"my.Class"}}),
        ("keep_first: true", {"keep_first": True}),
        ("document_format: msgpack", {"document_format": "msgpack"}),
        ("staging: 4096", {"staging": 4096}),
        ("writer: process", {"writer": "process"}),
        ("grace: 2.5", {"grace": 2.5}),
        ("signals: [SIGTERM]", {"signals": ("SIGTERM",)}),
        ("signals: []", {"signals": ()}),
        ("exit_code: 3", {"exit_code": 3}),
        ("mirror: /backup", {"mirror": "/backup"}),
        ("mirror: none", {"mirror": ""}),
        ("best: none", {"best": None}),
        ("monitoring: none", {"monitoring": None}),
        ("mirror_keep_last: 9", {"mirror_keep_last": 9}),
        ("monitoring: {port: 9109}", {"monitoring": Monitoring(port=9109)}),
        ("monitoring: textfile=/m/run.prom", {"monitoring": Monitoring(textfile="/m/run.prom")}),
        ("journal: true", {"journal": True}),
        ("compression: gzip", {"compression": "gzip"}),
        ("compression_level: 7", {"compression_level": 7}),
        ("incremental: false", {"incremental": False}),
        ("validate: false", {"validate": False}),
        ("sync_timeout: 60", {"sync_timeout": 60}),
    ],
)  # fmt: skip
def test_each_key_says_its_setting(tmp_path: Path, key: str, changed: dict[str, object]) -> None:
    (tmp_path / "unbroken.yaml").write_text(f"checkpoint:\n  {key}\n")
    bare = Settings(root="runs")
    for name in changed:
        bare.forgotten(name)
    found = bare.overridden({"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")})
    assert found == replace(Settings(root="runs"), **changed)  # type: ignore[arg-type]
    for name in changed:
        assert found.origins[name] == f"{tmp_path}/unbroken.yaml:2"


def test_every_setting_has_a_key_of_its_name() -> None:
    keys = {field.alias or name for name, field in model.Checkpoint.model_fields.items()}
    assert keys >= set(SETTINGS)
    assert set(names.MEANS.values()) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("checkpoints: {}", 1, r"the file has no key 'checkpoints'\. Did you mean checkpoint\?"),
        ("checkpoint:\n  max_checkpoint: 3", 2, r"'max_checkpoint'\. Did you mean max_checkpoints\?"),
        ("checkpoint:\n  keep_lst: 3", 2, r"'keep_lst'\. Did you mean keep_last\?"),
        ("checkpoint:\n  xyzzy: 3", 2, r"There are: allow_changed, "),
        (
            "checkpoint:\n  serialization:\n    compresion: zstd",
            3,
            r"checkpoint.serialization has no key 'compresion'\. Did you mean compression\?",
        ),
        ("checkpoint:\n  recovery:\n    auto_resum: true", 3, r"Did you mean auto_resume\?"),
        ("checkpoint:\n  every:\n    step: 5", 3, r"Did you mean steps\?"),
        ("checkpoint:\n  max_checkpoints: '3'", 2, "max_checkpoints should be a valid integer, and '3' is not"),
        ("checkpoint:\n  max_checkpoints: 0", 2, "max_checkpoints should be greater than or equal to 1"),
        ("checkpoint:\n  max_checkpoints: true", 2, "max_checkpoints should be a valid integer"),
        ("checkpoint:\n  save_every_n_steps: many", 2, "save_every_n_steps should be a valid integer"),
        ("checkpoint:\n  save_every_n_hours: -1", 2, "save_every_n_hours should be greater than 0"),
        ("checkpoint:\n  serialization:\n    compression: lzma", 3, "should be 'auto', 'none', 'zstd' or 'gzip'"),
        ("checkpoint:\n  recovery:\n    auto_resume: 1", 3, "auto_resume should be a valid boolean"),
        ("checkpoint:\n  keep_last:", 2, "keep_last has no value"),
        ("checkpoint:\n  distributed:\n    coordinator_rank: 1", 3, "rank 1 cannot be the coordinator"),
        ("checkpoint:\n  storage_path: a\n  root: a", 3, "root and storage_path both say root"),
        ("checkpoint:\n  max_checkpoints: 3\n  keep_last: 3", 3, "keep_last and max_checkpoints both say"),
        ("checkpoint:\n  every: 5\n  save_every_n_steps: 5", 3, "save_every_n_steps and every both say every"),
        ("checkpoint:\n  keep_last: 3\n  keep_last: 4", 3, "keep_last stands here for the second time, first on line 2"),
        (
            "checkpoint:\n  recovery:\n    auto_resume: true\n    resume_if_exists: false",
            4,
            "auto_resume and resume_if_exists contradict each other",
        ),
        ("checkpoint:\n  recovery:\n    auto_resume: true\n  resume: must", 4, "both say resume"),
        ("checkpoint:\n  checkpoint_format: ray_distributed\n  storage_path: runs", 2, "each worker would"),
        (
            "checkpoint:\n  checkpoint_format: local_filesystem\n  storage_path: s3://bucket/runs",
            2,
            "local_filesystem, and the root is s3://bucket/runs",
        ),
        ("checkpoint:\n  serialization:\n    compression: gzip\n    compression_level: 12", None, "gzip has no level 12"),
        ("checkpoint:\n  compression: none\n  compression_level: 2", None, "has no compression_level"),
        ("checkpoint:\n  resume: best", 2, "needs a metric"),
        ("checkpoint:\n  job: ../up", 2, "up"),
        ("checkpoint:\n  monitoring: {}", 2, "no place"),
        ("checkpoint:\n  every: hours=2", 2, "is no interval"),
        ("checkpoint: [", 2, "is no YAML"),
        ("checkpoint:\n\tjob: a", 2, "is no YAML"),
        ("checkpoint: &a\n  every: *a", 2, "aliases have no place here"),
        ("checkpoint: !!python/object/apply:os.abort []", 1, "checkpoint should hold keys"),
        ("checkpoint:\n  job: !!python/name:os.abort", 2, "cannot be read"),
        ("- a", 1, "begins with"),
        ("checkpoint: 5", 1, "checkpoint should hold keys"),
        ("checkpoint:\n  every: 010", 2, "'010' is one number to one reader of YAML and another"),
        ("checkpoint:\n  every: -0_7", 2, "'-0_7' is one number to one reader"),
        ("checkpoint:\n  grace: 1:30", 2, "'1:30' is one number to one reader"),
        ("checkpoint:\n  grace: 1:30.5", 2, "'1:30.5' is one number to one reader"),
        ("checkpoint:\n  every: steps=5,steps=6", 2, "says steps twice"),
        ("checkpoint:\n  monitoring: port=1,port=2", 2, "says port twice"),
        ("checkpoint:\n  exit_code: 256", 2, "exit_code should be less than or equal to 255"),
        ("checkpoint:\n  exit_code: 0", 2, "exit_code should be greater than or equal to 1"),
        ("checkpoint:\n  every: 0x" + "f" * 5_000, 2, "every steps must be above zero and finite"),
        ("checkpoint:\n  every: {steps: 0x" + "f" * 5_000 + "}", 2, "every steps must be above zero"),
        ("checkpoint:\n  every: " + "9" * 5_000, 2, "9… cannot be read"),
        ("checkpoint:\n  grace: " + "9" * 400, 2, "grace"),
        ("checkpoint:\n  keep_last: 0x" + "f" * 5_000, 2, "keep_last"),
        ("checkpoint:\n  distributed: {coordinator_rank: 0x" + "f" * 5_000 + "}", 2, "cannot be the coordinator"),
        ("checkpoint: " + "[" * 5_000, 1, "nested too deeply"),
        ("checkpoint: " + "[\n" * 5_000, None, "nested too deeply"),
        ("checkpoint: " + "{a: " * 5_000, 1, "nested too deeply"),
        ("checkpoint:\n  " + "- " * 5_000, None, "nested too deeply"),
        ("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}", 1, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int | None, says: str
) -> None:
    where = f"{tmp_path}/unbroken.yaml" + ("" if line is None or "begins with" in says else f":{line}:")
    with pytest.raises(ConfigError, match=says) as raised:
        under(tmp_path, text + "\n")
    assert str(raised.value).startswith(where)
    assert raised.value.hint
    assert len(str(raised.value)) < len(str(tmp_path)) + 700


@pytest.mark.parametrize("text", ["", "# nothing\n", "checkpoint:\n", "checkpoint: {}\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    assert under(tmp_path, text) == Settings(root=".")


def test_a_file_that_is_named_and_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"UNBROKEN_CONFIG=.*there is no such file"):
        effective({"UNBROKEN_CONFIG": str(tmp_path / "none.yaml")})


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "unbroken.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"unbroken\.yaml cannot be read"):
        effective({"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")})
    with pytest.raises(ConfigError, match="cannot be read"):
        effective({"UNBROKEN_CONFIG": str(tmp_path)})


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long"):
        under(tmp_path, "# " + "x" * (1 << 16))


def test_a_pipe_or_a_folder_in_the_place_of_the_file_is_an_error_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("unbroken.yaml")
    with pytest.raises(ConfigError, match=r"^unbroken\.yaml cannot be read: it is no regular file"):
        effective({})
    with pytest.raises(ConfigError, match="it is no regular file"):
        effective({"UNBROKEN_CONFIG": "unbroken.yaml"})
    os.unlink("unbroken.yaml")
    Path("unbroken.yaml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"unbroken\.yaml cannot be read: .*No such file"):
        effective({})
    with pytest.raises(ConfigError, match="it is no regular file"):
        effective({"UNBROKEN_CONFIG": "/dev/zero"})


def test_the_file_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings(root="runs").overridden({}).keep_last == 5
    (tmp_path / "unbroken.yaml").write_text("checkpoint: {keep_last: 2}\n")
    found = Settings(root="runs").overridden({})
    assert (found.keep_last, found.config_file) == (2, "unbroken.yaml")
    assert found.says == ("settings from unbroken.yaml",)


FILE = "checkpoint: {keep_last: 2, strict: true, grace: 1.0, job: filed}\n"


def test_defaults_yield_to_the_file_the_file_to_code_and_code_to_the_environment(tmp_path: Path) -> None:
    (tmp_path / "unbroken.yaml").write_text(FILE)
    environment = {"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml"), "UNBROKEN_GRACE": "3"}
    found = Settings(root="runs", strict=False, grace=2.0).overridden(environment)
    assert (found.keep_first, found.keep_last, found.strict, found.grace) == (False, 2, False, 3.0)
    of = {
        name: found.origins[name].rpartition("/")[2]
        for name in ("keep_first", "keep_last", "strict", "grace")
    }
    assert of == {
        "keep_first": "default", "keep_last": "unbroken.yaml:1", "strict": "code", "grace": "UNBROKEN_GRACE",
    }  # fmt: skip


def test_what_is_given_in_code_wins_even_where_it_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "unbroken.yaml").write_text(FILE)
    environment = {"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")}
    assert Settings(root="runs", keep_last=5).overridden(environment).keep_last == 5
    assert Settings(root="runs").changed(keep_last=5).overridden(environment).keep_last == 5
    assert Settings(root="runs").changed(strict=False).overridden(environment).keep_last == 2


def test_settings_that_have_met_the_file_meet_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial asks the environment first, and its engine is given none."""
    (tmp_path / "unbroken.yaml").write_text(FILE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "unbroken.yaml").write_text("checkpoint: {keep_last: 9, keep_first: true}\n")
    found = Settings(root="runs").overridden({"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")})
    monkeypatch.chdir(tmp_path / "elsewhere")
    for settings in (found, pickle.loads(pickle.dumps(found)), found.changed(exit_code=3)):
        again = settings.overridden({"UNBROKEN_STAGING": "8"})
        assert (again.keep_last, again.keep_first, again.staging) == (2, False, 8)
        assert (again.origins["staging"], again.config_file) == (
            "UNBROKEN_STAGING",
            f"{tmp_path}/unbroken.yaml",
        )


def test_of_two_values_that_do_not_fit_both_are_blamed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unbroken\.yaml:2, UNBROKEN_COMPRESSION_LEVEL: gzip has no level 12"
    ):
        under(tmp_path, "checkpoint:\n  compression: gzip\n", UNBROKEN_COMPRESSION_LEVEL="12")


@pytest.mark.parametrize("variable", ["UNBROKEN_KEEP_LST", "UNBROKEN_ROOTS", "UNBROKEN_RESUM"])
def test_a_variable_with_nearly_the_name_of_a_setting_is_an_error(variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"{variable} is no setting\. Did you mean UNBROKEN_"):
        Settings(root="runs").overridden({variable: "1"})


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("UNBROKEN_MAX_CHECKPOINTS", "UNBROKEN_KEEP_LAST"),
        ("UNBROKEN_SAVE_EVERY_N_STEPS", "UNBROKEN_EVERY"),
        ("UNBROKEN_CHECKPOINT_SAVE_EVERY_N_HOURS", "UNBROKEN_EVERY"),
        ("UNBROKEN_STORAGE_PATH", "UNBROKEN_ROOT"),
        ("UNBROKEN_AUTO_RESUME", "UNBROKEN_RESUME"),
        ("UNBROKEN_RECOVERY_VALIDATE_STATE", "UNBROKEN_VALIDATE"),
        ("UNBROKEN_SERIALIZATION_COMPRESSION", "UNBROKEN_COMPRESSION"),
        ("UNBROKEN_SAVE_FREQ", "UNBROKEN_EVERY"),
    ],
)
def test_a_variable_with_the_files_name_of_a_setting_is_an_error_with_the_right_one(
    variable: str, right: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable} is no setting: .* Write {right}, or unset it\.$"):
        Settings(root="runs").overridden({variable: "1"})


@pytest.mark.parametrize("variable", ["UNBROKEN_CHECKPOINT_FORMAT", "UNBROKEN_COORDINATOR_RANK"])
def test_a_variable_for_what_only_the_file_can_say_is_an_error(variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable} is no setting: \w+ is a key of the file only"):
        Settings(root="runs").overridden({variable: "0"})


def test_every_variable_that_the_code_reads_is_a_setting_or_known_to_be_none() -> None:
    sources = [path.read_text() for path in Path(unbroken.__file__).parent.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"UNBROKEN_([A-Z_]+)"', text)}
    assert {"KEY", "TAKE_OVER"} <= named
    assert named - {name.upper() for name in SETTINGS} <= variables.OTHERS


@pytest.mark.parametrize(
    ("name", "text", "nothing"),
    [
        ("mirror", "/backup", ""),
        ("monitoring", "port=9109", None),
        ("best", "loss:min", None),
        ("staging", "4096", None),
        ("compression_level", "7", None),
        ("sync_timeout", "60", None),
        ("allow_changed", "[gamma]", frozenset[str]()),
        ("trust", "[my.Class]", False),
        ("signals", "[SIGUSR1]", ()),
    ],
)
def test_a_variable_switches_off_what_the_file_has_set(
    tmp_path: Path, name: str, text: str, nothing: object
) -> None:
    file = f"checkpoint:\n  {name}: {text}\n"
    assert getattr(under(tmp_path, file), name) != nothing
    found = under(tmp_path, file, **{f"UNBROKEN_{name.upper()}": "none"})
    assert getattr(found, name) == nothing
    assert found.origins[name] == f"UNBROKEN_{name.upper()}"


def test_every_setting_that_can_be_nothing_can_be_switched_off() -> None:
    bare = Settings(root="runs")
    nothing = {name for name in SETTINGS if getattr(bare, name) in (None, "", (), frozenset())}
    assert nothing <= variables.OFF.keys()


def test_an_interval_that_is_a_time_is_answered_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unbroken\.yaml:2: '5min' is not .* \{max_loss: 5min\}"):
        under(tmp_path, "checkpoint:\n  every: 5min\n")
    with pytest.raises(ConfigError, match=r"Write seconds=300\."):
        Settings(root="runs", every="seconds=5min")


def test_a_variable_of_something_else_is_left_alone() -> None:
    settings = Settings(root="runs")
    others = {
        "UNBROKEN_KEY": "k",
        "UNBROKEN_STATE_DIR": "d",
        "UNBROKEN_GYM_DIR": "g",
        "UNBROKEN_TEST_WAIT": "1",
    }
    assert settings.overridden(others) is settings


def test_a_script_may_leave_the_root_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNBROKEN_ROOT", raising=False)
    with pytest.raises(ConfigError, match="Run is not told where the run lies"):
        unbroken.Run()
    (tmp_path / "unbroken.yaml").write_text("checkpoint: {storage_path: filed/runs}\n")
    found = unbroken.Run(keep_last=2).settings.overridden({})
    assert (found.root, found.job, found.keep_last) == ("filed/runs", "runs", 2)
    assert (found.origins["root"], found.origins["keep_last"]) == ("unbroken.yaml:1", "code")
    assert settings_of("Run", "coded", {}).overridden({}).root == "coded"


@pytest.mark.parametrize(
    ("text", "given", "variables", "seconds"),
    [
        ("checkpoint: {}", {}, {}, 300.0),
        ("checkpoint: {distributed: {sync_timeout: 20}}", {}, {}, 20.0),
        ("checkpoint: {distributed: {sync_timeout: 20}}", {"sync_timeout": 40.0}, {}, 40.0),
        ("checkpoint: {distributed: {sync_timeout: 20}}", {"sync_timeout": 40.0}, {"UNBROKEN_SYNC_TIMEOUT": "60"}, 60.0),
    ],
)  # fmt: skip
def test_the_time_that_ranks_wait_follows_file_code_and_environment(
    tmp_path: Path, text: str, given: Mapping[str, float], variables: Mapping[str, str], seconds: float
) -> None:
    settings = under(tmp_path, text + "\n", **variables)
    world = usual(replace(World(rank=1, size=2), **given), settings)  # type: ignore[arg-type]
    assert world is not None
    assert (world.sync_timeout, world.ranks.sync_timeout) == (seconds, seconds)


def test_the_schema_that_is_shipped_is_of_this_file() -> None:
    shipped = Path(__file__).parents[2] / "schema" / "unbroken-config-1.json"
    assert json.loads(shipped.read_text()) == model.schema()


def test_the_schema_says_of_a_file_what_the_reader_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    check = jsonschema.Draft202012Validator(model.schema())
    assert check.is_valid(yaml.safe_load(SEED))
    assert not check.is_valid({"checkpoint": {"max_checkpoint": 3}})
    assert not check.is_valid({"checkpoint": {"max_checkpoints": "3"}})


def test_nothing_is_imported_for_the_file_where_there_is_none(tmp_path: Path) -> None:
    script = (
        "import sys, unbroken; s = unbroken.Settings(root='r').overridden({}); assert s.every is not None;"
        " print([m for m in ('pydantic', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert Settings(root="r").interval == DEFAULT_EVERY


WORDS = st.sampled_from([
    "checkpoint:", "  every:", "    steps: 5", "  keep_last: 3", "  best: a:min", "  serialization:", "    compression: zstd",
    "  root: !!binary aGk=", "  job: 2020-99-99", "  trust: [a.B]", "  staging: 0x10", "  grace: .nan", "  sync_timeout: .inf",
    "  save_every_n_hours: 1.0e+308", "  ? [a]", "  <<: {a: 1}", "  resume: ~", "  exit_code: " + "9" * 5000, "  mirror: |", "\t",
    "  monitoring: {port: 99999}", "  every: {max_loss: soon}", "&a", "*a", "---", "...", "%YAML 9.9", "  strict: yes", "{", "[", "'", "\x00",
    "  allow_changed: !!set {a, b}", "  signals: [SIGKILL]", "  writer: [thread]", "  recovery: {auto_resume: no}",
])  # fmt: skip


@given(st.one_of(st.lists(WORDS, max_size=12).map("\n".join), st.text(max_size=200)))
@trying(max_examples=150, deadline=None, derandomize=True)
def test_whatever_stands_in_a_file_it_is_settings_or_one_error(text: str) -> None:
    bare = Settings(root="runs")
    bare.forgotten("root")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "unbroken.yaml")
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        says = str(file)
        try:
            found = bare.overridden({"UNBROKEN_CONFIG": str(file)}).config_file
        except ConfigError as error:
            found = str(error)
    assert says in found


def test_a_long_value_does_not_fill_the_screen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        under(tmp_path, "checkpoint:\n  keep_last: " + "x" * 10_000 + "\n")
    assert len(str(raised.value)) < 400
