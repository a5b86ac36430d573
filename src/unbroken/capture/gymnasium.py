"""Gymnasium: which of an environment's attributes belong to the run.

Environments, wrappers and spaces are ordinary Python objects, so the walk carries them whole: physics in
attributes, elapsed steps, frame stacks, running means, and every generator, shared ones as shared. What
stays behind is the description (`spec`) and what draws pictures (windows, surfaces, clocks, renderers):
the freshly built environment has its own.

Of an `AsyncVectorEnv` the rest lives in processes of Gymnasium's own: see `async_vectors`.

Not promised: an attribute of the user's own class that holds a picture, a window or a process.
"""

from __future__ import annotations

from unbroken.state.policy import Captor, Policy

_AGENT = frozenset({"_unbroken_agent", "_unbroken_errand"})
"""What stands on an environment in a worker while it is spoken to: see `worker_agent`."""


def _workers_rule(obj: object) -> Captor | None:
    from unbroken.capture.async_vectors import workers_rule  # in the workers it walks by these rules itself

    return workers_rule(obj)


POLICY = Policy(
    skip={
        "gymnasium.core:Env": frozenset({"spec"}) | _AGENT,
        "gymnasium.core:Wrapper": frozenset({"_cached_spec"}) | _AGENT,
        "gymnasium.vector.vector_env:VectorEnv": frozenset({"spec"}),
        # What the environments were made by: used up once they are there.
        "gymnasium.vector.sync_vector_env:SyncVectorEnv": frozenset({"env_fns"}),
        "gymnasium.vector.async_vector_env:AsyncVectorEnv": frozenset(
            {"env_fns", "worker", "processes", "parent_pipes", "error_queue", "_state"}
        ),
        # A reading of this machine's clock: an episode in progress counts its time from the resume.
        "gymnasium.wrappers.common:RecordEpisodeStatistics": frozenset({"episode_start_time"}),
        "gymnasium.wrappers.vector.common:RecordEpisodeStatistics": frozenset({"episode_start_times"}),
    },
    external=frozenset({"pygame", "glfw", "matplotlib", "PIL", "gymnasium.envs.mujoco.mujoco_rendering"}),
    structural=frozenset({"gymnasium.core:Env", "gymnasium.vector.vector_env:VectorEnv"}),
    trusted=frozenset({"gymnasium", "minigrid"}),
    components={
        "gymnasium.core:Env": "env_states",
        "gymnasium.vector.vector_env:VectorEnv": "env_states",
    },
    captors=(_workers_rule,),
)
