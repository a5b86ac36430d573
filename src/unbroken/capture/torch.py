"""What a walk needs to know of torch. Imported only where torch is in use already.

Modules and optimizers are ordinary objects here: their attributes are walked, an optimizer's state is
keyed by the twin's own Parameters, and no `state_dict` is called, which would run code of the module
and forget what is no tensor. Hooks and compiled code belong to the process and stay the twin's.

Not promised: parameters of a ScriptModule that lives in C++ alone (refused by name), and generators
that were saved on another kind of device than the program now has (they stay as built, and it is said).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from unbroken.capture.memory import MemoryCodec
from unbroken.capture.tensor import TensorCodec, is_device
from unbroken.errors import NotCapturable
from unbroken.state.nodes import Array, Dict, Tuple, Value, class_name
from unbroken.state.policy import Grown, Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_CONSTANTS: dict[str, object] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.qscheme))
}


class ConstantCodec:
    """`torch.float32`, `torch.strided`, `torch.channels_last`, …, by name."""

    name = "torch.constant"
    mutable = False

    def encode(self, value: object, walk: Walk) -> Value:
        return str(value)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        found = _CONSTANTS.get(payload) if isinstance(payload, str) else None
        return graft.refuse(f"torch has no constant {payload!r:.60}.", twin) if found is None else found


class SizeCodec:
    """`torch.Size`."""

    name = "torch.size"
    mutable = False

    def encode(self, value: torch.Size, walk: Walk) -> Value:
        return Tuple(v=list(value))

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Tuple) or not all(type(n) is int for n in payload.v):
            return graft.refuse("a size needs integers.", twin)
        size = torch.Size([n for n in payload.v if isinstance(n, int)])
        return twin if type(twin) is torch.Size and twin == size else size


class DeviceCodec:
    """`torch.device`: where a program runs is its own affair, so the twin's device stays."""

    name = "torch.device"
    mutable = False

    def encode(self, value: torch.device, walk: Walk) -> Value:
        return str(value)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if isinstance(twin, torch.device):
            if str(twin) != payload:
                graft.note("changed", f"was saved on {payload}; the program's {twin} stays.")
            return twin
        try:
            return torch.device(str(payload))
        except RuntimeError as error:
            return graft.refuse(f"{payload!r:.60} is no device: {error}", twin)


class GeneratorCodec:
    """`torch.Generator`. States are bytes on the CPU, whatever device the generator draws for."""

    name = "torch.generator"
    mutable = True

    def encode(self, value: torch.Generator, walk: Walk) -> Value:
        device = str(value.device)
        if not walk.contents:
            return Dict(v={"device": device})
        state = value.get_state().numpy()
        b, data = walk.pack(state)
        return Dict(v={"device": device, "state": Array(d="|u1", s=state.shape, b=b, data=data)})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        device, node = fields.get("device"), fields.get("state")
        if not isinstance(device, str) or not is_device(device):
            return graft.refuse("a generator needs a device.", twin)
        own = isinstance(twin, torch.Generator) and graft.claim(twin)
        try:
            result = twin if own else torch.Generator(device)
        except RuntimeError as error:
            return graft.refuse(f"there is no generator for {device!r:.60}: {error}", twin)
        assert isinstance(result, torch.Generator)
        graft.register(result)
        if result.device.type != torch.device(device).type:
            graft.note("changed", f"was saved on {device}; the program's generator on {result.device} stays.")
            return result
        if isinstance(node, Array):
            state = torch.from_numpy(graft.bytes_of(node.b, node.data).copy())
            try:
                # A clone of the live generator takes the state first: a forged one is found now.
                result.clone_state().set_state(state)
            except (RuntimeError, TypeError) as error:
                return graft.refuse(f"is no state of a generator on {device}: {error}", twin)
            graft.write(result.set_state, state, phase=Phase.GENERATORS)
        return result


class ScriptCodec:
    """A ScriptModule keeps its parameters in C++, where a walk does not see them."""

    name = "torch.script"
    mutable = True

    def encode(self, value: object, walk: Walk) -> Value:
        raise NotCapturable(
            f"{walk.place} is a {class_name(type(value))}, whose parameters a walk cannot see.",
            hint="Train the module itself and script it afterwards, or use torch.compile.",
            place=walk.place,
        )

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        return graft.refuse("a ScriptModule cannot be restored.", twin)


