"""Run by test_pythons.py in environments without any framework: tells what is in the newest checkpoint below a root, as JSON.

The digest is over every value and every byte of every array, in the words of the document, which no Python has a say in.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from unbroken.repo.opaque import opaque_places
from unbroken.repo.repository import Repository
from unbroken.state.nodes import Function
from unbroken.state.places import visit


def main() -> None:
    root = Path(sys.argv[1])
    (job,) = (path.name for path in root.iterdir() if path.is_dir())
    repository = Repository.open(root, job)
    snapshot = repository.load(repository.commits()[0])
    digest = hashlib.sha256()
    functions: list[str] = []
    pickles: list[str] = []
    for name, component in sorted(snapshot.components.items()):
        pickles += opaque_places(component.roots)
        for place, value in sorted(component.roots.items()):
            digest.update(f"{name} {place} {value!r}".encode())
            functions += [at for at, node in visit(place, value) if isinstance(node, Function)]
        for number in range(len(component.blobs)):
            digest.update(bytes(component.content(number)))
    told = {
        "python": "{}.{}".format(*sys.version_info),
        "digest": digest.hexdigest(),
        "functions": sorted(functions),
        "pickles": pickles,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
