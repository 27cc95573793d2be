"""Training steps without Lightning's hooks in places where nobody uses them."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.optim import LBFGS, Optimizer

_CALLBACK_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
_MODULE_HOOKS = (
    *_CALLBACK_HOOKS,
    "backward",
    "configure_gradient_clipping",
    "optimizer_step",
    "optimizer_zero_grad",
)


class _QuickOptimization(_AutomaticOptimization):
    """Lightning's optimisation of a batch, without hooks that nobody has: they cost a fifth of a small step.

    It takes the same steps and counts the same progress, so that checkpoints are the same.
    """

    module: LightningModule | None = None

    def run(self, optimizer: Optimizer, batch_idx: int, kwargs: OrderedDict[str, Any]) -> dict[str, Any]:
        """Take one training step."""
        module: Any = self.trainer.lightning_module
        # Callbacks may change both in the middle of a fit.
        if module is not self.module or self.trainer.accumulate_grad_batches != 1 or self._skip_backward:
            return super().run(optimizer, batch_idx, kwargs)
        steps, resets = self.optim_progress.optimizer.step, self.optim_progress.optimizer.zero_grad
        steps.increment_ready()
        before, module._current_fx_name = module._current_fx_name, "training_step"  # noqa: SLF001 - `log` reads it
        loss: Tensor = module.training_step(*kwargs.values())
        module._current_fx_name = before  # noqa: SLF001
        resets.increment_ready()
        resets.increment_started()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # as zero_grad does, which first enters the context of a profiler
        resets.increment_completed()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps.increment_completed()
        return {"loss": loss.detach()}


class _NoProfiler(PassThroughProfiler):
    """A profiler that does nothing, in less time than Lightning's."""

    _nothing: AbstractContextManager[Any] = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        del action_name
        return self._nothing


def take_quick_steps(trainer: Trainer, module: LightningModule) -> None:
    """Let the steps of a fit skip what they do not need; call this when training starts.

    Results are identical. If the module, a callback or an option of the trainer uses a hook within the steps,
    they stay Lightning's.

    Args:
        trainer: The trainer of the fit.
        module: Its module, whose ``training_step`` returns the loss as a tensor.
    """
    # Lightning has no public way to replace either.
    if type(trainer.profiler) is PassThroughProfiler:
        trainer.profiler = _NoProfiler()
    loop = trainer.fit_loop.epoch_loop
    if type(loop.automatic_optimization) not in (_AutomaticOptimization, _QuickOptimization):
        return
    steps = _AutomaticOptimization(trainer)
    if _has_plain_steps(trainer, module):
        steps = _QuickOptimization(trainer)
        steps.module = module
    steps.optim_progress = loop.automatic_optimization.optim_progress
    loop.automatic_optimization = steps


def _has_plain_steps(trainer: Trainer, module: LightningModule) -> bool:
    own = type(trainer.strategy) is SingleDeviceStrategy and type(trainer.precision_plugin) is Precision
    simple = trainer.accumulate_grad_batches == 1 and not trainer.gradient_clip_val
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return (
        own
        and simple
        and isinstance(trainer.profiler, PassThroughProfiler)
        and all(type(optimizer).__module__.startswith("torch.optim") for optimizer in trainer.optimizers)
        and not any(isinstance(optimizer, LBFGS) for optimizer in trainer.optimizers)  # steps with a closure
        and not any(_has_hook(module, LightningModule, name) for name in _MODULE_HOOKS)
        and not any(_has_hook(callback, Callback, name) for callback in callbacks for name in _CALLBACK_HOOKS)
    )


def _has_hook(owner: Any, base: type, name: str) -> bool:
    return name in vars(owner) or getattr(type(owner), name) is not getattr(base, name)
