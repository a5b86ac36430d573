"""A small server that speaks so much of W&B's protocol that the real client logs to it, and goes on in a run.

It holds the rows of each run's history, where the client says that they lie, as W&B's own service does.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HISTORY = "wandb-history.jsonl"
NOBODY = {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}


class WandbServer:
    """Serves on a port of its own until it is closed."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        """By run, what was logged to it."""
        self.config: dict[str, dict[str, Any]] = {}
        self.summary: dict[str, dict[str, Any]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path.endswith("/file_stream"):
                    self._answer(server.stream(self.path.split("/")[4], json.loads(body)))
                elif self.path == "/graphql":
                    asked = json.loads(body)
                    self._answer({"data": server.answer(asked["query"], asked.get("variables", {}))})
                else:
                    self._answer({})

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer({})

            def do_GET(self) -> None:
                self._answer({})

            def _answer(self, answer: Any) -> None:
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Http(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """Say nothing: a client that was killed leaves its connection open."""

        self._http = Http(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def stream(self, run: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Take rows of a run's files."""
        files = sent.get("files") or {}
        if HISTORY in files:
            rows, offset = self.rows[run], files[HISTORY]["offset"]
            rows[offset:] = [json.loads(line) for line in files[HISTORY]["content"]]
        for line in files.get("wandb-summary.json", {}).get("content", ()):
            self.summary[run] = json.loads(line)
        return {"exitcode": None, "limits": {}}

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the client."""
        found = re.search(r"(?:query|mutation) (\w+)", query)
        name = str(variables.get("name") or "")
        match found.group(1) if found else "":
            case "RunResumeStatus":
                project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}}
                return {"model": {**project, "bucket": self._status(name) if name in self.rows else None}}
            case "UpsertBucket":
                new = name not in self.rows
                self.rows.setdefault(name, [])
                if variables.get("config"):
                    self.config[name] = json.loads(variables["config"])
                return {"upsertBucket": {"bucket": self._bucket(name), "inserted": new}}
            case "Viewer":
                return {"viewer": NOBODY}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "CreateRunFiles":
                files = [{"name": file, "uploadUrl": f"{self.url}/{file}"} for file in variables["files"]]
                return {"createRunFiles": {"runID": name, "uploadHeaders": [], "files": files}}
            case _:
                return {}

    def _status(self, run: str) -> dict[str, Any]:
        rows = self.rows[run]
        return {
            "id": f"b-{run}", "name": run, "displayName": run, "summaryMetrics": json.dumps(self.summary.get(run, {})),
            "historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "eventsTail": "[]",
            "config": json.dumps(self.config.get(run, {})), "tags": [], "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip

    def _bucket(self, run: str) -> dict[str, Any]:
        return {
            "id": f"b-{run}", "name": run, "displayName": run, "description": "", "config": "{}", "sweepName": None,
            "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}},
            "historyLineCount": len(self.rows[run]),
        }  # fmt: skip
