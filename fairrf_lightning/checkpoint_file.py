"""Reading and writing checkpoint files: whole, verified, and never a surprise inside."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.files import replacing

_DAMAGED = "Restore it from a copy, or train again."
# The parts that Lightning and this package read by key, with the type that they must have.
_PARTS: dict[str, type | tuple[type, ...]] = {
    "state_dict": Mapping,
    "hyper_parameters": Mapping,
    "datamodule_hyper_parameters": Mapping,
    "class_paths": Mapping,
    "callbacks": Mapping,
    "loops": Mapping,
    "optimizer_states": list,
    "lr_schedulers": list,
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "rng_state": Mapping,
}


class WholeFileIO(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, and verifies it when it is read.

    Lightning moves a finished file from ``TMPDIR``, which tears it if that is another file system.
    """

    def __init__(self) -> None:
        super().__init__()
        self._received: dict[str, bytes] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the file next to its target, sync it and rename it; on failure the previous file stays."""
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                # torch reports a full disk as RuntimeError when it writes the file itself.
                buffer = BytesIO()
                torch.save(checkpoint, buffer)
                unfinished.write_bytes(buffer.getbuffer())
        except OSError as error:
            kept = "the previous file is kept" if path.is_file() else "there is no previous file"
            raise InputError(
                f"{path}: the checkpoint cannot be written ({error.strerror}); {kept}.\n"
                "Free some space or correct the folder, then resume with --ckpt_path from the file kept."
            ) from error

    def load_checkpoint(
        self,
        path: Any,
        map_location: Any = None,
        weights_only: bool | None = None,  # noqa: FBT001 - Lightning's signature
    ) -> dict[str, Any]:
        """Return the content of a file that is undamaged."""
        if not _is_local_file_protocol(path):
            return super().load_checkpoint(path, map_location, weights_only)
        return load_checkpoint(path, "", self._received.get(str(path)))

    def share(self, path: str, broadcast: Callable[[Any], Any]) -> None:
        """Hand the first process's file to all processes, which may have no disk in common.

        Args:
            path: The file, which the first process has.
            broadcast: Returns the first process's value in every process.
        """
        content = broadcast(Path(path).read_bytes() if Path(path).is_file() else None)
        if content is not None and not Path(path).is_file():
            self._received[path] = content


def load_checkpoint(
    path: str | Path, option: str = "--ckpt_path ", content: bytes | None = None
) -> dict[str, Any]:
    """Return what a checkpoint of Lightning holds.

    Args:
        path: The file.
        option: Option that named the file, for the error.
        content: The bytes of the file, if they are at hand.

    Raises:
        InputError: If the file is missing, damaged or not a checkpoint of Lightning.
    """
    name = f"{option}{path}"
    if content is None and not Path(path).is_file():
        raise InputError(f"{name}: there is no such file.")
    try:
        content = Path(path).read_bytes() if content is None else content
        _verify(content, name)
        checkpoint: Any = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        raise InputError(f"{name}: this is not a readable checkpoint ({reason})") from error
    _check_parts(checkpoint, name)
    return dict(checkpoint)


def _verify(content: bytes, name: str) -> None:
    """Raise if a record differs from its checksum, which torch writes but does not verify."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise InputError(
            f"{name}: this is not a readable checkpoint: its record {damaged} differs from its checksum. "
            f"{_DAMAGED}"
        )


def _check_parts(checkpoint: Any, name: str) -> None:
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise InputError(f"{name}: this is not a checkpoint of a Lightning run.")
    for part, expected in _PARTS.items():
        found = checkpoint.get(part)
        if part in checkpoint and (not isinstance(found, expected) or isinstance(found, bool)):
            raise _malformed(name, part, found)
        if isinstance(found, Mapping) and not all(isinstance(key, str) for key in found):
            raise _malformed(name, part, found)
    for weight, value in checkpoint["state_dict"].items():
        if not isinstance(value, Tensor) and not weight.endswith("_extra_state"):
            raise _malformed(name, f"state_dict[{weight!r}]", value)


def _malformed(name: str, part: str, found: Any) -> InputError:
    return InputError(
        f"{name}: its part {part} is malformed (a {type(found).__name__} was found), so it is not a "
        f"checkpoint of a Lightning run. {_DAMAGED}"
    )
