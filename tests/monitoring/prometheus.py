"""A real Prometheus for tests, and its `promtool`: processes of their own, in a folder of their own.

Debian's package `prometheus` brings both. Where they are missing the tests that need them are skipped by name;
where everything has to run (`CI=true`) it is an error.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.ports import HOST, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "unbroken.rules.yml"
TESTS_OF_RULES = DEPLOY / "prometheus" / "unbroken.rules.test.yml"
OFFSET = "6s"
"""What the rules compare with, in the place of hours."""

PATIENCE = 200.0
"""Seconds after which what should have happened has not."""


def tool(name: str) -> str:
    """Return the path of a program; skip the test where there is none."""
    return shutil.which(name) or _missing(f"{name} is not installed (scripts/tools installs it)")


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `promtool`, and return what it says."""
    command = [tool("promtool"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)


def shortened(rules: str) -> str:
    """Return the rules with all their times made short: a test does not wait for minutes."""
    for pattern, short in (
        (r"for: \w+", "for: 0s"),
        (r"\[\w+\]", "[3s]"),
        (r"offset \w+", f"offset {OFFSET}"),
    ):
        rules = re.sub(pattern, short, rules)
    return rules


class Prometheus:
    """A server that scrapes `ports` twice a second. It is asked by its HTTP API."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self._port = free_port()
        (folder / "rules.yml").write_text(shortened(RULES.read_text()))
        targets = ", ".join(f'"{HOST}:{port}"' for port in ports)
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
            "rule_files: [rules.yml]\n"
            f"scrape_configs: [{{job_name: tested, honor_labels: true, static_configs: [{{targets: [{targets}]}}]}}]\n"
        )
        command = [
            tool("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
            "--log.level=warn",
        ]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, query: str) -> list[Any]:
        """Return what a query brings; nothing before the server is ready."""
        text = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{self._port}/api/v1/query?{text}", timeout=60
            ) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            assert self._process.poll() is None, self.log.read_text()
            return []

    def fired(self) -> set[tuple[str, str]]:
        """Return the alerts that have fired at any time, each with the run that it was about."""
        found = self.ask('max_over_time(ALERTS{alertstate="firing"}[1h])')
        return {(one["metric"]["alertname"], one["metric"]["job"]) for one in found}

    def until(self, holds: Callable[[], bool], *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Do something over until a condition holds; fail if it never does."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"fired so far: {sorted(self.fired())}"
            meanwhile()
            time.sleep(0.05)

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def serving(folder: Path) -> Generator[int]:
    """Serve the one file `metrics` in a folder, as the node exporter serves what it has read."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


def samples(text: str) -> dict[str, float]:
    """Return what the text format says, by name with labels as they stand there."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.replace('job="run"', "").replace("{}", ""): float(value) for name, _, value in lines}
