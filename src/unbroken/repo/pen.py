"""What passes from one writer of a run to the next.

Invariant: only one has it at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.format.manifest import DocumentFormat
from unbroken.repo import fencing
from unbroken.repo.process import Process
from unbroken.types import Digest, Sequence


@dataclass(frozen=True, slots=True)
class Pen:
    """What it takes to write checkpoints under a claim: handed from one `CheckpointWriter` to the next.

    Only one may have it at a time. `first` is the least number that its next commit may get.
    """

    claim: fencing.Claim
    owner: Process
    first: Sequence
    document_format: DocumentFormat
    births: set[Digest]
    """Birth documents that are kept whether or not a commit names them; shared with who writes them."""
    suspect: set[str]
    """Blobs that were found damaged, and are written anew; shared with who finds them."""
    condemned: set[str] = field(default_factory=set[str])
    """Packs whose deletion was begun, in this epoch: a store may carry it out later than it says."""
