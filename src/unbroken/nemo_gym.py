"""NeMo Gym: servers that come back as they were, and rollouts as a part of the training's state.

```
checkpointed(MyResourcesServer).run_webserver()            # in a server's app.py
gym = Gym({"agent": …, "res": …, "policy": …})             # in the training
run.track(policy=net, optimizer=opt, gym=gym)
```
"""

from __future__ import annotations

from unbroken.adapters.nemo_gym.attach import checkpointed
from unbroken.adapters.nemo_gym.launch.supervisor import Servers
from unbroken.adapters.nemo_gym.trainer.coordinator import RolloutWarning
from unbroken.adapters.nemo_gym.trainer.gym import Gym
from unbroken.adapters.nemo_gym.trainer.ledger import Rollout
from unbroken.adapters.nemo_gym.trainer.queue import RolloutQueue

__all__ = ["Gym", "Rollout", "RolloutQueue", "RolloutWarning", "Servers", "checkpointed"]
