"""Tables in Google Cloud Storage, with a real server on loopback whose connections can be made to fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyarrow import fs

from fairrf_lightning.errors import InputError
from tests.datamodules.remote import FILES, check_it_trains_as_a_local_copy, put, put_people, refused
from tests.datamodules.test_streaming import loader, people, rows_of, table

pytest.importorskip("gcp_storage_emulator")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

if not hasattr(fs, "GcsFileSystem"):
    pytest.skip("pyarrow is built without Google Cloud Storage", allow_module_level=True)

BUCKET = "gs://people"
SERVER = Path(__file__).with_name("gcs_server.py")
Fail = Callable[[str, int], int]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start the server; return its address."""
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the key file of a service account."""
    secret = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("key") / "key.json"
    account = {"type": "service_account", "client_email": "name@project.example", "private_key_id": "1"}
    path.write_text(json.dumps(account | {"private_key": secret.decode()}), encoding="utf-8")
    return path


@pytest.fixture
def fail(endpoint: str) -> Iterator[Fail]:
    """Return a function that makes the next reads fail, and returns how many of the last were left."""

    def ask(fault: str, times: int) -> int:
        with urlopen(f"{endpoint}/fault/{fault}/{times}") as answer:  # noqa: S310 - our own server
            return int(answer.read())

    yield ask
    ask("500", 0)


@pytest.fixture(autouse=True)
def storage(endpoint: str, key: Path, monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", endpoint)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    system, _ = fs.FileSystem.from_uri(BUCKET)
    return system


def test_remote_and_local_tables_give_the_same_model_and_resume_exactly(
    storage: fs.FileSystem, tmp_path: Path
) -> None:
    check_it_trains_as_a_local_copy(storage, BUCKET, tmp_path)


@pytest.mark.parametrize("fault", ["dropped", pytest.param("500", marks=pytest.mark.slow)])
def test_fault_within_an_epoch_is_retried(storage: fs.FileSystem, fail: Fail, fault: str) -> None:
    data = table(put_people(storage, BUCKET), related=["age", "year"])
    options: dict[str, Any] = {"shuffle": True, "buffer_size": 64, "batch_size": 16}
    expected = rows_of(loader(data, **options))
    batches = iter(loader(data, **options))
    begun = next(batches)["row"].tolist()
    fail(fault, 2)
    assert [begun, *(batch["row"].tolist() for batch in batches)] == expected
    assert fail(fault, 0) == 0


@pytest.mark.parametrize("fault", ["500", pytest.param("dropped", marks=pytest.mark.slow)])
def test_lasting_fault_is_one_error(storage: fs.FileSystem, fail: Fail, fault: str) -> None:
    data = table(put_people(storage, BUCKET) + "?retry_limit_seconds=1")
    batches = iter(loader(data, shuffle=True, buffer_size=64, batch_size=16))
    next(batches)
    fail(fault, 1_000_000)
    with pytest.raises(InputError, match=r"gs://people/all.*parquet cannot be read") as caught:
        list(batches)
    assert len(str(caught.value).splitlines()) <= 3
    assert "can resume from its last checkpoint" in str(caught.value)


def test_changed_object_is_noticed(storage: fs.FileSystem) -> None:
    data = table(put_people(storage, BUCKET))
    batches = iter(loader(data, shuffle=True, buffer_size=64, batch_size=16))
    next(batches)
    for number in range(FILES):
        put(storage, f"all/year={2020 + number % 3}/{number:02}.parquet", people().iloc[number::FILES])
    with pytest.raises(InputError, match="has changed since the run began"):
        list(batches)


def test_errors_name_their_cause(
    storage: fs.FileSystem, fail: Fail, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = put_people(storage, BUCKET)
    assert refused(f"{BUCKET}/nothing") == "path: gs://people/nothing does not exist."
    assert refused("gs://nobody/all") == "path: gs://nobody/all does not exist."
    fail("403", 1)
    assert "access is denied.\nThe credentials in force must be allowed" in refused(address)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    no_key = "access is denied.\nThere are no credentials in GOOGLE_APPLICATION_CREDENTIALS or of gcloud."
    assert no_key in refused(f"{address}?retry_limit_seconds=1")
