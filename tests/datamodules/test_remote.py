"""Tables in remote storage, with a real S3 server on loopback whose connections can be made to fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules.parquet import ParquetDirectory
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import load_run
from tests.datamodules.remote import FILES, check_it_trains_as_a_local_copy, put, put_people, refused
from tests.datamodules.test_streaming import loader, people, rows_of, table

pytest.importorskip("flask")
moto_server = pytest.importorskip("moto.server")
serving = pytest.importorskip("werkzeug.serving")

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]
BUCKET = "s3://people"
_QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false"


class FaultyServer:
    """moto's S3 server; the next ``times`` reads of Parquet files fail in one way."""

    def __init__(self) -> None:
        self.app: Wsgi = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
        self.server = serving.make_server("127.0.0.1", 0, self, threaded=True)
        self.times, self.fault, self.requests = 0, "", 0
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fail(self, fault: str, times: int) -> None:
        self.fault, self.times = fault, times

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.fault == "403" and self.times:
            start_response("403 FORBIDDEN", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        is_read = environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith(".parquet")
        if is_read:
            self.requests += 1
        if not is_read or not self.times:
            return self.app(environ, start_response)
        self.times -= 1
        if self.fault == "500":
            start_response("500 INTERNAL SERVER ERROR", [("Content-Type", "text/plain")])
            return [b"broken"]
        return self._dropped(self.app(environ, start_response))

    @staticmethod
    def _dropped(body: Iterable[bytes]) -> Iterator[bytes]:
        whole = b"".join(body)
        yield whole[: len(whole) // 2]
        raise ConnectionResetError


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    found = FaultyServer()
    yield found
    found.server.shutdown()


@pytest.fixture(autouse=True)
def storage(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[fs.FileSystem]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    system, _ = fs.FileSystem.from_uri(f"{BUCKET}?allow_bucket_creation=true&allow_bucket_deletion=true")
    system.create_dir("people")
    yield system
    server.fail("", 0)
    system.delete_dir_contents("people")


def test_remote_and_local_tables_give_the_same_model_and_resume_exactly(
    storage: fs.FileSystem, tmp_path: Path
) -> None:
    address, trainer = check_it_trains_as_a_local_copy(storage, BUCKET, tmp_path)
    assert load_run(tmp_path / "2.ckpt").data.hparams["path"] == address
    assert trainer.datamodule.display_name == "all"


@pytest.mark.parametrize(
    ("fault", "num_workers"), [("500", 0), ("dropped", 0), pytest.param("dropped", 1, marks=pytest.mark.slow)]
)
def test_fault_within_an_epoch_is_retried(
    storage: fs.FileSystem, server: FaultyServer, fault: str, num_workers: int
) -> None:
    data = table(put_people(storage, BUCKET))
    options: dict[str, Any] = {
        "shuffle": True,
        "buffer_size": 64,
        "batch_size": 16,
        "num_workers": num_workers,
    }
    expected = rows_of(loader(data, **options))
    batches = iter(loader(data, **options))
    begun = next(batches)["row"].tolist()
    server.fail(fault, 2)
    assert [begun, *(batch["row"].tolist() for batch in batches)] == expected
    assert server.times == 0


@pytest.mark.parametrize("fault", ["500", "dropped"])
def test_lasting_fault_is_one_error(storage: fs.FileSystem, server: FaultyServer, fault: str) -> None:
    data = table(put_people(storage, BUCKET))
    batches = iter(loader(data, shuffle=True, buffer_size=64, batch_size=16))
    next(batches)
    server.fail(fault, 1_000_000)
    with pytest.raises(InputError, match=r"s3://people/all/year=.*parquet cannot be read") as caught:
        list(batches)
    assert len(str(caught.value).splitlines()) <= 3
    assert "can resume from its last checkpoint" in str(caught.value)


def test_changed_object_is_noticed(storage: fs.FileSystem) -> None:
    data = table(put_people(storage, BUCKET))
    batches = iter(loader(data, shuffle=True, buffer_size=64, batch_size=16))
    next(batches)
    for number in range(FILES):  # of the same size, within the same second
        name = f"all/year={2020 + number % 3}/{number:02}.parquet"
        rows = people().iloc[number::FILES]
        put(storage, name, rows.assign(number=rows["number"].to_numpy()[::-1]))
    with pytest.raises(InputError, match="has changed since the run began"):
        list(batches)


def test_partitions_are_columns(storage: fs.FileSystem) -> None:
    data = table(put_people(storage, BUCKET), related=["age", "year"])
    assert data.encoder.kinds["year"] == "number"
    assert ParquetDirectory(data.path).empty_table.schema.field("year").type == pa.int32()
    years = {}
    for number in range(FILES):
        years.update(dict.fromkeys(range(number, len(people()), FILES), 2020 + number % 3))
    mean, std = data.encoder.scales["year"]
    place, column = data.encoder.owners["number"][0], data.encoder.owners["year"][0]
    centre, spread = data.encoder.scales["number"]
    for batch in loader(data, "val"):
        for row in batch["inputs"]:
            assert round(float(row[column] * std + mean)) == years[round(float(row[place] * spread + centre))]


@pytest.mark.parametrize("role", ["sensitive", "target"])
def test_partitions_as_categories(tmp_path: Path, role: str) -> None:
    frame = people().dropna(subset=["sex"])
    column = {"sensitive": "sex", "target": "hired"}[role]
    frame.to_parquet(tmp_path / "parts", partition_cols=[column], index=False)
    data = table(str(tmp_path / "parts"))
    assert data.group_names == ["f", "m"]
    assert sum(data.split_sizes.values()) == len(frame)
    seen = chain.from_iterable(batch["groups"].tolist() for batch in loader(data, "test"))
    assert set(seen) == {0, 1}


def test_missing_and_text_partitions(tmp_path: Path) -> None:
    frame = people().assign(region=lambda rows: rows["town"].map({"x": "a b", "y": "c"}))
    frame.to_parquet(tmp_path / "parts", partition_cols=["region"], index=False)
    data = table(str(tmp_path / "parts"))
    assert data.encoder.categories["region"] == ["a b", "c", "(missing)"]
    twice = tmp_path / "parts" / "region=c" / "more.parquet"
    frame.to_parquet(twice, index=False)
    with pytest.raises(InputError, match="more than one column 'region'"):
        table(str(tmp_path / "parts"))


def test_commands_on_a_remote_table(
    storage: fs.FileSystem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    address = put_people(storage, BUCKET)
    options = f"--data.path {address} --data.target hired --data.related [age,year] --data.sensitive sex"
    main(f"fit --data table {options} --data.batch_size 64 --trainer.max_epochs 2 {_QUIET}".split())
    run = "lightning_logs/version_0"
    main(f"test --ckpt_path {run} {_QUIET}".split())
    main(f"predict --ckpt_path {run} {_QUIET}".split())
    assert len(pd.read_csv("predictions.csv")) == len(people())
    main(f"audit {run} --out audit".split())
    people().dropna(subset="sex").assign(year=2020).to_csv("sample.csv", index=False)
    main(f"certify {run} --audit_sample sample.csv".split())
    main(f"report {run}".split())
    assert "Test split" in capsys.readouterr().out
    assert list(Path(run).rglob("report.html"))


def test_errors_name_their_cause(
    storage: fs.FileSystem, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert refused("s3://nobody/all") == "path: s3://nobody/all: there is no such bucket."
    assert refused(f"{BUCKET}/nothing") == "path: s3://people/nothing does not exist."
    assert "holds a secret" in refused("s3://name:word@people/all")
    assert "give it by url and sha256" in refused("https://example.org/people.parquet")
    assert "reading oss:// needs a package" in refused("oss://people/all")
    assert "Protocol not known: nope" in refused("nope://people/all")
    assert "reading hdfs:// needs Java and Hadoop" in refused("hdfs://name:9000/people")
    with storage.open_output_stream("people/csv/a.csv") as out:
        out.write(b"a,b\n1,2\n")
    assert "holds no file whose name ends in .parquet" in refused(f"{BUCKET}/csv")
    server.fail("403", 1)
    assert "access is denied.\nThe credentials in force must be allowed" in refused(f"{BUCKET}/all")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "access is denied.\nThere are no credentials in AWS_ACCESS_KEY_ID" in refused(f"{BUCKET}/all")
    server.fail("", 0)


def test_unreachable_storage_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert re.search("cannot be read: .*[Cc]ould not connect", refused(f"{BUCKET}/all"))


def test_single_remote_file_and_fsspec(storage: fs.FileSystem) -> None:
    put(storage, "one.parquet", people())
    assert sum(table(f"{BUCKET}/one.parquet").split_sizes.values()) == len(people())
    memory = pytest.importorskip("fsspec").filesystem("memory")
    with memory.open("/people/a.parquet", "wb") as out:
        people().to_parquet(out, index=False)
    assert sum(table("memory://people").split_sizes.values()) == len(people())
