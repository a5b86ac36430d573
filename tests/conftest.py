"""What holds for every test."""

from __future__ import annotations

import signal

# A shell starts its background jobs with SIGINT ignored, and whatever they start ignores it too. Some tests
# send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
