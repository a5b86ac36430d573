"""Real object stores for tests, each a process of its own on ports of its own, in a folder of its own.

`SeaweedFS` speaks S3, `Azurite` Azure's protocol; `Rclone` speaks S3 and ignores preconditions, which is
what makes it useful. Their telemetry is off. A tool that is missing makes the tests that need it skip by name;
where everything has to run (`CI=true`) it is an error.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from obstore import sign
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.ports import HOST
from tests.ports import free_port as free_port  # noqa: PLC0414 - others take it from here

if TYPE_CHECKING:
    from obstore.store import S3Config

TOOLS = Path(__file__).parents[2] / ".tools"
START_SECONDS = 60.0
ACCESS, SECRET = "testkey", "testsecret-that-no-message-may-hold"
ACCOUNT = "devstoreaccount1"
AZURE_KEY = base64.b64encode(b"a key that no message may hold, of any length").decode()


class Server(ABC):
    """A running server. `environment` is what a user would set."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._bucket = ""
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **self._own_environment()},
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def _command(self, folder: Path) -> list[str]: ...

    @abstractmethod
    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the variables that lead a client here, or to a proxy at `port`."""

    @abstractmethod
    def make_bucket(self, name: str) -> str:
        """Make a bucket and return its URL."""

    def place(self) -> str:
        """Return a URL below which nothing is. It lies in one bucket: a new one costs a quarter of a second."""
        return f"{self._bucket}/{secrets.token_hex(6)}"

    def _own_environment(self) -> dict[str, str]:
        return {}

    def stop(self) -> None:
        """Kill it; what it has written is a test's and goes with the test's folder."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _wait(self) -> None:
        """Wait until it stores something: it answers some time before it can do that."""
        until = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{type(self).__name__} did not start:\n{self._log.read_text()[-3000:]}")
            try:
                self._bucket = self.make_bucket(f"bucket-{secrets.token_hex(6)}")
            except (OSError, BaseError):
                time.sleep(0.05)
            else:
                return


class S3Server(Server):
    """What the servers that speak S3 have in common."""

    def environment(self, port: int | None = None) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> str:
        config = {key.lower(): value for key, value in self.environment().items()}
        client = S3Store(name, config=cast("S3Config", config))
        url = sign(client, "PUT", "", timedelta(minutes=1))
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()
        client.put("ready", b"yes")
        client.delete("ready")
        return f"s3://{name}"


class SeaweedFS(S3Server):
    """Keeps every promise of S3 that the store relies on."""

    def _command(self, folder: Path) -> list[str]:
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        others = ("master", "volume", "filer", "admin")
        ports = [f"-{name}.port{kind}={free_port()}" for name in others for kind in ("", ".grpc")]
        return [
            *(tool("weed"), f"-logdir={folder}", "mini", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}"),
            *(f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}", f"-s3.config={folder / 's3.json'}"),
            *(f"-filer.localSocket={folder / 'filer'}", f"-s3.localSocket={folder / 's3'}"),
            *("-master.telemetry=false", "-admin.ui=false", "-webdav=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *ports,
        ]


class Rclone(S3Server):
    """Takes the condition of a conditional write and ignores it."""

    def _command(self, folder: Path) -> list[str]:
        (folder / "data").mkdir()
        address, key = f"{HOST}:{self.port}", f"{ACCESS},{SECRET}"
        return [tool("rclone"), "serve", "s3", f"--addr={address}", f"--auth-key={key}", str(folder / "data")]

    def _own_environment(self) -> dict[str, str]:
        return {"RCLONE_CONFIG": "/dev/null"}


class Azurite(Server):
    """Microsoft's own stand-in for Azure's blob storage."""

    def _command(self, folder: Path) -> list[str]:
        address = ["--blobHost", HOST, "--blobPort", str(self.port), "-l", str(folder)]
        return [tool("azurite-blob"), *address, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def _own_environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{AZURE_KEY}"}

    def environment(self, port: int | None = None) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://{HOST}:{port or self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> str:
        date = formatdate(usegmt=True)
        # Shared Key Lite would do for more; a container is all that is made by hand here.
        lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", "x-ms-version:2023-11-03"]
        resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.digest(base64.b64decode(AZURE_KEY), "\n".join([*lines, resource]).encode(), "sha256")
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}/{ACCOUNT}/{name}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": "2023-11-03",
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        urllib.request.urlopen(request, timeout=60).close()
        return f"az://{name}"


def tool(name: str) -> str:
    """Return the path of a program, from beside Python or from `.tools`; skip the test where there is none."""
    folders = (str(Path(sys.executable).parent), str(TOOLS / "node_modules" / ".bin"))
    for folder in folders:
        if found := shutil.which(name, path=folder):
            return found
    return missing(f"{name} is not installed (scripts/tools installs it)")


def missing(why: str) -> NoReturn:
    """Skip by name, except where everything has to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)
