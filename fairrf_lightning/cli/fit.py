"""``fit``, and what ``test``, ``validate`` and ``predict`` share with it: LightningCLI with our callbacks."""

from __future__ import annotations

import signal
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, Namespace, dict_to_namespace
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden

import fairrf_lightning.methods  # noqa: F401 - its classes are found by their names
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.callbacks.checkpointing import BEST, BestCheckpoint, check_no_other_run, chosen_by
from fairrf_lightning.callbacks.run_files import RunRecord, add_to_record, run_directory
from fairrf_lightning.callbacks.stopping import StoppedBySignal, StopRequest, exit_by_signal
from fairrf_lightning.checkpoints import (
    WholeFileIO,
    restoring,
)
from fairrf_lightning.cli.checkpoint_options import check_checkpoint
from fairrf_lightning.cli.errors import NO_DATA, explain
from fairrf_lightning.cli.output import (
    ProgressLine,
    print_next_commands,
    print_results,
    quieten,
)
from fairrf_lightning.cli.parsing import ShortNameParser
from fairrf_lightning.cli.short_names import METHOD_HELP, SHORT_NAMES, split_options
from fairrf_lightning.cli.tables import print_lines
from fairrf_lightning.errors import InputError
from fairrf_lightning.messages import install_command, shell_command
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.notices import Stage, model_notices
from fairrf_lightning.presets import fit_callbacks, import_class, recommended

TABLES = (".csv", ".csv.gz", ".parquet", ".xlsx")
_DEFAULT_LOGGER = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": ""}}
_TRAINER_DEFAULTS = {"max_epochs": 20, "log_every_n_steps": 1}  # FairRFModule logs once an epoch


def given_options(args: list[str]) -> dict[str, str]:
    """Return the options among the arguments, with their values."""
    return {key: value for key, value, _ in split_options(args) if key.startswith("--")}


def needs_run(command: str) -> InputError:
    """Return the error for a command without a trained model."""
    run = shell_command(command, "lightning_logs/version_0")
    return InputError(f"{command} needs a trained model: name its run, or a checkpoint, such as {run}")