def tensor_table(module: Any) -> Mapping[str, object]:
    """Name a module's tensors as its `state_dict` does, without running hooks; tied ones under each name."""
    found: dict[str, object] = {}
    modules: Any = module.named_modules(remove_duplicate=False)
    for prefix, part in modules:
        own: dict[str, Any] = {
            **part._parameters,
            **{k: v for k, v in part._buffers.items() if k not in part._non_persistent_buffers_set},
        }
        for name, tensor in own.items():
            if tensor is not None:
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


_TENSOR = TensorCodec()
_CONSTANT = ConstantCodec()

_MODULE_HOOKS = frozenset(
    {
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_is_full_backward_hook",
        "_load_state_dict_post_hooks",
        "_load_state_dict_pre_hooks",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
    }
)
_OPTIMIZER_HOOKS = frozenset(
    {
        "_optimizer_load_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_step_post_hooks",
        "_optimizer_step_pre_hooks",
    }
)
_COMPILED = frozenset(
    {
        "_super_module_initialized",
        "_torchdynamo_orig_callable",
        "_torchdynamo_wrapper_id",
        "dynamo_ctx",
        "forward",
        "get_compiler_config",
    }
)
_PARALLEL = frozenset(
    {
        "_comm_hooks",
        "_ddp_init_helper",
        "_delay_all_reduce_params",
        "_join_config",
        "device_mesh",
        "logger",
        "process_group",
        "reducer",
    }
)

TARGETS = frozenset(
    {
        "actor_target",
        "critic_target",
        "policy_target",
        "q_net_target",
        "q_target",
        "qf1_target",
        "qf2_target",
        "target",
        "target_actor",
        "target_critic",
        "target_net",
        "target_network",
        "target_policy",
        "target_q_network",
        "target_qf1",
        "target_qf2",
        "target_qnet",
        "target_value",
        "value_target",
    }
)
"""Names under which libraries and single-file implementations keep target networks."""


def _complete_module(module: torch.nn.Module, like: torch.nn.Module | None) -> None:
    """Give a network that was built what belongs to the process, and what is in the code of its class."""
    attributes: dict[str, Any] = vars(module)
    for name, of_new in vars(torch.nn.Module()).items():
        if name in _MODULE_HOOKS:
            attributes.setdefault(name, of_new)
    kept: set[str] = set() if like is None else vars(like)["_non_persistent_buffers_set"]
    attributes["_non_persistent_buffers_set"] = kept & attributes.get("_buffers", {}).keys()
    if isinstance(module, torch.nn.RNNBase):
        weights: list[Any] = attributes.get("_flat_weights") or []
        attributes["_flat_weight_refs"] = [None if w is None else weakref.ref(w) for w in weights]


def _left_behind(value: Any, hooks: frozenset[str]) -> str:
    attributes: dict[str, Any] = vars(value)
    tables = [attributes.get(name) for name in hooks]
    held = [hook for table in tables if isinstance(table, dict) for hook in table.values() if callable(hook)]
    # Ours are put on again, and what a copy of a policy has in their place does nothing: the `get` of an empty dict.
    idle = [
        getattr(hook, "__self__", None) == {} or type(hook).__module__.startswith("unbroken.")
        for hook in held
    ]
    if not all(idle):
        return "it has hooks"
    of_other = {type(p).__name__ for p in attributes.get("_parameters", {}).values() if p is not None}
    return f"it has a {min(of_other)}" if (of_other := of_other - {"Parameter"}) else ""


_GROWN_OPTIMIZER = Grown(
    lambda optimizer, like: _complete(optimizer), lambda value: _left_behind(value, _OPTIMIZER_HOOKS)
)
_GROWN: dict[str, Grown | None] = {
    "torch.nn.modules.module:Module": Grown(
        _complete_module, lambda value: _left_behind(value, _MODULE_HOOKS)
    ),
    "torch.optim.optimizer:Optimizer": _GROWN_OPTIMIZER,
    "torch.optim.lr_scheduler:LRScheduler": Grown(lambda scheduler, like: _complete_scheduler(scheduler)),
    # What these are is more than their attributes.
    "torch._dynamo.eval_frame:OptimizedModule": None,
    "torch.nn.parallel.distributed:DistributedDataParallel": None,
    "torch.jit._script:ScriptModule": None,
}


