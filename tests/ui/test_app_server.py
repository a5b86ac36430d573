"""`unbroken ui` as a process: what it prints, who gets in over a real connection, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.command import unbroken
from tests.repo.states import meta, snapshot
from tests.test_import import modules_after
from unbroken.repo.repository import Repository


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one run. Read only."""
    folder = tmp_path_factory.mktemp("root")
    with Repository.open(folder, "dqn", create=True).writer() as writer:
        writer.write(snapshot(step=5), meta(5))
    return folder


@contextmanager
def serving(root: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], str], None, None]:
    """A server, and the address that it has printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "unbroken", "ui", str(root), "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, (line, server.poll())
        yield server, found[0]
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_the_printed_address_leads_to_the_runs_and_a_signal_ends_in_order(
    root: Path, ends: signal.Signals
) -> None:
    with serving(root) as (server, address), httpx.Client(timeout=30) as client:
        base = address.partition("/?")[0]
        first = client.get(address)
        assert first.status_code == 303
        assert "dqn" in client.get(base + first.headers["location"]).text
        # This very user on this very machine needs no token: the kernel says whose connection it is.
        with httpx.Client(timeout=30) as another:
            page, head = another.get(f"{base}/runs/dqn"), another.head(f"{base}/runs/dqn")
            assert (page.status_code, head.status_code, head.content) == (200, 200, b"")
            assert head.headers["content-length"] == str(len(page.content))
            assert another.get(f"{base}/", headers={"host": "evil.example"}).status_code == 421
        assert server.stdout is not None
        assert "nothing is changed" in server.stdout.readline()
        # One asks, and does not say it all: nobody waits for that.
        slow = socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])))
        slow.sendall(b"POST /jobs/x/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        client.get(base)
        server.send_signal(ends)
        _, err = server.communicate(timeout=30)
        slow.close()
        assert server.returncode == 0
        assert "Traceback" not in err
        assert len(err.splitlines()) <= 1, err


def test_another_user_of_the_machine_needs_the_token(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with serving(root) as (_, address):
        port = int(address.split(":")[2].partition("/")[0])
        ask = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '%s\\r\\n' 'GET / HTTP/1.0' 'Host: localhost' '' >&3; head -1 <&3"
        answer = subprocess.run(
            ["bash", "-c", ask], user=65534, cwd="/", capture_output=True, text=True, check=True, timeout=30
        )
        assert " 401 " in answer.stdout


def test_a_port_that_is_taken_is_an_error_where_it_was_asked_for(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = unbroken("ui", root, "--port", port, cwd=root)
        assert answer.code == 2
        assert f"Port {port} cannot be taken" in answer.err


def test_what_cannot_be_served_is_told(root: Path, tmp_path: Path) -> None:
    missing = unbroken("ui", tmp_path / "nowhere", "--port", "0", cwd=root)
    assert missing.code == 2
    assert "is no directory" in missing.err
    elsewhere = unbroken("ui", root, "--host", "192.0.2.1", "--port", "0", cwd=root)
    assert elsewhere.code == 2
    assert "is no address of this machine" in elsewhere.err


WITHOUT = """
import sys
from unbroken.cli import main
for name in ("fastapi", "uvicorn", "jinja2"):
    sys.modules[name] = None  # as where it is not installed
    for module in [one for one in sys.modules if one.startswith("unbroken.ui")]:
        del sys.modules[module]
    print(name, main(["ui", sys.argv[1], "--port", "0"]), flush=True)
    del sys.modules[name]
"""


def test_a_library_that_is_missing_is_named_with_what_to_install(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, root], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["fastapi", "2", "uvicorn", "2", "jinja2", "2"]
    said = " ".join(done.stderr.split())
    for name in ("fastapi", "uvicorn", "jinja2"):
        assert (
            f"The pages need {name}, which is not installed. Run: pip install plotly jinja2 fastapi uvicorn"
            in said
        )


def test_the_command_imports_none_of_it_unless_it_serves() -> None:
    loaded = modules_after("import unbroken.cli.app")
    assert not {name.partition(".")[0] for name in loaded} & {
        "fastapi",
        "starlette",
        "uvicorn",
        "jinja2",
        "plotly",
    }