class FairRFCLI(LightningCLI):
    """LightningCLI with FairRF's callbacks, per-data-set defaults and a table at the end."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument_group("Methods", METHOD_HELP)
        for option, spec in fit_callbacks().items():
            parser.add_lightning_class_args(import_class(spec["class_path"]), option)
            values = spec.get("init_args", {})
            parser.set_defaults({f"{option}.{name}": value for name, value in values.items()})
        parser.set_defaults({"model": {"class_path": "fairrf_lightning.FairRFModule"}})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments, and check the checkpoint before Lightning loads it."""
        self._given = list(args)
        if (path := given_options(self._given).get("--ckpt_path", "")).endswith(TABLES):
            raise InputError(
                f"--ckpt_path {path}: this is a table, not a checkpoint. Name the table by --data.path, "
                "and a model, such as lightning_logs/version_0/checkpoints/best.ckpt, here."
            )
        super().parse_arguments(parser, args)
        config = self.config[self.config.subcommand]
        if self.config.subcommand != "fit" and not config.get("ckpt_path"):
            raise needs_run(self.config.subcommand)
        self._checkpoint = check_checkpoint(
            config.clone().as_dict(), given_options(self._given), resumes=self.config.subcommand == "fit"
        )

    def _parse_ckpt_path(self) -> None:
        try:
            super()._parse_ckpt_path()
        except (ArgumentError, ValueError, TypeError) as error:
            path = self.config[self.config.subcommand].ckpt_path
            raise InputError(
                f"--ckpt_path {path}: its options of the model cannot be used ({explain(error)})."
            ) from error

    def before_instantiate_classes(self) -> None:
        """Fill in the data set's recommended eta and beta, and the options of W&B."""
        config = self.config[self.subcommand]
        _check_options(config)
        values = _recommended(config)
        if config.lambda_update.beta is None:
            config.lambda_update.beta = values.get("beta", 0.5)
        model_args = config.model.get("init_args") or {}
        if "eta" in model_args and model_args["eta"] is None:
            model_args["eta"] = values.get("eta", 0.3)
        _place_logs(config.trainer, self.subcommand)
        _prepare_checkpoint(config)
        if self.subcommand != "fit":
            # A warning about the checkpoint callback, which is not used here.
            warnings.filterwarnings("ignore", message="The dirpath has changed")

    def after_instantiate_classes(self) -> None:
        """Build the model for the data now: some callbacks copy it before Lightning calls setup."""
        if self.subcommand != "fit":
            return  # a table's columns may be known from the checkpoint only, which is not restored yet
        if isinstance(self.model, FairRFModule) and hasattr(self.datamodule, "related_columns"):
            self.datamodule.prepare_data()
            if state := self._checkpoint.get(type(self.datamodule).__qualname__):
                with restoring(self.config[self.subcommand].ckpt_path):
                    self.datamodule.load_state_dict(state)
            self.model.adapt_to(self.datamodule)
        self._use_given_optimizer()

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Do nothing yet: :meth:`after_instantiate_classes` builds the model, then its optimiser."""

    def _use_given_optimizer(self) -> None:
        if self._get(self.config, "optimizer") and not any(True for _ in self.model.parameters()):
            raise InputError(
                f"--optimizer: {type(self.model).__name__} has no parameters before training starts. "
                "Leave the option out, and make the optimiser in the module's configure_optimizers."
            )
        super()._add_configure_optimizers_method_to_model(self.subcommand)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        if config.get("enable_checkpointing") is False:
            callbacks = [callback for callback in callbacks if not isinstance(callback, ModelCheckpoint)]
        given = _as_list(config["callbacks"])
        if any(isinstance(item, WandbLogger) for item in _as_list(config["logger"])):
            from fairrf_lightning.tracking import WandbReport  # noqa: PLC0415 - only for W&B

            if not any(isinstance(item, WandbReport) for item in given):
                callbacks = [*callbacks, WandbReport()]
        if any(isinstance(item, LambdaUpdateCallback) for item in given):  # one that attaches a penalty
            callbacks = [item for item in callbacks if not isinstance(item, LambdaUpdateCallback)]
        # Lightning's own progress bar and summary are there if they are asked for.
        if config["enable_progress_bar"] is None and not any(isinstance(item, ProgressBar) for item in given):
            callbacks = [*callbacks, ProgressLine()]
        config = config | {"enable_model_summary": bool(config["enable_model_summary"])}
        try:
            trainer = super()._instantiate_trainer(config, callbacks)
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise InputError(f"trainer: {error}") from error
        except RuntimeError as error:
            if "more than one stateful callback" not in str(error):
                raise
            raise InputError(f"trainer.callbacks: {str(error).partition('. ')[0]}. Leave one out.") from error
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # unless the user has chosen one
            trainer.strategy.checkpoint_io = WholeFileIO()
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, BestCheckpoint) and self.subcommand == "fit":
                callback.stop_request = StopRequest(self._given)
        return trainer

    def fit(self, **kwargs: Any) -> None:
        """Train, or resume from a checkpoint."""
        folder = None if getattr(self.trainer, "fast_dev_run", False) else run_directory(self.trainer)
        # Before loggers and config.yaml replace its files. In each process, or the others would wait.
        if folder is not None and not kwargs.get("ckpt_path"):
            check_no_other_run(folder / "checkpoints")
        with restoring(kwargs.get("ckpt_path")):
            self.trainer.fit(**kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the command, then print the notices about the model."""
        super()._run_subcommand(subcommand)
        if not (self.trainer.state.finished and self.trainer.is_global_zero):
            return
        stage: Stage = "val" if subcommand == "validate" else "test"
        fitted = subcommand == "fit"
        resumed_at = self._checkpoint.get("global_step") if fitted else None
        notices = model_notices(self.trainer, self.model, stage, fitted=fitted, resumed_at=resumed_at)
        print_lines(*(f"note: {sentence}" for sentence in notices))
        if fitted:
            add_to_record(self.trainer, notices=notices)
            print_next_commands(self.trainer)

    def after_fit(self) -> None:
        """Test the chosen checkpoint, or else the last one, or else the current weights."""
        if getattr(self.trainer, "fast_dev_run", False):
            return
        if not is_overridden("test_step", self.model):
            rank_zero_info(f"{type(self.model).__name__} has no test_step, so it is not tested.")
            return
        checkpoint, strategy = chosen_by(self.trainer), self.trainer.strategy
        path = ""
        if checkpoint is not None:
            path = strategy.broadcast(checkpoint.best_model_path or checkpoint.last_model_path)
        if not path:
            rank_zero_info("No checkpoint was saved: the weights of the last step are tested.")
        elif isinstance(strategy.checkpoint_io, WholeFileIO) and self.trainer.world_size > 1:
            strategy.checkpoint_io.share(path, strategy.broadcast)
        self.test(model=self.model, datamodule=self.datamodule, ckpt_path=path or None)

    def test(self, **kwargs: Any) -> None:
        """Test, and print our table in place of Lightning's."""
        with restoring(kwargs.get("ckpt_path")):
            self.trainer.test(**kwargs | {"verbose": False})
        print_results(self.trainer, self.model, "test")

    def validate(self, **kwargs: Any) -> None:
        """Validate, and print our table in place of Lightning's."""
        with restoring(kwargs.get("ckpt_path")):
            self.trainer.validate(**kwargs | {"verbose": False})
        print_results(self.trainer, self.model, "val")

    def predict(self, **kwargs: Any) -> None:
        """Predict."""
        with restoring(kwargs.get("ckpt_path")):
            self.trainer.predict(**kwargs)


def _as_list(items: Any) -> list[Any]:
    if isinstance(items, list):
        return items
    return [items] if items else []