POLICY = Policy(
    skip={
        # `_non_persistent_buffers_set` and the two profiler names follow from the code;
        # `step` is the wrapper that a scheduler puts around the method.
        "torch.nn.modules.module:Module": _MODULE_HOOKS
        | {"_compiled_call_impl", "_non_persistent_buffers_set"},
        "torch.optim.optimizer:Optimizer": _OPTIMIZER_HOOKS
        | {"_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name", "step"},
        "torch._dynamo.eval_frame:OptimizedModule": _COMPILED,
        "torch.nn.parallel.distributed:DistributedDataParallel": _PARALLEL,
        "torch.nn.modules.rnn:RNNBase": frozenset({"_flat_weight_refs"}),
        # How to undo the last `with parameters.to_module(...)`, which is over at a clean point.
        "tensordict.base:TensorDictBase": frozenset({"_last_op", "_last_op_queue"}),
    },
    external=frozenset(
        {
            "torch._C._distributed_c10d",
            "torch.cuda.graphs",
            "torch.cuda.streams",
            "torch.jit",
            "torch.profiler",
        }
    ),
    external_classes=frozenset({"torch.utils.hooks:RemovableHandle"}),
    walked=frozenset({"torch._C:_FunctionBase", "torch._C:_NodeBase"}),
    structural=frozenset(
        {
            "torch.nn.modules.module:Module",
            "torch.nn.parameter:Parameter",
            "torch.optim.lr_scheduler:LRScheduler",
            "torch.optim.optimizer:Optimizer",
        }
    ),
    grown=_GROWN,
    trusted=frozenset({"torch"}),
    components={
        "torch.nn.modules.module:Module": "policy_weights",
        "torch.optim.lr_scheduler:LRScheduler": "scheduler_states",
        "torch.optim.optimizer:Optimizer": "optimizer_states",
    },
    component_keys=dict.fromkeys(sorted(TARGETS), "target_weights"),
    codecs={
        "torch:Tensor": _TENSOR,
        "torch.storage:UntypedStorage": MemoryCodec(),
        "torch.storage:TypedStorage": MemoryCodec(),
        "torch._C:Generator": GeneratorCodec(),
        "torch:Size": SizeCodec(),
        "torch:device": DeviceCodec(),
        "torch:dtype": _CONSTANT,
        "torch:layout": _CONSTANT,
        "torch:memory_format": _CONSTANT,
        "torch:qscheme": _CONSTANT,
        "torch.jit._script:ScriptModule": ScriptCodec(),
    },
    tables={"torch.nn.modules.module:Module": tensor_table},
)


def _complete(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer what belongs to the process: hooks, and the step that a scheduler looks at."""
    attributes: dict[str, Any] = vars(optimizer)
    for name in _OPTIMIZER_HOOKS:
        attributes.setdefault(name, OrderedDict())
    attributes["_warned_capturable_if_run_uncaptured"] = True
    optimizer._patch_step_function()  # pyright: ignore[reportPrivateUsage]
    if any("initial_lr" in group for group in attributes.get("param_groups", ())):  # a scheduler looks at it
        _count_steps(optimizer)


def _count_steps(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer tell its schedulers that it has made a step."""
    attributes: dict[str, Any] = vars(optimizer)
    own, step = weakref.ref(optimizer), type(optimizer).step

    @wraps(step)
    def counted(*args: Any, **options: Any) -> Any:
        live: Any = own()
        live._opt_called = True
        return step(live, *args, **options)

    vars(counted)["_wrapped_by_lr_sched"] = True  # or a scheduler's first step would warn that nobody counts
    attributes["step"] = counted


def _complete_scheduler(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """A scheduler is its attributes, and what it does to its optimizer."""
    if isinstance(optimizer := vars(scheduler).get("optimizer"), torch.optim.Optimizer):
        _count_steps(optimizer)


REMADE = Policy(
    remade={
        "torch.optim.optimizer:Optimizer": _complete,
        "torch.optim.lr_scheduler:LRScheduler": _complete_scheduler,
    }
)
"""To be merged where a person may build another optimizer, and its scheduler, in the middle of a training."""

WITH_GRADIENTS = Policy(codecs={"torch:Tensor": TensorCodec(gradients=True)})
"""To be merged where a loop may accumulate gradients from one clean point to the next."""
