"""How the policies that are known choose an action: the path from an observation through their networks.

Known are the policies of Stable-Baselines3 and RLlib's PPO module, by the exact names of their classes. A class
derived from one may do something else, and is not guessed at; its weights and chains are exported all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.errors import UnbrokenError
from unbroken.format.neutral import Acting, Bounds, Head, Path, Space, Step
from unbroken.inspection.neutral.cursor import Checkpoint, Cursor
from unbroken.inspection.neutral.networks import Found, NotKnown, steps_of
from unbroken.inspection.neutral.spaces import is_image

_SB3 = "stable_baselines3."
_POLICIES = {
    f"{_SB3}common.policies:ActorCriticPolicy": "actor-critic",
    f"{_SB3}common.policies:ActorCriticCnnPolicy": "actor-critic",
    f"{_SB3}dqn.policies:DQNPolicy": "q",
    f"{_SB3}dqn.policies:CnnPolicy": "q",
    f"{_SB3}sac.policies:SACPolicy": "squashed",
    f"{_SB3}sac.policies:CnnPolicy": "squashed",
    f"{_SB3}td3.policies:TD3Policy": "direct",
    f"{_SB3}td3.policies:CnnPolicy": "direct",
    "sb3_contrib.qrdqn.policies:QRDQNPolicy": "quantiles",
    "sb3_contrib.qrdqn.policies:CnnPolicy": "quantiles",
}
_RLLIB_PPO = "ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module:DefaultPPOTorchRLModule"
_RLLIB_MLP = {
    "ray.rllib.core.models.torch.encoder:TorchMLPEncoder",
    "ray.rllib.core.models.torch.heads:TorchMLPHead",
}
_FILTER = "MeanStdFilter"
"""What stands between an observation and the module is a part of the way; these keep statistics."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How a policy acts and values; `why` says why it is not known how it acts."""

    act: Acting | None = None
    value: Path | None = None
    why: str = ""


def ways_of(
    checkpoint: Checkpoint,
    networks: list[Found],
    observations: Space | None,
    actions: Space | None,
    normalizers: dict[str, str],
) -> Ways:
    """Return the ways through the policy that acts. `normalizers` are those of its observations, by their key."""
    for found in networks:
        kind = _POLICIES.get(found.at.cls)
        rllib = found.at.cls == _RLLIB_PPO and found.network.place.startswith("learner/")
        if kind is None and not rllib:
            continue
        if observations is None or actions is None:
            return Ways(why="its spaces are not in the checkpoint")
        try:
            if rllib:
                return _rllib_ppo(checkpoint, found, observations, actions)
            assert kind is not None
            return _sb3(found, kind, observations, actions, normalizers)
        except (NotKnown, UnbrokenError) as error:
            return Ways(why=str(error))
    classes = sorted({found.at.cls.rpartition(":")[2] for found in networks if found.at.cls})
    return Ways(
        why=f"what {', '.join(classes)} does with an observation stands in the program" if classes else ""
    )


def _sb3(found: Found, kind: str, observations: Space, actions: Space, normalizers: dict[str, str]) -> Ways:
    at, name = found.at, found.network.name
    value: list[Step] | None = None
    if kind == "actor-critic":
        shared = at.attr("share_features_extractor").plain() is not False
        pi, vf = ("", "") if shared else ("pi_", "vf_")
        extractor = _part(at, "mlp_extractor", f"{_SB3}common.torch_layers:MlpExtractor")
        steps = [
            *_features(at, f"{pi}features_extractor", observations),
            *steps_of(extractor.module("policy_net"), "mlp_extractor.policy_net"),
            *steps_of(at.module("action_net"), "action_net"),
        ]
        value = [
            *_features(at, f"{vf}features_extractor", observations),
            *steps_of(extractor.module("value_net"), "mlp_extractor.value_net"),
            *steps_of(at.module("value_net"), "value_net"),
        ]
        squashed = bool(at.attr("_squash_output").plain())
        if squashed:
            steps.append(Step(op="tanh"))
        head = _head(actions, "scale" if squashed else "clip", softmax=True)
    elif kind in ("q", "quantiles"):
        part = "q_net" if kind == "q" else "quantile_net"
        steps = [
            *_features(at.module(part), "features_extractor", observations, f"{part}."),
            *steps_of(at.module(f"{part}.{part}"), f"{part}.{part}"),
        ]
        if kind == "quantiles":
            steps.append(Step(op="mean_of_groups", groups=int(at.attr("n_quantiles").number() or 1)))
        head = _head(actions, "none")
    else:
        actor = at.module("actor")
        steps = _features(actor, "features_extractor", observations, "actor.")
        if kind == "squashed":
            steps += steps_of(actor.module("latent_pi"), "actor.latent_pi")
        steps += steps_of(actor.module("mu"), "actor.mu")
        if kind == "squashed":
            steps.append(Step(op="tanh"))
        head = _head(actions, "scale")
    act = Acting(network=name, steps=steps, head=head, normalizers=normalizers)
    return Ways(act, None if value is None else Path(network=name, steps=value))


