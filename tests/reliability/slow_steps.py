"""Run the command line with slow training steps, so that a signal arrives within an epoch."""

from __future__ import annotations

import time
from typing import Any

from fairrf_lightning.cli import main
from fairrf_lightning.module import FairRFModule

_training_step = FairRFModule.training_step


def training_step(self: FairRFModule, batch: Any) -> Any:
    """Train on a batch, slowly."""
    print("training", flush=True)  # noqa: T201 - the test waits for it
    time.sleep(0.1)
    return _training_step(self, batch)


def arrange() -> None:
    """Slow down the training steps of this process."""
    FairRFModule.training_step = training_step  # type: ignore[method-assign]


if __name__ == "__main__":
    arrange()
    main()
