"""Reads the file of an offline W&B run: blocks of the LevelDB log format, each record a protobuf."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")  # checksum, length, and whether it is whole or the first, middle or last part
_WHOLE, _LAST = 1, 4


@dataclass
class RunFile:
    """What a run file holds."""

    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)

    def values(self, name: str) -> list[Any]:
        return [row[name] for row in self.history if name in row]


def read_run(path: Path) -> RunFile:
    """Return what the file holds, its checksums checked."""
    run, steps = RunFile(), defaultdict[int, dict[str, Any]](dict)
    for data in _records(path.read_bytes()):
        record = pb.Record.FromString(data)  # type: ignore[attr-defined]
        kind = record.WhichOneof("record_type")
        if kind == "run":
            _update(run.config, record.run.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "history":
            _update(steps[record.history.step.num], record.history.item)
        elif kind == "summary":
            _update(run.summary, record.summary.update)
        elif kind == "metric":
            run.metrics[record.metric.name or record.metric.glob_name] = record.metric
        elif kind == "artifact":
            run.artifacts.append(record.artifact)
    run.history = [steps[number] for number in sorted(steps)]
    return run


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        *parents, name = list(item.nested_key) or [item.key]
        inner = target
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = json.loads(item.value_json)


def _records(data: bytes) -> list[bytes]:
    assert data[:4] == b":W&B"
    records, parts, position = [], b"", 7
    while position + _HEADER.size <= len(data):
        if _BLOCK - position % _BLOCK < _HEADER.size:  # the rest of a block is too short for a header
            position += _BLOCK - position % _BLOCK
            continue
        checksum, length, kind = _HEADER.unpack_from(data, position)
        part = data[position + _HEADER.size : position + _HEADER.size + length]
        assert zlib.crc32(bytes([kind]) + part) == checksum
        parts += part
        if kind in (_WHOLE, _LAST):
            records.append(parts)
            parts = b""
        position += _HEADER.size + length
    return records
