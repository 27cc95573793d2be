"""The help of ``fit``, ``test``, ``validate`` and ``predict``: one screen, without importing torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from fairrf_lightning.cli.methods import METHODS
from fairrf_lightning.messages import shell_command
from fairrf_lightning.presets import preset_names

_BUILT_IN = ("drop_in", "pretrain")  # presets of callbacks that `fit` has already
_FIT = """\
Usage: {program} fit --data NAME [options]

Train a classifier with the FairRF penalty, test its best checkpoint, save both.

Data:
  --data NAME                {data};
                             table is a file of your own
  --data.related A,B         columns associated with the sensitive attribute
  --data.path FILE           of table: a CSV or Parquet file; see also
                             --data.target, --data.positive, --data.sensitive
  --data.batch_size N, --data.seed N

Model:
  --model.eta X              weight of the penalty; 0 trains the vanilla model
  --model.backbone NAME      mlp, linear, svm, or the path of a class of yours
  --model.lr X               learning rate (0.001)
  --model.statistic NAME     covariance, correlation or hsic (non-linear)
  --model.given NAME         all rows, or positives for equal opportunity
  --method NAME              {methods}

FairRF:
  --pretrain.epochs N        epochs without the penalty (1)
  --lambda_update.beta X     how evenly lambda is spread over related features
  --lambda_update.every_n_steps N    null keeps lambda fixed

Training:
  --trainer.max_epochs N     number of epochs (20)
  --trainer.devices N, --trainer.accelerator NAME, --trainer.precision NAME
  --trainer.logger NAME      csv, tensorboard, wandb or false (csv)
  --trainer.callbacks+=NAME  {callbacks}
  --checkpoint.monitor NAME  metric that chooses the checkpoint (val_objective)
  --ckpt_path FILE           resume from a checkpoint
  --config FILE              options from a file, such as a run's config.yaml
  --seed_everything N        seed of everything (0)

Example: {program} fit --data compas --trainer.callbacks+=early_stopping

Every option:              {program} fit --help-all
Options of a data set:     {program} fit --data.help adult
Config without training:   {program} fit --data adult --print_config
"""
_EVALUATE = """\
Usage: {program} {name} RUN [options]

{about}

  RUN                        folder of a run, such as lightning_logs/version_0,
                             or a checkpoint (also --ckpt_path FILE); it knows
                             its model, data, split and encoding
{own}  --data.path FILE           {path}
  --trainer.devices N, --trainer.accelerator NAME, --trainer.precision NAME

Every option:              {program} {name} --help-all
"""
_MOVED = """\
the table, if it was moved; other options of the
                             data are those of the checkpoint"""
_PATH = {
    "predict": """\
new rows, encoded as in training; by default the
                             table of training with all of its rows, or the
                             test rows of a named data set"""
}
_OWN = {"predict": "  --predictions.path FILE    CSV file to write (predictions.csv)\n"}


def training_help(name: str, about: str) -> str:
    """Return the help of a command that trains or evaluates one model, and what it is about."""
    program = shell_command()
    if name != "fit":
        own, path = _OWN.get(name, ""), _PATH.get(name, _MOVED)
        return _EVALUATE.format(program=program, name=name, about=about, own=own, path=path)
    callbacks = [one for one in preset_names("callbacks") if one not in _BUILT_IN]
    data = _fill(preset_names("datamodules"))
    return _FIT.format(program=program, data=data, methods=_fill(METHODS), callbacks=_fill(callbacks))


def _fill(names: Iterable[str]) -> str:
    """Return names with commas, in the second column of the help."""
    return textwrap.fill(", ".join(names), 80 - 29).replace("\n", "\n" + " " * 29)