def _check_options(config: Namespace) -> None:
    """Raise if options contradict each other or what the command needs."""
    if config.trainer.get("barebones"):
        raise InputError(
            "--trainer.barebones true switches off logging, checkpoints and metrics, which are needed here.\n"
            "For a lean run: --trainer.logger false --trainer.enable_checkpointing false "
            "--trainer.enable_progress_bar false --trainer.enable_model_summary false"
        )
    if config.get("lr_scheduler") and not config.get("optimizer"):
        raise InputError(
            "--lr_scheduler has no effect without --optimizer: name both, for example --optimizer Adam "
            "--optimizer.lr 0.001. Or set --model.lr_scheduler, which goes with the model's own optimiser."
        )
    for callback in _as_list(config.trainer.get("callbacks")):
        _check_callback(callback, config)


def _check_callback(callback: Any, config: Namespace) -> None:
    """Raise if a callback of ``--trainer.callbacks`` is one that ``fit`` has already."""
    made = import_class(callback.class_path)
    built_in = {option: import_class(spec["class_path"]) for option, spec in fit_callbacks().items()}
    option = next((name for name, cls in built_in.items() if issubclass(made, cls)), None)
    if option is None:
        return
    if option == "lambda_update" and (callback.get("init_args") or {}).get("penalty"):
        given = config.lambda_update
        if given.beta is None and given.every_n_steps == "auto":
            return  # it takes the place of the built-in one
        raise InputError(
            "--lambda_update.* has no effect: --trainer.callbacks has a LambdaUpdateCallback with a penalty. "
            "Set beta and every_n_steps there."
        )
    raise InputError(
        f"--trainer.callbacks: {made.__name__} is built in already. Leave it out, and set its options by "
        f"--{option}.* (see fit --help)."
    )


def _place_logs(trainer: Namespace, command: str | None) -> None:
    """Choose the CSV logger for ``fit`` by default, and ``default_root_dir`` for loggers without a folder."""
    if trainer.logger is None and command != "fit":
        trainer.logger = False  # or else a folder that looks like one of a run
    if trainer.logger in (None, True):
        trainer.logger = dict_to_namespace(_DEFAULT_LOGGER)
    root = str(Path(trainer.get("default_root_dir") or ".").expanduser())
    for logger in _as_list(trainer.logger):
        _use_our_wandb_logger(logger)
        options = logger.get("init_args") if isinstance(logger, Namespace) else None
        # Short names leave the folder empty; "." is W&B's own default.
        if options is not None and options.get("save_dir") in ("", "."):
            options.save_dir = root


def _use_our_wandb_logger(logger: Namespace) -> None:
    """Replace Lightning's WandbLogger by ours; raise if W&B is not installed."""
    if not logger.class_path.endswith("WandbLogger"):
        return
    if find_spec("wandb") is None:
        raise InputError(
            f"--trainer.logger wandb: the package wandb is not installed; run: {install_command('wandb')}"
        )
    if logger.class_path.startswith("lightning."):
        logger.class_path = SHORT_NAMES["trainer.logger"]["wandb"]


def _prepare_checkpoint(config: Any) -> None:
    options = config.checkpoint
    if (
        not issubclass(import_class(config.model.class_path), FairRFModule)
        and options.monitor == "val_objective"
    ):
        options.monitor = None  # other modules may not log it
    if "_acc" in (options.monitor or ""):
        options.mode = "max"
    if options.filename is None and options.save_top_k == 1 and options.monitor is not None:
        options.filename = BEST.removesuffix(".ckpt")
    if config.get("ckpt_path") and options.dirpath is None:
        # In a new folder Lightning would forget which checkpoint was the best one so far.
        options.dirpath = str(Path(config.ckpt_path).parent)


def _recommended(config: Any) -> dict[str, float]:
    if not config.get("data"):
        raise InputError(NO_DATA)
    options = config.data.get("init_args") or {}
    if options.get("membership") is not None:
        return {}  # the recommended eta is one for the related features
    return recommended(import_class(config.data.class_path), options)


def run_fit(args: list[str]) -> None:
    """Run a command of LightningCLI; a signal stops ``fit`` where it can be resumed.

    Args:
        args: The name of the command and its arguments.
    """
    quieten()
    if "--help-all" in args or any("Wandb" in arg for arg in args):
        import fairrf_lightning.tracking  # noqa: F401, PLC0415 - a class is found by its name once it is imported
    if "--help-all" in args:
        args = [args[0], "--help"]
    try:
        with exit_by_signal():
            run_lightning_cli(args)
    except KeyboardInterrupt as stopped:
        raise StoppedBySignal(signal.SIGINT) from stopped
    except StoppedBySignal as stopped:
        stopped.explain()
        raise


def run_lightning_cli(args: list[str]) -> FairRFCLI:
    """Parse the arguments of a Lightning command, ``test`` for example, and run it."""
    return FairRFCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        parser_class=ShortNameParser,
        parser_kwargs={"exit_on_error": False},
        save_config_callback=RunRecord,
        seed_everything_default=0,
        trainer_defaults=_TRAINER_DEFAULTS,
        args=args,
    )
