"""The project's own callbacks: fairrf_lightning has no top-level package of this name to shadow it."""

from lightning import Callback, LightningModule, Trainer


class Report(Callback):
    """Prints what was logged at the end of training."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the metrics, sorted by name."""
        del pl_module
        print(
            ", ".join(
                f"{name} {float(value):.3f}" for name, value in sorted(trainer.callback_metrics.items())
            )
        )
