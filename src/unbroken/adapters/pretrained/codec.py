"""How a walk writes a `Pretrained`, and how its weights come back into the live model.

Tensors are written like any others, so that chunks that did not change are not stored twice. In a restore
they are checked against the live model by name, type and shape before anything is written.

Not promised: configuration files. The program's own stay, since they are how it was built; which of them are
other than the checkpoint's is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from unbroken.adapters.pretrained.layout import Layout
from unbroken.adapters.pretrained.names import CODEC, PREFIX
from unbroken.adapters.pretrained.tracked import Pretrained
from unbroken.capture.memory import fill
from unbroken.capture.torch import tensor_table
from unbroken.state.nodes import Bytes, Dict, Tuple, Value, class_name
from unbroken.state.policy import Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class PretrainedCodec:
    """`Pretrained`. The payload holds each tensor, which file it stands in, and the other files."""

    name = CODEC
    mutable = True

    def encode(self, value: Pretrained, walk: Walk) -> Value:
        layout = value.written()
        left_out = _left_out(value, layout)
        if left_out:
            walk.note("not captured", f"save_pretrained leaves out {', '.join(left_out)}.")
        fields: dict[str, Value] = {
            "layout": Dict(
                v={
                    name: Dict(
                        v={"tensors": Tuple(v=[*file.tensors]), "metadata": Dict(v=dict(file.metadata))}
                    )
                    for name, file in layout.weights.items()
                }
            ),
            "files": walk.child("files", layout.files),
        }
        for name, tensor in layout.tensors.items():
            fields[PREFIX + name] = walk.child(PREFIX + name, tensor)
        return Dict(v=fields)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        if not isinstance(twin, Pretrained) or class_name(type(twin)) != cls or not graft.claim(twin):
            return graft.refuse("what save_pretrained wrote was saved, and the program has none here.", twin)
        graft.register(twin)
        files = contents(fields.get("files"), graft)
        # As they were written by the walk over the program, a moment ago.
        other = sorted(n for n in {*files, *twin.files} if files.get(n) != twin.files.get(n))
        if other:
            graft.note_at("files", "changed", f"{', '.join(other)}: the program's own stay.")
        self._weights(fields, twin, graft)
        return twin

    def _weights(self, fields: dict[str, Value], twin: Pretrained, graft: Graft) -> None:
        saved = {key.removeprefix(PREFIX): key for key in fields if key.startswith(PREFIX)}
        live: dict[str, Any] = dict(tensor_table(twin.module)) if twin.module is not None else {}
        if missing := sorted(saved.keys() - live.keys()):
            graft.error(f"{_few(missing)} was saved, and the program's model has no such tensor.")
        covered = {_memory(live[name]) for name in saved if name in live}
        unknown = sorted(
            name
            for name, tensor in live.items()
            if name not in saved and isinstance(tensor, torch.nn.Parameter) and _memory(tensor) not in covered
        )
        if unknown and saved:
            graft.error(f"{_few(unknown)} of the program's model was not saved.")
        for name, key in saved.items():
            if name not in live:
                continue
            found, target = graft.value(key, fields[key]), live[name].detach()
            if not isinstance(found, torch.Tensor) or _form(found) != _form(target):
                kind = _form(found) if isinstance(found, torch.Tensor) else "no tensor"
                graft.note_at(key, "error", f"{kind} was saved, and the program has {_form(target)} here.")
            else:
                graft.write(fill, target, found)


def contents(node: Value, graft: Graft) -> dict[str, bytes]:
    """Return the files in a payload."""
    if not isinstance(node, Dict) or node.v is None:
        return {}
    return {n: graft.bytes_of(f.b, f.v).tobytes() for n, f in node.v.items() if isinstance(f, Bytes)}


def _left_out(value: Pretrained, layout: Layout) -> list[str]:
    """Return the names in the model's `state_dict` that stand in no file, neither by themselves nor tied."""
    if value.module is None:
        return []
    table: dict[str, Any] = dict(tensor_table(value.module))
    covered = {_memory(table[name]) for name in layout.tensors if name in table}
    return [n for n, tensor in table.items() if n not in layout.tensors and _memory(tensor) not in covered]


def _memory(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.numel(), tensor.element_size()


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


POLICY = Policy(
    codecs={class_name(Pretrained): PretrainedCodec()},
    components={class_name(Pretrained): "policy_weights"},
)