def _features(at: Cursor, part: str, observations: Space, prefix: str = "") -> list[Step]:
    """Return what SB3 does with an observation before the network proper."""
    inner = at.module(part)
    if observations.kind == "box":
        steps = [Step(op="float")]
        if is_image(observations) and at.attr("normalize_images").plain() is not False:
            steps.append(Step(op="divide", by=255.0))
    elif observations.kind in ("discrete", "multi-discrete"):
        steps = [Step(op="one_hot", sizes=observations.sizes)]
    elif observations.kind == "multi-binary":
        steps = [Step(op="float")]
    else:
        raise NotKnown(f"observations are a {observations.kind} of spaces")
    if inner.cls == f"{_SB3}common.torch_layers:FlattenExtractor":
        return [*steps, Step(op="flatten")]
    if inner.cls == f"{_SB3}common.torch_layers:NatureCNN":
        at_part = f"{prefix}{part}"
        return [
            *steps,
            *steps_of(inner.module("cnn"), f"{at_part}.cnn"),
            *steps_of(inner.module("linear"), f"{at_part}.linear"),
        ]
    raise NotKnown(f"{prefix}{part} is a {inner.cls or 'missing module'}")


def _part(at: Cursor, name: str, cls: str) -> Cursor:
    inner = at.module(name)
    if inner.cls != cls:
        raise NotKnown(f"{name} is a {inner.cls or 'missing module'}")
    return inner


def _head(actions: Space, bounds: Bounds, *, softmax: bool = False) -> Head:
    match actions.kind:
        case "discrete":
            return Head(kind="argmax", softmax=softmax)
        case "multi-discrete" if len(actions.shape) == 1:
            return Head(kind="argmax_each", softmax=softmax)
        case "multi-binary":
            return Head(kind="threshold")
        case "box":
            return Head(kind="continuous", bounds=bounds)
        case _:
            raise NotKnown(f"actions are a {actions.kind} space")


def _rllib_ppo(checkpoint: Checkpoint, found: Found, observations: Space, actions: Space) -> Ways:
    at, name = found.at, found.network.name
    encoder = _part(at, "encoder", "ray.rllib.core.models.torch.encoder:TorchActorCriticEncoder")
    if observations.kind != "box" or len(observations.shape) != 1:
        raise NotKnown("observations are no vectors, and connectors stand before the module")
    scaled = False
    for connector in checkpoint.objects():
        kind = connector.cls.rpartition(":")[2]
        if kind.startswith(_FILTER):
            raise NotKnown(f"a {kind} stands before the module")
        if kind == "NormalizeAndClipActions":
            scaled = scaled or connector.attr("normalize_actions").plain() is True
    if actions.kind not in ("discrete", "box"):
        raise NotKnown(f"actions are a {actions.kind} space")

    def through(part: str, inner: str) -> list[Step]:
        module = at.module(part)
        if module.cls not in _RLLIB_MLP:
            raise NotKnown(f"{part} is a {module.cls or 'missing module'}")
        return steps_of(module.module(inner), f"{part}.{inner}")

    shared = encoder.attr("config", "shared").plain() is True
    actor, critic = (
        ("encoder.encoder",) * 2 if shared else ("encoder.actor_encoder", "encoder.critic_encoder")
    )
    start = [Step(op="float")]
    steps = [*start, *through(actor, "net.mlp"), *through("pi", "net.mlp")]
    if actions.kind == "box":
        steps.append(Step(op="first_half"))
    value = [*start, *through(critic, "net.mlp"), *through("vf", "net.mlp")]
    head = _head(actions, "scale-clip" if scaled else "none")
    return Ways(Acting(network=name, steps=steps, head=head), Path(network=name, steps=value))
