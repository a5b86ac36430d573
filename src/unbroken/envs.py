"""Wrappers that make an environment cheaper to restore: `from unbroken.envs import FreshWorld`.

```python
import gymnasium
from unbroken.envs import FreshWorld

env = FreshWorld(gymnasium.make("BipedalWalker-v3"))
```

Each changes what an environment does, and says how, so nothing puts one in by itself.
"""

from __future__ import annotations

from unbroken.capture.fresh_world import FreshWorld

__all__ = ["FreshWorld"]
