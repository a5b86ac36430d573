"""Acts as an exported policy does, in torch and without the framework that trained it.

The document says which operations lead from an observation to an action. They are the operations of the
training's own modules, in their order and on tensors of the same shapes: on the same processor the actions are
the same numbers, bit for bit.

Not promised: actions by chance, and gradients. A network that has a path can be trained on as a torch module.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unbroken.adapters.neutral.reading import Export, load, value_of
from unbroken.errors import ConfigError, CorruptObject, installing
from unbroken.format.neutral import Acting, Head, Number, Path, Space, Step

if TYPE_CHECKING:
    import torch
    from torch import nn

Tensors = Mapping[str, Any]


class Policy:
    """What `load_policy` returns: `policy(observation)` is the action that the training's policy takes without chance.

    `network` is the torch module that leads from a normalized observation to what the head makes an action of.
    """

    def __init__(self, export: Export, act: Acting) -> None:
        self.export = export
        self.act = act
        self.network = sequential(act.steps, export.state_dict(act.network))

    def __call__(self, observation: ArrayLike, *, normalize: bool = True) -> NDArray[Any]:
        """Return the action for one observation of the space's shape, or one for each of a batch of them.

        The observation is the environment's own: statistics of the training are applied here. With
        `normalize=False` it has gone through them already.

        Raises:
            ConfigError: it has not the shape of the observation space.
            CorruptObject: the path of the export does not lead from its observations to its actions.
        """
        import torch

        space, actions = self._spaces()
        given = np.asarray(observation)
        single = list(given.shape) == space.shape
        if not single and list(given.shape[1:]) != space.shape:
            raise ConfigError(
                f"The policy acts on observations of shape {space.shape}, and got {list(given.shape)}.",
                hint="Give one, or a batch of them.",
            )
        if normalize:
            given = self.normalized(given)
        if not given.flags.writeable:
            given = given.copy()  # rows of a replay buffer are, and torch warns of what nobody writes to
        batch = torch.as_tensor(given[None] if single else given)
        try:
            with torch.no_grad():
                output = _HEADS[self.act.head.kind](self.act.head, self.network(batch), actions)
            taken: NDArray[Any] = output.numpy().reshape(-1, *actions.shape)
            if self.act.head.kind == "continuous":
                taken = _bounded(taken, self.act.head.bounds, actions)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise CorruptObject(
                f"The way to act in this export fails on observations of shape {space.shape}: {error}",
                hint="Export the run again.",
            ) from error
        return taken[0] if single else taken

    def normalized(self, observation: ArrayLike) -> NDArray[Any]:
        """Return an observation, or a batch, as the policy saw it in training."""
        given = np.asarray(observation)
        for name in self.act.normalizers.values():
            given = self.export.normalizers[name].apply(given)
        return given

    def _spaces(self) -> tuple[Space, Space]:
        observations, actions = self.export.document.observation_space, self.export.document.action_space
        if observations is None or actions is None:
            raise ConfigError("The export does not say its spaces.", hint="Export the run again.")
        return observations, actions


def load_policy(directory: str | os.PathLike[str]) -> Policy:
    """Read the policy of an export.

    Raises:
        ConfigError: it has none that is known to act (`why_no_act` in its document says why), or PyTorch is missing.
        CorruptObject: a file of it is not what was written.
    """
    export = load(directory)
    act = export.document.act
    if act is None:
        raise ConfigError(
            f"How the policy acts is not in this export: {export.document.why_no_act or 'it has none'}.",
            hint="Build the network, and load `unbroken.neutral.load(DIR).state_dict(NAME)` into it.",
        )
    return Policy(export, act)


def load_network(
    directory: str | os.PathLike[str], name: str = "", *, part: str | None = None
) -> nn.Sequential:
    """Return a network of an export as a torch module, if all of it, or the named part of it, is a chain of known
    operations. Its parameters are leaves, and may be trained.

    Raises:
        ConfigError: there is no such network or part, or PyTorch is missing.
        CorruptObject: a file of it is not what was written.
    """
    export = load(directory)
    network = export.network(name)
    if part is None and len(network.chains) == 1:
        (part,) = network.chains
    if part is None or part not in network.chains:
        raise ConfigError(
            f"{network.name} has no part {part!r}."
            if part
            else f"{network.name} is no single chain of layers.",
            hint=f"Parts that are: {', '.join(map(repr, network.chains)) or 'none'}.",
        )
    return sequential(network.chains[part], export.state_dict(network.name))


def load_value(directory: str | os.PathLike[str]) -> nn.Sequential:
    """Return the path from a normalized observation to its value, as a torch module.

    Raises:
        ConfigError: the export has none, or PyTorch is missing.
        CorruptObject: a file of it is not what was written.
    """
    export = load(directory)
    path: Path | None = export.document.value
    if path is None:
        raise ConfigError("This export holds no path to a value.", hint="Only actor-critics have one.")
    return sequential(path.steps, export.state_dict(path.network))


def sequential(steps: Sequence[Step], tensors: Tensors) -> nn.Sequential:
    """Return the module that carries out `steps`.

    Raises:
        ConfigError: a step lacks something, its tensors do not fit, or PyTorch is missing.
    """
    try:
        from torch import nn
    except ImportError as error:
        raise ConfigError("This needs PyTorch, which is not installed.", hint=installing("torch")) from error
    made: list[nn.Module] = []
    for step in steps:
        try:
            made.append(_OPERATIONS[step.op](step, tensors))
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
            raise ConfigError(
                f"The step {step.op!r} of the export cannot be built: {error}.", hint="Export the run again."
            ) from error
    return nn.Sequential(*made).eval()


def _function(apply: Callable[[Any], Any]) -> nn.Module:
    from torch import nn

    class Function(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return apply(batch)  # type: ignore[no-any-return]

    return Function()


def _filled(module: nn.Module, step: Step, tensors: Tensors) -> nn.Module:
    """Give a module its tensors; every one of them has to fit."""
    names = {"weight": step.weight, "bias": step.bias}
    state = {own: tensors[name] for own, name in names.items() if name is not None}
    expected = {own: tensor.shape for own, tensor in module.state_dict().items()}
    if expected != {own: tensor.shape for own, tensor in state.items()}:
        raise ValueError("its tensors do not have the shapes of the layer")
    module.load_state_dict(state, assign=True)  # the layer's own lie nowhere: no generator was drawn from
    return module


def _linear(step: Step, tensors: Tensors) -> nn.Module:
    from torch import nn

    rows, columns = tensors[str(step.weight)].shape
    return _filled(nn.Linear(columns, rows, bias=step.bias is not None, device="meta"), step, tensors)


def _conv2d(step: Step, tensors: Tensors) -> nn.Module:
    from torch import nn

    out, per_group, *kernel = tensors[str(step.weight)].shape
    groups = step.groups or 1
    layer = nn.Conv2d(
        per_group * groups,
        out,
        (kernel[0], kernel[1]),
        stride=_pair(step.stride, 1),
        padding=_pair(step.padding, 0),
        dilation=_pair(step.dilation, 1),
        groups=groups,
        bias=step.bias is not None,
        device="meta",
    )
    return _filled(layer, step, tensors)


def _pair(numbers: list[int] | None, default: int) -> tuple[int, int]:
    if numbers is None:
        return default, default
    first, second = numbers
    return first, second


def _layer_norm(step: Step, tensors: Tensors) -> nn.Module:
    from torch import nn

    layer = nn.LayerNorm(
        step.shape or [],
        eps=_given(step.epsilon),
        elementwise_affine=step.weight is not None,
        bias=step.bias is not None,
        device="meta",
    )
    return _filled(layer, step, tensors)


def _batch_norm(step: Step, tensors: Tensors) -> nn.Module:
    import torch

    mean, var = tensors[str(step.mean)], tensors[str(step.var)]
    weight = None if step.weight is None else tensors[step.weight]
    bias = None if step.bias is None else tensors[step.bias]
    epsilon = _given(step.epsilon)
    return _function(
        lambda batch: torch.nn.functional.batch_norm(
            batch, mean, var, weight, bias, training=False, eps=epsilon
        )
    )


def _one_hot(step: Step) -> nn.Module:
    import torch

    sizes = step.sizes or []

    def apply(batch: torch.Tensor) -> torch.Tensor:
        columns = batch.long().reshape(len(batch), len(sizes)).unbind(dim=1)
        parts = [
            torch.nn.functional.one_hot(column, size).float()
            for column, size in zip(columns, sizes, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    return _function(apply)


def _plain(step: Step) -> nn.Module:
    from torch import nn

    match step.op:
        case "relu":
            return nn.ReLU()
        case "tanh":
            return nn.Tanh()
        case "sigmoid":
            return nn.Sigmoid()
        case "silu":
            return nn.SiLU()
        case "elu":
            return nn.ELU(_given(step.alpha))
        case "leaky_relu":
            return nn.LeakyReLU(_given(step.alpha))
        case "gelu":
            return nn.GELU(step.approximate or "none")
        case "hardtanh":
            return nn.Hardtanh(_given(step.low), _given(step.high))
        case "softplus":
            return nn.Softplus(_given(step.alpha), _given(step.high))
        case _:
            return nn.Flatten()


def _given(number: float | None) -> float:
    if number is None or not math.isfinite(number):
        raise ValueError("a number of it is missing")
    return number


def _divide(by: float) -> nn.Module:
    return _function(lambda batch: batch / by)


def _mean_of_groups(step: Step) -> nn.Module:
    groups = step.groups or 1
    return _function(lambda batch: batch.view(len(batch), groups, -1).mean(dim=1))


_OPERATIONS: dict[str, Callable[[Step, Tensors], Any]] = {
    **dict.fromkeys(
        ["relu", "tanh", "sigmoid", "silu", "elu", "leaky_relu", "gelu", "hardtanh", "softplus", "flatten"],
        lambda step, tensors: _plain(step),
    ),
    "float": lambda step, tensors: _function(lambda batch: batch.float()),
    "divide": lambda step, tensors: _divide(_given(step.by)),
    "first_half": lambda step, tensors: _function(lambda batch: batch[..., : batch.shape[-1] // 2]),
    "one_hot": lambda step, tensors: _one_hot(step),
    "linear": _linear,
    "conv2d": _conv2d,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "mean_of_groups": lambda step, tensors: _mean_of_groups(step),
}


def _argmax(head: Head, output: torch.Tensor, space: Space) -> torch.Tensor:
    return _largest(head, output) + space.start


def _argmax_each(head: Head, output: torch.Tensor, space: Space) -> torch.Tensor:
    import torch

    return torch.stack([_largest(head, part) for part in torch.split(output, space.sizes, dim=1)], dim=1)


def _largest(head: Head, output: torch.Tensor) -> torch.Tensor:
    if head.softmax:  # as torch's Categorical does it: two outputs may differ, and their probabilities not
        output = (output - output.logsumexp(dim=-1, keepdim=True)).softmax(dim=-1)
    return output.argmax(dim=1)


_HEADS: dict[str, Callable[[Head, torch.Tensor, Space], torch.Tensor]] = {
    "argmax": _argmax,
    "argmax_each": _argmax_each,
    "threshold": lambda head, output, space: output.sigmoid().round(),
    "continuous": lambda head, output, space: output,
}


def _bounded(actions: NDArray[Any], bounds: str, space: Space) -> NDArray[Any]:
    if bounds == "none":
        return actions
    low, high = (_bound(limit, space) for limit in (space.low, space.high))
    if bounds.startswith("scale"):
        actions = low + (0.5 * (actions + 1.0) * (high - low))
    return actions if bounds == "scale" else np.clip(actions, low, high)


def _bound(limit: Number | list[Number] | None, space: Space) -> NDArray[Any]:
    numbers = (
        [value_of(n) for n in limit]
        if isinstance(limit, list)
        else value_of(limit if limit is not None else "nan")
    )
    return np.broadcast_to(
        np.asarray(numbers, space.dtype).reshape(space.shape if isinstance(limit, list) else ()), space.shape
    )
