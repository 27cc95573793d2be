"""A server of Google Cloud Storage on loopback, whose reads of Parquet files can be made to fail.

It runs in a process of its own: pyarrow holds the interpreter's lock while it waits for this storage.
"""

from __future__ import annotations

from functools import partial
from http.server import ThreadingHTTPServer

from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage


class FaultyHandler(RequestHandler):  # type: ignore[misc]
    """``GET /fault/KIND/TIMES`` makes the next reads fail, and returns how many of the last were left."""

    fault, times = "", 0

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        if self.path.startswith("/fault/"):
            left, (kind, times) = FaultyHandler.times, self.path.split("/")[2:]
            FaultyHandler.fault, FaultyHandler.times = kind, int(times)
            self._answer(200, str(left).encode())
        elif not self.headers.get("Authorization", "").startswith("Bearer "):
            self._answer(401)
        elif FaultyHandler.fault == "403" and FaultyHandler.times:
            self._answer(403)
        elif FaultyHandler.times and "alt=media" in self.path:
            FaultyHandler.times -= 1
            if FaultyHandler.fault == "500":
                self._answer(500)
            else:
                self._answer(206, announced=1_000)
        else:
            super().do_GET()

    def _answer(self, status: int, body: bytes = b"", announced: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(announced or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def main() -> None:
    """Serve an empty bucket and print the port."""
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket("people", storage)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(FaultyHandler, storage))
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
