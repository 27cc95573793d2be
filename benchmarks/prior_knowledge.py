"""Evidence for prior knowledge about S: trains, corrects, and writes ``docs/prior-knowledge.md``.

Everything trained or measured is kept in ``--out``, so that an interrupted run resumes. Steps may run in
separate processes: ``--steps names`` and so on for the models, ``--steps page`` for the page.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.prior_knowledge_methods import (
    Case,
    Part,
    Result,
    Runs,
    Scores,
    correction_results,
    knowledge_of,
    logistic_results,
    memberships,
    survey_name,
    trained_results,
)
from benchmarks.prior_knowledge_page import write_page
from benchmarks.prior_knowledge_training import PLANS, Plan, record_cpu, score_path, train
from fairrf_lightning.experiments.results import ResultsFile
from fairrf_lightning.experiments.setting import SETTING_COLUMNS
from fairrf_lightning.files import write_csv
from fairrf_lightning.metrics.counts import GAPS

TRAINED = ("names", "signed", "arl", "fairret")
MEASURED = ("correction", "eg")
STEPS = (*TRAINED, *MEASURED, "page")


def load_runs(plan: Plan, out: Path) -> dict[int, Runs]:
    """Return the models of a data set that were trained so far, by seed."""
    paths = [out / plan.name / f"{family}.csv" for family in TRAINED]
    frames = [ResultsFile(path).frame for path in paths if path.is_file()]
    if not frames:
        return {}
    # The choice computes the mean of every metric: the fewer, the faster.
    metrics = [f"val_{name}" for name in ("acc", "balanced_acc", "positive_share")]
    metrics += [f"test_{name}" for name in ("acc", "positive_share", *GAPS)]
    columns = [*SETTING_COLUMNS, "seed", "method_steps", *metrics]
    by_seed = pd.concat([frame[columns] for frame in frames], ignore_index=True).groupby("seed")
    return {int(str(seed)): Runs(frame, plan.default[0]) for seed, frame in by_seed}


def make_case(plan: Plan, seed: int, runs: Runs, out: Path) -> Case:
    """Return a seed of a data set with its rows."""
    data = plan.make_data()(seed=seed)

    def scores(run: pd.Series) -> Scores:
        path = score_path(out / plan.name / "scores", str(run["method"]), float(run["eta"]), seed)
        found: Scores = torch.load(path, weights_only=True)
        return found

    return Case(data, Part.of(data, "val"), Part.of(data, "test"), runs, scores)


def eg_results(case: Case) -> Iterator[Result]:
    """Yield the results of the methods that start from a logistic regression."""
    source = survey_name(400)
    known = next(known for known in knowledge_of(case, [source]) if known.goal == "dp")
    estimate = memberships(case.data, [source])[source]
    proxy = (estimate(Part.of(case.data, "train").inputs) >= 0.5).long()
    yield from logistic_results(case, known, proxy)


def measure(plan: Plan, step: str, seeds: Sequence[int], out: Path) -> None:
    """Measure corrections or reductions of each seed, unless they are on disk."""
    folder = out / plan.name / step
    folder.mkdir(parents=True, exist_ok=True)
    runs = load_runs(plan, out)
    for seed in seeds:
        path = folder / f"{seed}.csv"
        if path.is_file():
            continue
        start = time.process_time()
        case = make_case(plan, seed, runs[seed], out)
        found = correction_results(case) if step == "correction" else eg_results(case)
        write_csv(pd.DataFrame(list(found)), path)
        seconds = time.process_time() - start
        record_cpu(out, data=plan.name, family=step, first_seed=seed, models=1, seconds=seconds)


def collect(plans: Sequence[Plan], seeds: Sequence[int], out: Path) -> pd.DataFrame:
    """Return all results on disk, one row per data set, seed, method, knowledge, aim and budget."""
    frames = []
    for plan in plans:
        for seed, runs in load_runs(plan, out).items():
            paths = [out / plan.name / step / f"{seed}.csv" for step in MEASURED]
            if seed in seeds:
                found = [
                    pd.DataFrame(list(trained_results(runs))),
                    *(pd.read_csv(p) for p in paths if p.is_file()),
                ]
                frames.append(pd.concat(found).assign(data=plan.name, seed=seed))
    return pd.concat(frames, ignore_index=True).fillna({"aim": ""})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("prior_knowledge"), help="Folder of all results.")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="Folder of the page.")
    parser.add_argument("--data", nargs="+", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--first", type=int, default=400, help="The first seed.")
    parser.add_argument("--seeds", type=int, default=25)
    args = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    seeds = range(args.first, args.first + args.seeds)
    run([PLANS[name] for name in args.data], args.steps, seeds, args.out, args.docs)


def run(plans: Sequence[Plan], steps: Sequence[str], seeds: Sequence[int], out: Path, docs: Path) -> None:
    """Run steps of some data sets, as far as their results are not in ``out``, and write the page."""
    for step in (step for step in steps if step != "page"):
        for plan in plans:
            (train if step in TRAINED else measure)(plan, step, seeds, out)
            print(f"{step} of {plan.name}: done", flush=True)
    if "page" in steps:
        results = collect(plans, seeds, out)
        write_csv(results, out / "results.csv")
        print(write_page(results, pd.read_csv(out / "cpu.csv"), docs))


if __name__ == "__main__":
    main()
