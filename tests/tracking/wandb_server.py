"""A small W&B server on loopback: as much of GraphQL, file stream and storage as the real client needs."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

KEY = "k" * 40


@dataclass
class Run:
    """What the client has sent about one run."""

    history: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    sweep: str | None = None
    complete: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {name: item["value"] for name, item in yaml.safe_load(self.files["config.yaml"]).items()}

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files["wandb-summary.json"])
        return found


@dataclass
class Server:
    """The state of the server.

    ``refuse`` names GraphQL operations to answer with "permission denied", ``mute`` those to answer
    without data.
    """

    url: str = ""
    refuse: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    operations: list[str] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    sweeps: dict[str, str] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)  # what agents are told to run

    def environment(self, key: str = KEY) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": key}

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = found[1] if found else ""
        self.operations.append(operation)
        if operation in self.refuse:
            return {"errors": [{"message": "permission denied"}], "data": None}
        handler = getattr(self, f"_on_{operation.lower()}", None)
        return {"data": {} if handler is None or operation in self.mute else handler(variables)}

    def receive(self, path: str, body: bytes) -> None:
        """Take a file, or a part of the stream of history rows."""
        kind, run_id, name = path.strip("/").split("/", 2)
        if kind == "storage":
            self.runs[run_id].files[name] = body
        elif path.endswith("/file_stream"):
            run = self.runs[path.split("/")[-2]]
            sent = json.loads(body)
            run.complete |= bool(sent.get("complete"))
            rows = sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            run.history += [json.loads(row) for row in rows]

    def _on_viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": [{"node": {"name": "team"}}]}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": teams}}

    def _on_getdefaultentity(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"viewer": {"id": "u", "entity": "me"}}

    def _on_runresumestatus(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"model": None}

    def _on_upsertbucket(self, sent: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(sent["name"], Run())
        run.sweep = sent["sweep"] or run.sweep
        project = {"id": "p", "name": sent["project"], "entity": {"id": "e", "name": sent["entity"] or "me"}}
        bucket = {"id": "b", "name": sent["name"], "displayName": "happy-run-1", "config": "{}"}
        bucket |= {"sweepName": run.sweep, "project": project, "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _on_createrunfiles(self, sent: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/storage/{sent['run']}/{name}"} for name in sent["files"]
        ]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}

    def _on_artifacttype(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"project": None}

    def _on_createartifact(self, sent: dict[str, Any]) -> dict[str, Any]:
        self.artifacts.append(sent["input"])
        sequence = {"id": "s", "latestArtifact": None}
        return {
            "createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": sequence}}
        }

    def _on_upsertview2(self, sent: dict[str, Any]) -> dict[str, Any]:
        self.views.append(sent)
        return {"upsertView": {"view": {"id": "w", "name": sent["name"]}, "inserted": True}}

    def _on_upsertsweep(self, sent: dict[str, Any]) -> dict[str, Any]:
        name = f"sweep{len(self.sweeps)}"
        self.sweeps[name] = sent["config"]
        project = {"id": "p", "name": sent["projectName"], "entity": {"id": "e", "name": "me"}}
        return {"upsertSweep": {"sweep": {"name": name, "project": project}, "configValidationWarnings": []}}

    def _on_sweepwithruns(self, sent: dict[str, Any]) -> dict[str, Any]:
        sweep = {"id": "s", "name": sent["sweep"], "state": "RUNNING", "config": self.sweeps[sent["sweep"]]}
        return {"project": {"sweep": sweep | {"runs": {"edges": []}}}}

    def _on_getsweepstate(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"sweep": {"state": "RUNNING"}}}

    def _on_createagent(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"createAgent": {"agent": {"id": "agent"}}}

    def _on_heartbeat(self, _: dict[str, Any]) -> dict[str, Any]:
        commands, self.commands = self.commands, []
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTPServer

    def log_message(self, *_: Any) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        body = self._read_body()
        if self.path.startswith("/sdk/otel"):  # the client's own telemetry
            self._send(200, {})
        elif self.headers.get("Authorization") != f"Basic {base64.b64encode(f'api:{KEY}'.encode()).decode()}":
            self._send(401, {"errors": [{"message": "user is not logged in"}]})
        elif self.path == "/graphql":
            sent = json.loads(body)
            self._send(200, self.server.state.answer(sent["query"], sent.get("variables") or {}))
        else:
            self.server.state.receive(self.path, body)
            self._send(200, {})

    def do_PUT(self) -> None:
        self.server.state.receive(self.path, self._read_body())
        self._send(200, {})

    def do_GET(self) -> None:
        self._send(200, {})

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    state: Server

    def handle_error(self, *_: Any) -> None:
        """A client that has gone away is no news."""


@contextmanager
def serve() -> Iterator[Server]:
    """Serve on a free port of this machine."""
    http = _HTTPServer(("127.0.0.1", 0), _Handler)
    http.state = Server(url=f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield http.state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
