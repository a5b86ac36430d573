"""A resources server in a process of its own. Run as a module, with a port; it says its port once it listens."""

from __future__ import annotations

import sys
import threading

from .stand_in import Resources

print(Resources("res", port=int(sys.argv[1])).port, flush=True)
threading.Event().wait()
