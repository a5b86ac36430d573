"""What may stand in the configuration file: its sections and keys, with their types.

Invariant: every setting of a run is a key below `checkpoint`, under its own name; a key of another name that says the
same stands in `MEANS`. Numbers are numbers and flags are flags: "5" in quotes is none.

Not promised: that a value can be used. Settings check that themselves, whatever they come from.

Imported only where there is a file to be read: pydantic takes longer than everything else of an import.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)

Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Status = Annotated[int, Field(ge=1, le=255)]


class Interval(BaseModel):
    """An interval between saves; of several the one that ends first counts."""

    model_config = STRICT
    steps: Count | None = Field(None, description="Environment steps.")
    seconds: Positive | None = Field(None, description="Seconds of wall time.")
    episodes: Count | None = Field(None, description="Episodes that ended.")
    max_loss: Positive | str | None = Field(
        None, description='Work at risk: seconds, or a text such as "5min".'
    )
    max_overhead: Share | None = Field(
        None, description="Share of the time that saving may take, such as 0.02."
    )


class BestBy(BaseModel):
    """The checkpoint that is best by this metric stays."""

    model_config = STRICT
    metric: str = Field(description="Its name, as the training reports it.")
    mode: Literal["max", "min"] = Field("max", description="Whether more of it is better, or less.")


class Metrics(BaseModel):
    """Where metrics go."""

    model_config = STRICT
    port: int | None = Field(None, description="Port of an HTTP server for Prometheus.")
    address: str | None = Field(None, description="Address that the server listens on.")
    textfile: str | None = Field(None, description="File for the textfile collector of a node exporter.")
    tensorboard: str | None = Field(None, description="Directory for an event file.")


class Serialization(BaseModel):
    """How state becomes bytes."""

    model_config = STRICT
    format: Literal["json_pickle_hybrid", "messagepack"] | None = Field(
        None, description="json_pickle_hybrid: documents that people can read; messagepack: smaller ones."
    )
    compression: Literal["auto", "none", "zstd", "gzip"] | None = Field(None, description="The codec.")
    compression_level: Count | None = Field(None, description="Its level: zstd 1 to 22, gzip 1 to 9.")


class Distributed(BaseModel):
    """How several processes save together."""

    model_config = STRICT
    coordinator_rank: int | None = Field(None, description="Rank 0 is the coordinator; no other can be.")
    sync_timeout: Positive | None = Field(
        None, description="Seconds that one process may keep the others waiting."
    )
    incremental_save: bool | None = Field(
        None, description="Whether only new rows of buffers are captured; false: all of them at every save."
    )


class Recovery(BaseModel):
    """What happens at a start."""

    model_config = STRICT
    auto_resume: bool | None = Field(
        None, description="true: go on where there is a checkpoint; false: begin anew."
    )
    resume_if_exists: bool | None = Field(None, description="The same, under the name that NeMo gives it.")
    validate_state: bool | None = Field(
        None, description="Whether what was restored is read back and compared."
    )


class Checkpoint(BaseModel):
    """How a run is saved and resumed."""

    model_config = STRICT
    save_every_n_steps: Count | None = Field(None, description="Save when so many steps are done.")
    save_every_n_episodes: Count | None = Field(None, description="Save when so many episodes are done.")
    save_every_n_hours: Positive | None = Field(None, description="Save after so many hours.")
    storage_path: str | None = Field(
        None, description="The root: a directory or a URL. The run lies below it."
    )
    max_checkpoints: Count | None = Field(None, description="So many of the newest checkpoints stay.")
    checkpoint_format: Literal["ray_distributed", "local_filesystem"] | None = Field(
        None,
        description="ray_distributed: the root must be one that all workers see, an absolute path or a URL;"
        " local_filesystem: it must be a path.",
    )
    serialization: Serialization | None = None
    distributed: Distributed | None = None
    recovery: Recovery | None = None

    root: str | None = Field(None, description="The directory or URL below which the run lies.")
    job: str | None = Field(None, description="The name of the run below the root.")
    every: Count | Interval | str | None = Field(
        None, description='When to save: steps, a mapping, or a text such as "steps=1000,seconds=60".'
    )
    keep_last: Count | None = Field(None, description="So many of the newest checkpoints stay.")
    best: BestBy | str | None = Field(
        None,
        description="The best checkpoint by this metric stays too: metric:max, metric:min, or a mapping.",
    )
    resume: Literal["auto", "must", "never", "best"] | int | None = Field(
        None,
        description="auto: go on where there is a checkpoint; must: stop where there is none; never: begin anew;"
        " best: from the best one; or the step to go back to.",
    )
    worst_tier: Literal["newest", "older", "rebuilt", "fresh"] | None = Field(
        None,
        description="How far a start may fall: the newest checkpoint, an older one, one whose environments are"
        " rebuilt from the journal, a fresh start.",
    )
    strict: bool | None = Field(
        None, description="Whether a setting that was changed since the last start is an error."
    )
    allow_changed: list[str] | None = Field(
        None,
        description="What may differ from the checkpoint although it should not, such as n_envs; the run is not exact then.",
    )
    trust: bool | list[str] | None = Field(
        None,
        description="Whether pickled parts without a valid signature are loaded; or the classes, as module.Class, that may be in them.",
    )
    keep_first: bool | None = Field(None, description="Whether the checkpoint of step 0 stays.")
    document_format: Literal["json", "msgpack"] | None = Field(
        None, description="Of documents: json, which people can read, or msgpack, which is smaller."
    )
    staging: int | None = Field(
        None,
        description="Bytes that the copy of a snapshot may take in memory; default: half of what is free.",
    )
    writer: Literal["thread", "process"] | None = Field(
        None,
        description="What writes checkpoints: a thread, or a process that a kill of the training does not stop.",
    )
    grace: float | None = Field(
        None, description="Seconds that a save that is asked for may wait for its clean point."
    )
    signals: list[str] | None = Field(None, description="On these the run saves and its process ends.")
    exit_code: Status | None = Field(
        None, description="Exit status of a process that was told to end and has saved."
    )
    mirror: str | None = Field(
        None, description="A second root, a directory or a URL, to which checkpoints are copied."
    )
    mirror_keep_last: Count | None = Field(None, description="So many of the newest stay in the mirror.")
    monitoring: Metrics | str | None = Field(None, description='Where metrics go: "port=9109", or a mapping.')
    trackers: list[str] | None = Field(
        None,
        description="In which trackers checkpoints and restarts are marked: tensorboard, wandb, mlflow; those in use.",
    )
    journal: bool | None = Field(
        None,
        description="Whether actions since the last reset are kept, so that environments can be rebuilt.",
    )
    compression: Literal["auto", "none", "zstd", "gzip"] | None = Field(
        None, description="Codec of what is written; auto: zstd, on a local disk only where that is quicker."
    )
    compression_level: Count | None = Field(
        None, description="Level of the codec: zstd 1 to 22, gzip 1 to 9."
    )
    incremental: bool | None = Field(None, description="Whether only new rows of buffers are captured.")
    validate_: bool | None = Field(
        None, alias="validate", description="Whether what was restored is read back and compared."
    )
    sync_timeout: Positive | None = Field(
        None,
        description="Seconds that one process may keep the others waiting in a save; default: what the world says.",
    )


class File(BaseModel):
    """The configuration file of Unbroken."""

    model_config = STRICT
    checkpoint: Checkpoint | None = None


def schema() -> dict[str, object]:
    """Return the JSON Schema of the file."""
    made = File.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
