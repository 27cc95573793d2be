"""Keeps the chosen checkpoint, across resumes too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint


class BestCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint, which forgets the best score when its folder is spelt otherwise."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was; a relative and an absolute path may be one folder."""
        saved = state_dict.get("dirpath")
        if saved and self.dirpath and Path(saved).resolve() == Path(self.dirpath).resolve():
            state_dict = state_dict | {"dirpath": self.dirpath}
        super().load_state_dict(state_dict)
