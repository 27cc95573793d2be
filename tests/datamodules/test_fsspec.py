"""A table at an address that pyarrow does not know, with a real FTP server on loopback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from fairrf_lightning.errors import InputError
from tests.datamodules.remote import check_it_trains_as_a_local_copy, put_people, refused
from tests.datamodules.test_streaming import loader, table

servers = pytest.importorskip("pyftpdlib.servers", reason="needs fairrf-lightning[test-slow]")
handlers = pytest.importorskip("pyftpdlib.handlers")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(logging.getLogger("pyftpdlib"), "propagate", False)
    authorizer = pytest.importorskip("pyftpdlib.authorizers").DummyAuthorizer()
    authorizer.add_anonymous(str(tmp_path))
    handler = type("Handler", (handlers.FTPHandler,), {"authorizer": authorizer})
    started = servers.ThreadedFTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=started.serve_forever, kwargs={"timeout": 0.1, "handle_exit": False})
    thread.start()
    yield started
    started.close_all()
    thread.join()


@pytest.fixture
def storage(tmp_path: Path) -> fs.FileSystem:
    for year in (2020, 2021, 2022):
        (tmp_path / "people" / "all" / f"year={year}").mkdir(parents=True)
    return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())


def address(server: Any) -> str:
    return f"ftp://127.0.0.1:{server.address[1]}/people"


def test_remote_and_local_tables_give_the_same_model(
    server: Any, storage: fs.FileSystem, tmp_path: Path
) -> None:
    check_it_trains_as_a_local_copy(storage, address(server), tmp_path)


def test_a_server_that_ends_is_one_error(server: Any, storage: fs.FileSystem) -> None:
    data = table(put_people(storage, address(server)))
    batches = iter(loader(data, shuffle=True, buffer_size=64, batch_size=16))
    next(batches)
    server.close_all()
    with pytest.raises(InputError, match=r"ftp://127.0.0.1.*parquet cannot be read") as caught:
        list(batches)
    assert len(str(caught.value).splitlines()) <= 3
    assert "can resume from its last checkpoint" in str(caught.value)


def test_errors_name_their_cause(server: Any, storage: fs.FileSystem) -> None:
    del storage
    assert refused(f"{address(server)}/nothing").endswith("/nothing does not exist.")
