"""What a measuring process is asked for, and what it answers. Plain records; they travel as JSON.

A row that went wrong carries `failure`; it is shown with the others and never left out.
"""

from __future__ import annotations

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything a run measures."""

    frame_rows: int
    """Rows of the frame buffer; each is 28,224 bytes of observation."""
    growth: int
    """The grown frame buffer has so many times the rows, and the same number of new ones between saves."""
    vector_rows: int
    """Rows of the buffer of float32 vectors."""
    layers: int
    width: int
    """The model without a buffer: so many square layers of this width."""
    saves: int
    """Counted saves of ours, back to back; each is half of a pair, so they are many."""
    peer_saves: int
    """Counted saves of the others."""
    idle_saves: int
    """Counted saves after `idle_seconds` of idleness."""
    idle_seconds: float
    loads: int
    """Counted loads with a warm page cache, and with a cold one."""
    store_saves: int
    """Saves of the growing run whose store is measured."""
    training_seconds: float
    """Length of one training of the slow-down."""
    training_interval: float
    """Seconds between its saves."""
    trainings: int
    """Trainings with saves, and as many without, in turn."""
    rank_bytes: int
    """Bytes of the array that each of several ranks saves."""
    rank_saves: int
    """Counted saves of each world of ranks."""
    counters: int
    """Sessions of NeMo Gym's counter, and how many of them change between two saves."""
    changed_counters: int
    workplaces: int
    """The same for its workplace assistant."""
    changed_workplaces: int
    gym_series: int
    """Full saves of each, with sessions that have all changed."""
    gym_saves: int
    """Saves after each of them, with the few sessions changed."""
    gym_blocks: int
    """Blocks of calls with the log, and as many without, in turn."""
    gym_calls: int
    """Calls of one block."""
    threads: int
    """Threads that PyTorch computes with."""


FULL = Sizes(
    frame_rows=20_000,
    growth=8,
    vector_rows=1_000_000,
    layers=20,
    width=2048,
    saves=7,
    peer_saves=3,
    idle_saves=2,
    idle_seconds=6.0,
    loads=3,
    store_saves=100,
    training_seconds=65.0,
    training_interval=30.0,
    trainings=2,
    rank_bytes=64_000_000,
    rank_saves=4,
    counters=10_000,
    changed_counters=100,
    workplaces=64,
    changed_workplaces=1,
    gym_series=2,
    gym_saves=5,
    gym_blocks=20,
    gym_calls=80,
    threads=2,
)
QUICK = Sizes(
    frame_rows=400,
    growth=2,
    vector_rows=5_000,
    layers=2,
    width=256,
    saves=1,
    peer_saves=1,
    idle_saves=1,
    idle_seconds=0.1,
    loads=1,
    store_saves=5,
    training_seconds=1.0,
    training_interval=0.4,
    trainings=1,
    rank_bytes=100_000,
    rank_saves=2,
    counters=50,
    changed_counters=5,
    workplaces=3,
    changed_workplaces=1,
    gym_series=1,
    gym_saves=1,
    gym_blocks=1,
    gym_calls=20,
    threads=1,
)


class SaveJob(msgspec.Struct, frozen=True, tag="save"):
    """Save a workload again and again with one contender."""

    workload: str
    contender: str
    idle: bool = True
    """Whether to save after idleness too."""


class RestoreJob(msgspec.Struct, frozen=True, tag="restore"):
    """Bring a workload back again and again with one contender."""

    workload: str
    contender: str


class StoreJob(msgspec.Struct, frozen=True, tag="store"):
    """Save a growing run many times, prune, and weigh the store."""


class TrainingJob(msgspec.Struct, frozen=True, tag="training"):
    """Train with and without saves, in turn."""


class RanksJob(msgspec.Struct, frozen=True, tag="ranks"):
    """Save with 1, 2, 4 and 8 ranks."""


class GymJob(msgspec.Struct, frozen=True, tag="gym"):
    """Save and restore sessions of NeMo Gym, and call its servers with a log and without."""


Job = SaveJob | RestoreJob | StoreJob | TrainingJob | RanksJob | GymJob


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the machine needs for what a save changed, measured just before that save."""

    copy: float
    """Copy into touched memory, one thread."""
    copy_two: float
    """The same, two threads."""
    buffered: float
    """Write through the page cache, fsync of file and directory."""
    direct: float | None
    """Write with O_DIRECT in blocks of 8 MiB, fsync; None where the file system has no O_DIRECT."""


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """One save."""

    blocked: float
    """Seconds until training may go on and overwrite its memory."""
    durable: float
    """Seconds until every file is fsync'd."""
    written: int
    """Bytes of the files that it left."""
    on_top: int
    """Highest memory of the process while it went on, above what training alone had."""
    limits: Limits | None = None


