"""The words that servers, agents and trainer share: headers, paths, variables of the environment."""

from __future__ import annotations

PREFIX = "/.unbroken/"
"""Where control requests go. Only a request with the header `CONTROL` is one: a tool of this name stays a tool."""

CONTROL = "x-unbroken-control"
"""The token of whoever may control a server."""
EPOCH = "x-unbroken-epoch"
"""The epoch that `adopt` gave to the coordinator who asks."""
ROLLOUT = "x-unbroken-rollout"
ATTEMPT = "x-unbroken-attempt"
CALL = "x-unbroken-call"
"""Names one call for good: who sends it again gets the same answer."""
POLICY = "x-unbroken-policy-version"
"""In a model server's answer: the version of the policy that gave it."""
REPLAYED = "x-unbroken-replayed"
"""In an answer that was not computed but found in the log."""
REFUSED = "x-unbroken-refused"
"""In an answer that is no answer: why the server did not let the call through. See `control.Refused`."""
MOVED = "x-unbroken-moved"
"""In a redirection: the address at which the session lives now."""

DIRECTORY = "UNBROKEN_GYM_DIR"
"""Variable: where the servers of one run keep their logs; each has a directory of its name in it."""
START = "UNBROKEN_GYM_START"
"""Variable: `open` (the default: a server opens once it has restored itself) or `closed` (it waits for a trainer)."""

PATIENCE = "UNBROKEN_GYM_PATIENCE"
"""Variable: seconds for which an agent tries to reach a server that is away; 600 if it is not set."""

ROLLOUT_KEY = "_ng_rollout_id"
ATTEMPT_KEY = "_ng_attempt_index"
TASK_KEY = "_ng_task_index"
SAMPLE_KEY = "_ng_rollout_index"
POLICY_KEY = "_unbroken_policy_version"
"""Keys of a row that name its rollout. The first two are what newer versions of NeMo Gym stamp themselves."""

SESSION_KEY = "session_id"
"""The entry of NeMo Gym's session cookie."""
MCP_SESSION = "x-nemo-gym-session-token"
"""The header by which a tool called over MCP names its session."""
SEEDING = frozenset({"/seed_session", "/reset"})
"""Paths at which a session begins."""
NOT_LOGGED = frozenset({"/", "/aggregate_metrics"})
"""Paths whose calls change nothing."""
SKIPPED_FIELDS = frozenset({"config", "server_client"})
"""Fields of a server that are how it was built."""
