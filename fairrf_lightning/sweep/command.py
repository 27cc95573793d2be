"""``python train.py sweep --data adult --trials 60``."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import optuna
import torch

from fairrf_lightning.experiments.pareto import plot_trials
from fairrf_lightning.experiments.plot_package import check_matplotlib
from fairrf_lightning.experiments.progress import progress_bar
from fairrf_lightning.report import write_report_if_installed
from fairrf_lightning.report.sources import data_facts, sweep_facts
from fairrf_lightning.sweep.choice import Choice, choose, params_of, trials_frame, write_trials
from fairrf_lightning.sweep.chosen_config import fit_config, write_config
from fairrf_lightning.sweep.loop import Counter, Sweep
from fairrf_lightning.sweep.options import SweepOptions, read_options
from fairrf_lightning.sweep.proposals import Proposals
from fairrf_lightning.sweep.report import print_report
from fairrf_lightning.sweep.storage import Store, open_store, quiet_optuna
from fairrf_lightning.sweep.training import TrialTrainer


def run_sweep(args: Sequence[str]) -> None:
    """Search until the study has its trials, then say which setting to take and write it down."""
    options = read_options(args)
    if options.given.plot:
        check_matplotlib("--plot false")
    options.data.prepare_data()
    options.data.setup()  # what is wrong with the data is told before anything is written
    options.folder.mkdir(parents=True, exist_ok=True)
    store = _open(options)
    trials, epochs = options.given.trials, options.given.epochs
    with progress_bar(f"{trials} trials", trials * epochs) as advance, _helpers(options, args):
        try:
            _work(options, store, advance)
        except KeyboardInterrupt:
            print("Interrupted; the same command goes on.", file=sys.stderr)  # noqa: T201 - the user's terminal
            raise SystemExit(130) from None
    _finish(options, store.study)


def _open(options: SweepOptions) -> Store:
    given = options.given
    with quiet_optuna():
        return open_store(options.storage, given.study, options.identity(), given.heartbeat)


def _work(options: SweepOptions, store: Store, advance: Callable[[float], None]) -> None:
    given = options.given
    proposals = Proposals(store, options.space, given.trials, given.seed)
    trainer = TrialTrainer(options.data, options.space, options.objective, options.seeds, given.epochs)
    batch = max(1, min(given.batch, given.trials // given.workers))
    Sweep(proposals, trainer, batch, Counter(advance), partial(_write_trials, options, store.study)).run()


def _write_trials(options: SweepOptions, study: optuna.Study) -> None:
    trials = study.get_trials(deepcopy=False)
    if any(trial.values for trial in trials):
        frame = trials_frame(trials, options.space, options.objective.name)
        write_trials(frame, options.folder / "trials.csv")


def _finish(options: SweepOptions, study: optuna.Study) -> None:
    measure, budget = options.objective.name, options.given.max_accuracy_loss
    frame = trials_frame(study.get_trials(deepcopy=False), options.space, measure)
    chosen, rejected = choose(frame, measure, budget)
    params = params_of(chosen, options.space)
    setting, schedule = options.space.setting(params), options.space.schedule(params, options.given.epochs)
    config, table = options.folder / "chosen.yaml", options.folder / "trials.csv"
    write_trials(frame, table)
    comment = f"Chosen by `train.py sweep` from {frame['trial'].notna().sum()} trials."
    write_config(fit_config(options.data_config, setting, schedule, options.seeds[0]), config, comment)
    files: list[Path] = [table, config]
    if options.given.plot:
        title = f"{options.name}: validation rows, mean and standard deviation of {len(options.seeds)} seeds"
        files += plot_trials(frame, chosen, measure, options.folder / "pareto", title)
    make_facts = partial(
        sweep_facts,
        frame,
        chosen,
        measure,
        data=data_facts(options.data),
        folder=str(options.folder),
        max_accuracy_loss=budget,
        rejected=rejected,
        configuration={name: str(value) for name, value in options.identity().items()},
    )
    written, hint = write_report_if_installed(make_facts, options.folder)
    files += written
    choice = Choice(chosen, rejected)
    print_report(frame, choice, options.objective, max_accuracy_loss=budget, config=config, files=files)
    if hint:
        print(hint)  # noqa: T201 - the user's terminal


@contextmanager
def _helpers(options: SweepOptions, args: Sequence[str]) -> Iterator[None]:
    """Have the other workers of ``--workers`` at work meanwhile."""
    others = options.given.workers - 1
    if others == 0:
        yield
        return
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.given.workers))
    context = get_context("spawn")
    processes = [context.Process(target=_help, args=(list(args),), daemon=True) for _ in range(others)]
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()


def _help(args: Sequence[str]) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # as in `cli.main`
    options = read_options(args)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.given.workers))
    with suppress(KeyboardInterrupt):
        _work(options, _open(options), lambda _: None)
