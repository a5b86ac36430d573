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
    steps: Count | None = None
    seconds: Positive | None = None
    episodes: Count | None = None
    max_loss: Positive | str | None = None
    max_overhead: Share | None = None


class BestBy(BaseModel):
    """The checkpoint that is best by this metric stays."""

    model_config = STRICT
    metric: str
    mode: Literal["max", "min"] = "max"


class Metrics(BaseModel):
    """Where metrics go."""

    model_config = STRICT
    port: int | None = None
    address: str | None = None
    textfile: str | None = None
    tensorboard: str | None = None


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

    root: str | None = None
    job: str | None = Field(None, description="The name of the run below the root.")
    every: Count | Interval | str | None = None
    keep_last: Count | None = None
    best: BestBy | str | None = Field(None, description="metric:max, metric:min, or a mapping.")
    resume: Literal["auto", "must", "never", "best"] | int | None = None
    worst_tier: Literal["newest", "older", "rebuilt", "fresh"] | None = None
    strict: bool | None = None
    allow_changed: list[str] | None = None
    trust: bool | list[str] | None = None
    keep_first: bool | None = None
    document_format: Literal["json", "msgpack"] | None = None
    staging: int | None = None
    writer: Literal["thread", "process"] | None = None
    grace: float | None = None
    signals: list[str] | None = None
    exit_code: Status | None = None
    mirror: str | None = None
    mirror_keep_last: Count | None = None
    monitoring: Metrics | str | None = None
    journal: bool | None = None
    compression: Literal["auto", "none", "zstd", "gzip"] | None = None
    compression_level: Count | None = None
    incremental: bool | None = None
    validate_: bool | None = Field(None, alias="validate")
    sync_timeout: Positive | None = None


class File(BaseModel):
    """The configuration file of Unbroken."""

    model_config = STRICT
    checkpoint: Checkpoint | None = None


def schema() -> dict[str, object]:
    """Return the JSON Schema of the file."""
    made = File.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
