"""Gymnasium: which of an environment's attributes belong to the run.

Environments, wrappers and spaces are ordinary Python objects, so the walk carries them whole: physics in
attributes, elapsed steps, frame stacks, running means, and every generator, shared ones as shared. What
stays behind is the description (`spec`) and what draws pictures (windows, surfaces, clocks, renderers):
the freshly built environment has its own.

Not captured: `AsyncVectorEnv`, whose environments live in processes of Gymnasium's own.
"""

from __future__ import annotations

from unbroken.state.policy import Policy

POLICY = Policy(
    skip={
        "gymnasium.core:Env": frozenset({"spec"}),
        "gymnasium.core:Wrapper": frozenset({"_cached_spec"}),
        "gymnasium.vector.vector_env:VectorEnv": frozenset({"spec"}),
        # What the environments were made by: used up once they are there.
        "gymnasium.vector.sync_vector_env:SyncVectorEnv": frozenset({"env_fns"}),
        # A reading of this machine's clock: an episode in progress counts its time from the resume.
        "gymnasium.wrappers.common:RecordEpisodeStatistics": frozenset({"episode_start_time"}),
        "gymnasium.wrappers.vector.common:RecordEpisodeStatistics": frozenset({"episode_start_times"}),
    },
    external=frozenset({"pygame", "glfw", "matplotlib", "PIL", "gymnasium.envs.mujoco.mujoco_rendering"}),
    external_classes=frozenset({"gymnasium.vector.async_vector_env:AsyncVectorEnv"}),
    structural=frozenset({"gymnasium.core:Env", "gymnasium.vector.vector_env:VectorEnv"}),
    trusted=frozenset({"gymnasium", "minigrid"}),
    components={
        "gymnasium.core:Env": "env_states",
        "gymnasium.vector.vector_env:VectorEnv": "env_states",
    },
)
