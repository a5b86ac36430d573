"""The endpoint of a run: its port is one process's, and nothing of it is left behind."""

from __future__ import annotations

import gc
import os
from types import FunctionType

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from unbroken.engine.monitoring import endpoint
from unbroken.engine.monitoring.endpoint import Endpoint


def opened() -> Endpoint:
    return Endpoint(CollectorRegistry(), address="127.0.0.1", port=0)


def functions() -> int:
    """Return how many functions of its module there are: a hook at the fork is one, and is there for good."""
    gc.collect()
    return sum(type(one) is FunctionType and one.__module__ == endpoint.__name__ for one in gc.get_objects())


def test_a_forked_child_has_let_go_of_each_port() -> None:
    serving = [opened(), opened()]
    gone = opened()
    gone.close()
    child = os.fork()
    if child == 0:
        os._exit(sum(one._server.socket.fileno() >= 0 for one in serving))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(one._server.socket.fileno() >= 0 for one in serving)
    for one in serving:
        one.close()


def test_endpoints_that_are_closed_leave_nothing_behind() -> None:
    opened().close()
    before = functions()
    for _ in range(3):
        opened().close()
    assert functions() == before
