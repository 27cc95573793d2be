"""Commands of the documentation that do not run in a test, each with the reason."""

from __future__ import annotations

import re

# Patterns of whole commands. A test shows that each occurs in the documentation.
CANNOT_RUN = {
    r"pip install .*": "installs packages; .ci/run does so in a fresh environment",
    r"pre-commit install": "changes the repository's git hooks",
    r"pytest( .*)?": "these tests themselves",
    r"\.ci/(run|versions|wheel)": "runs these tests themselves",
    r"torchrun --nnodes 4 .*": "needs four machines",
    r"srun .*": "needs four machines; tests/scale has a SLURM cluster of two",
    r"wandb (sweep|agent|sync)\b.*": "needs a W&B server; tests/tracking has one on loopback",
    r"python train\.py dashboard .*": "needs a W&B account; tests/tracking has a server on loopback",
}


def reason(command: str) -> str | None:
    """Return why a command does not run here; ``None`` if it does."""
    return next((why for pattern, why in CANNOT_RUN.items() if re.fullmatch(pattern, command)), None)