class SaveRow(msgspec.Struct, frozen=True, kw_only=True, tag="save"):
    """All saves of a workload by one contender."""

    workload: str
    contender: str
    first: Save | None = None
    """The first save of the process: everything, into an empty directory."""
    back_to_back: list[Save] = []
    after_idle: list[Save] = []
    state: int = 0
    """Bytes of the whole state."""
    changed: int = 0
    """Bytes that change between two saves."""
    compressed: int = 0
    """The same, each array compressed by zstd (level 3); 0 where it was not measured."""
    parts: dict[str, float] = {}
    """Seconds of what a save consists of, where a contender can tell."""
    verified: bool = False
    """Whether what was loaded equals what was saved, although training went on while it was written."""
    failure: str = ""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, and the same number of bytes read from one file just before it."""

    seconds: float
    fresh: float | None = None
    """Read into memory that was not touched yet."""
    touched: float | None = None
    """Read into memory in use."""


class RestoreRow(msgspec.Struct, frozen=True, kw_only=True, tag="restore"):
    """All loads of a workload by one contender."""

    workload: str
    contender: str
    warm: list[Load] = []
    cold: list[Load] = []
    state: int = 0
    stored: int = 0
    resident: int = 0
    """Bytes of the files that stayed in the page cache after it was dropped; 0 if it was cold."""
    verified: bool = False
    failure: str = ""


class StoreRow(msgspec.Struct, frozen=True, kw_only=True, tag="store"):
    """The store of a run that grew."""

    saves: int = 0
    size: int = 0
    """Bytes of all files after the last save."""
    pruned: int | None = None
    """The same after `unbroken prune`; None where there is no such command."""
    live: int = 0
    """Stored bytes of the blobs that the kept checkpoints name, and their other files."""
    verified: bool = False
    failure: str = ""


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True, tag="training"):
    """Trainings with and without saves. The first and the last save of each are outside the clock."""

    steps: int = 0
    plain: list[float] = []
    saving: list[float] = []
    """Seconds of the same number of steps."""
    saves: list[int] = []
    """Saves in each of those with saves."""
    blocked: list[float] = []
    """Seconds that each of those saves stopped the training, as the checkpoints tell."""
    verified: bool = False
    """Whether the trainings ended with the same weights: saving has not touched them."""
    failure: str = ""


class RankedSave(msgspec.Struct, frozen=True, kw_only=True):
    """One save of one rank."""

    blocked: float
    durable: float
    """Seconds until the checkpoint of all ranks is committed."""
    written: int
    """Bytes of the packs that this rank has written."""
    own: float
    """Of rank 0: seconds until the commit beside its own part and waiting for others."""
    tidying: float
    """Of rank 0: seconds after the commit, for what need not stay. No rank waits for them."""


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """All saves of one rank."""

    saves: list[RankedSave]
    verified: bool
    """Whether what was loaded equals what was saved."""


class WorldRow(msgspec.Struct, frozen=True, kw_only=True):
    """The saves of a number of ranks."""

    size: int
    ranks: list[Ranked]


class RanksRow(msgspec.Struct, frozen=True, kw_only=True, tag="ranks"):
    """Saves of several ranks on one machine."""

    nbytes: int = 0
    worlds: list[WorldRow] = []
    verified: bool = False
    failure: str = ""


class GymSave(msgspec.Struct, frozen=True, kw_only=True):
    """One save of a run that tracks servers of NeMo Gym."""

    paused: float
    """Seconds from telling the server to stop until it has said that it goes on."""
    blocked: float
    durable: float
    written: int
    """Bytes of the files that it left."""


class GymSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A save of all sessions, which have all changed, and those after it, for which a few have changed."""

    full: GymSave
    later: list[GymSave]


class GymServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The saves of one server's sessions."""

    name: str
    sessions: int
    changed: int
    series: list[GymSeries]
    from_log: float
    """Seconds until a server that was killed has its sessions back from its own log, once it is started."""
    from_checkpoint: float
    """Seconds until a run that is started again has put them into a server that has lost its log."""
    verified: bool
    """Whether each session had the digest of before, both times."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one server without a log and with it, in turn: medians of blocks, in seconds."""

    connections: int
    rest: float
    """Seconds that each client rests between two calls."""
    plain: list[float]
    logged: list[float]


class GymRow(msgspec.Struct, frozen=True, kw_only=True, tag="gym"):
    """Sessions of NeMo Gym."""

    calls: list[Calls] = []
    servers: list[GymServerRow] = []
    versions: dict[str, str] = {}
    """Of its own environment."""
    verified: bool = False
    failure: str = ""


Row = SaveRow | RestoreRow | StoreRow | TrainingRow | RanksRow | GymRow


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    cpu: str
    cores: int
    memory: int
    kernel: str
    file_system: str
    versions: dict[str, str]


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that were measured after the others, and put in the place of their former ones."""

    parts: list[str]
    command: str
    date: str
    commit: str
    seconds: float
    load_before: float
    load_after: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmarks."""

    command: str
    date: str
    seconds: float
    load_before: float
    load_after: float
    quick: bool
    sizes: Sizes
    machine: Machine
    rows: list[Row]
    commit: str = ""
    """Of the source; "" where it is not known."""
    later: list[Later] = []
