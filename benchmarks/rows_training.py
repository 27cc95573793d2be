"""Rows of the benchmark for training: an epoch of `fit`, a grid, a fairness goal, processes, growth."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import grid_speed
from benchmarks.dropin_cost import BETA, ETA, packaged, plain_steps, step_time
from benchmarks.measuring import (
    OURS,
    Row,
    add_number,
    compare,
    faster,
    median,
    new_row,
    reason,
    spread,
    used_cpu,
)
from benchmarks.peers import Loss, column_loop, fairret_loss
from benchmarks.prior_knowledge_methods import Part, memberships, survey_name
from benchmarks.two_processes import step_seconds
from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.audit import Scores, audit
from fairrf_lightning.backbones import MLP
from fairrf_lightning.cli import main as command_line
from fairrf_lightning.correction import Correction
from fairrf_lightning.datamodules import AdultDataModule, TensorBatches
from fairrf_lightning.functional import solve_lambda

ROOT = Path(__file__).resolve().parents[1]
BATCH = 512


class EpochTimes(Callback):
    """Seconds from the start of each training epoch to its last batch, in this process.

    They are kept by the class, because `fit` creates the callback.
    """

    cpu: ClassVar[list[float]] = []
    wall: ClassVar[list[float]] = []
    _last: tuple[float, float] = (0.0, 0.0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks."""
        del trainer, pl_module
        self._start = (used_cpu(), time.perf_counter())

    def on_train_batch_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Stop them after the last batch."""
        if trainer.is_last_batch:
            self.cpu.append(used_cpu() - self._start[0])
            self.wall.append(time.perf_counter() - self._start[1])

    @classmethod
    def take(cls) -> tuple[float, float]:
        """Return the median epoch without the first, as CPU and wall seconds, and forget all."""
        found = median(cls.cpu[1:] or cls.cpu), median(cls.wall[1:] or cls.wall)
        cls.cpu.clear()
        cls.wall.clear()
        return found


def fit_row(*, quick: bool) -> Row:
    """One epoch of `fit` on Adult as shipped, from its first to its last training batch."""
    row, epochs = new_row(), 2 if quick else 4
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = AdultDataModule(seed=0)
    tensors = grid_speed.training_tensors(data)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        OURS: partial(_shipped_epoch, epochs),
        "bare loop": partial(_bare_epoch, data, tensors, epochs),
        "stock Lightning": partial(_stock_epoch, data, tensors, epochs),
    }
    for name in ways:
        row["times"][name] = {"cpu": [], "wall": []}
    for _ in range(1 if quick else 5):
        for name, way in ways.items():
            with grid_speed.silence():
                cpu, wall = way()
            row["times"][name]["cpu"].append(cpu)
            row["times"][name]["wall"].append(wall)
    compare(row, "ours / bare loop", OURS, "bare loop", at_most=1.3)
    faster(row, "stock Lightning", 3.0)
    row["facts"].append("Validation, logging and checkpoints between epochs are not part of an epoch.")
    return row


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Work in a folder of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)


def _shipped_epoch(epochs: int) -> tuple[float, float]:
    words = f"fit --data adult --trainer.max_epochs {epochs} --pretrain.epochs 0".split()
    with _folder():
        command_line([*words, "--trainer.callbacks+=benchmarks.rows_training.EpochTimes"])
    return EpochTimes.take()


def _minimal_penalty(data: AdultDataModule) -> Loss:
    """Return a penalty by hand on the related columns of Adult: one matrix product, lambda fixed."""
    columns = torch.tensor([column for owned in data.related_columns.values() for column in owned])

    def penalty(logits: Tensor, inputs: Tensor) -> Tensor:
        probs, related = logits.sigmoid(), inputs[:, columns]
        covariances = (probs - probs.mean()) @ (related - related.mean(0)) / len(probs)
        return ETA * covariances.abs().mean()

    return penalty


def _bare_epoch(data: AdultDataModule, tensors: dict[str, Tensor], epochs: int) -> tuple[float, float]:
    penalty, net = _minimal_penalty(data), MLP(data.n_features)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    for _ in range(epochs):
        cpu, wall = used_cpu(), time.perf_counter()
        order = torch.randperm(len(tensors["target"]))
        inputs, target = tensors["inputs"][order], tensors["target"][order].float()
        for rows, labels in zip(inputs.split(BATCH), target.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
            logits = net(rows)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            (loss + penalty(logits, rows)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        EpochTimes.cpu.append(used_cpu() - cpu)
        EpochTimes.wall.append(time.perf_counter() - wall)
    return EpochTimes.take()


class NaiveModule(grid_speed.StockModule):
    """FairRF as a tutorial would write it: a loop over the related columns."""

    def __init__(self, data: AdultDataModule) -> None:
        super().__init__(data, 0.1)
        columns = [column for owned in data.related_columns.values() for column in owned]
        self.columns, self.naive = columns, column_loop(len(columns), ETA)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss."""
        inputs, target = batch
        logits = self.net(inputs)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target.float())
        loss = loss + self.naive(logits, inputs[:, self.columns])
        self.log("train_loss", loss, prog_bar=True)
        return loss


def _stock_epoch(data: AdultDataModule, tensors: dict[str, Tensor], epochs: int) -> tuple[float, float]:
    dataset = TensorDataset(tensors["inputs"], tensors["target"])
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    options: Any = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    Trainer(max_epochs=epochs, callbacks=[EpochTimes()], **options).fit(NaiveModule(data), loader)
    return EpochTimes.take()


def grid_row(*, quick: bool) -> Row:
    """A grid of 125 models on Adult as one stack, against the same models one after the other."""
    row = new_row()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = AdultDataModule(seed=0)
    epochs = 1 if quick else 2
    ways = {
        OURS: partial(grid_speed.stack_rate, 0.0, epochs),
        "bare loops in turn": partial(grid_speed.bare_rate, data, 0.0, epochs * (1 if quick else 10)),
        "stock Lightning fits in turn": partial(
            grid_speed.stock_rate, data, 0.0, epochs * (1 if quick else 3)
        ),
    }
    for name in ways:
        row["times"][name] = {"cpu": [], "wall": []}
    for _ in range(1 if quick else 3):
        for name, rate in ways.items():
            cpu, wall = used_cpu(), time.perf_counter()
            with grid_speed.silence():
                seconds = 1 / rate()  # wall time of one model and epoch
            share = (used_cpu() - cpu) / (time.perf_counter() - wall)
            row["times"][name]["wall"].append(seconds)
            row["times"][name]["cpu"].append(seconds * share)
    faster(row, "bare loops in turn", 3.0)
    faster(row, "stock Lightning fits in turn", 15.0)
    return row


MAX_GAP, MIN_ACCURACY, SURVEY = 0.11, 0.848, survey_name(400)


def goal_row(*, quick: bool) -> Row:
    """Time until a model of Adult has dDP of at most 0.11 and accuracy of at least 0.848 on test rows.

    All methods know S of the same 400 people. Each tries its settings from weak to strong. The clock stops at
    the first setting that reaches the goal on test rows, which favours methods with many settings.
    """
    row = new_row()
    methods: dict[str, Callable[[_People], Iterator[tuple[str, Tensor]]]] = {
        OURS: _corrected_mlp,
        "fairret, MLP": _fairret_mlp,
        "fairlearn ExponentiatedGradient, logistic regression": partial(_exponentiated, boosted=False),
        "fairlearn ExponentiatedGradient, boosted trees": partial(_exponentiated, boosted=True),
        "fairlearn GridSearch, logistic regression": _grid_search,
    }
    seeds = range(1 if quick else 3)
    reached = dict.fromkeys(methods, 0)
    for seed in seeds:
        known = _People(seed, epochs=1 if quick else 20, settings=1 if quick else 4)
        for name, method in methods.items():
            if name in row["not_run"]:
                continue
            try:
                cpu, wall, found = _until_goal(known, method)
            except Exception as error:  # noqa: BLE001 - a peer that fails is reported
                row["not_run"][name] = reason(error)
                continue
            times = row["times"].setdefault(name, {"cpu": [], "wall": []})
            times["cpu"].append(cpu)
            times["wall"].append(wall)
            reached[name] += found[0]
            row["facts"].append(
                f"{name}, seed {seed}: {'reached' if found[0] else 'not reached'}, {found[1]}"
            )
    for name in methods:
        add_number(row, f"{name}: reached with", reached[name], f"of {len(seeds)} seeds")
    for name in list(methods)[1:]:
        faster(row, name)
    return row


class _People:
    """Adult with one seed, and what a survey of 400 people tells about S."""

    def __init__(self, seed: int, epochs: int, settings: int) -> None:
        data = AdultDataModule(seed=seed)
        self.n_features, self.epochs, self.settings = data.n_features, epochs, settings
        self.train, self.val, self.test = (Part.of(data, name) for name in ("train", "val", "test"))
        self.membership = memberships(data, [SURVEY])[SURVEY]
        with torch.no_grad():
            self.proxy = (self.membership(self.train.inputs) >= 0.5).long()

    def train_mlp(self, loss_of: Callable[[Tensor], Loss] | None = None) -> nn.Module:
        """Return an MLP 64-32, trained with another loss on the proxy labels of each batch if given."""
        torch.manual_seed(0)
        net = MLP(self.n_features)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(self.train.target)).split(BATCH):  # type: ignore[no-untyped-call]
                inputs = self.train.inputs[rows]
                logits = net(inputs)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, self.train.target[rows].float())
                if loss_of is not None:
                    loss = loss + loss_of(self.proxy[rows])(logits, inputs)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return net.eval()


def _until_goal(
    known: _People, method: Callable[[_People], Iterator[tuple[str, Tensor]]]
) -> tuple[float, float, tuple[bool, str]]:
    cpu, wall = used_cpu(), time.perf_counter()
    tried = 0
    found: dict[str, float] = {}
    for _, decisions in method(known):
        tried += 1
        found = known.test.measure(decisions)
        if found["dp_gap"] <= MAX_GAP and found["acc"] >= MIN_ACCURACY:
            break
    is_reached = found["dp_gap"] <= MAX_GAP and found["acc"] >= MIN_ACCURACY
    words = f"{tried} settings, dDP {found['dp_gap']:.3f}, accuracy {found['acc']:.4f}"
    return used_cpu() - cpu, time.perf_counter() - wall, (is_reached, words)


@torch.no_grad()
def _corrected_mlp(known: _People) -> Iterator[tuple[str, Tensor]]:
    with torch.enable_grad():
        net = known.train_mlp()
    parts = {"val": known.val, "test": known.test}
    probs = {name: net(part.inputs).sigmoid() for name, part in parts.items()}
    members = {name: known.membership(part.inputs) for name, part in parts.items()}
    for goal in ("dp=0.10", "dp=0.08", "dp=0.06", "dp=0.04")[: known.settings]:
        options: Any = {"target": known.val.target, "goal": goal, "max_accuracy_loss": 0.01}
        correction = Correction.fit(probs["val"], members["val"], **options)
        yield goal, correction.decide(probs["test"], members["test"]).float()


def _fairret_mlp(known: _People) -> Iterator[tuple[str, Tensor]]:
    for weight in (0.02, 0.05, 0.075, 0.1)[: known.settings]:
        net = known.train_mlp(partial(fairret_loss, weight=weight))
        with torch.no_grad():
            yield f"{weight:g}", (net(known.test.inputs) >= 0).float()


def _estimator(*, boosted: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - peers that may be missing
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    return HistGradientBoostingClassifier() if boosted else LogisticRegression(solver="newton-cholesky")


def _exponentiated(known: _People, *, boosted: bool) -> Iterator[tuple[str, Tensor]]:
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient  # noqa: PLC0415

    inputs, target = known.train.inputs.numpy(), known.train.target.numpy().astype(int)
    for bound in (0.1, 0.05, 0.02, 0.005)[: known.settings]:
        fair = ExponentiatedGradient(
            _estimator(boosted=boosted), DemographicParity(difference_bound=bound), eps=bound, max_iter=10
        )
        fair.fit(inputs, target, sensitive_features=known.proxy.numpy())
        yield f"{bound:g}", torch.from_numpy(fair._pmf_predict(known.test.inputs.numpy())[:, 1])  # noqa: SLF001 - no public name


def _grid_search(known: _People) -> Iterator[tuple[str, Tensor]]:
    from fairlearn.reductions import DemographicParity, GridSearch  # noqa: PLC0415

    inputs, target = known.train.inputs.numpy(), known.train.target.numpy().astype(int)
    search = GridSearch(
        _estimator(boosted=False), DemographicParity(), grid_size=5 if known.settings == 1 else 20
    )
    search.fit(inputs, target, sensitive_features=known.proxy.numpy())
    for number, predictor in enumerate(search.predictors_):
        yield str(number), torch.from_numpy(predictor.predict(known.test.inputs.numpy())).float()


def processes_row(*, quick: bool) -> Row:
    """Rows per second on two processes with a backbone of at least 2 ms per step, against one process."""
    row = new_row()
    one, two, plain = "1 process", "2 processes", "2 processes, no penalty"
    for batch in (BATCH,) if quick else (BATCH, 8 * BATCH):
        for name in (one, two, plain):
            row["times"][f"{batch:,} rows: {name}"] = {"cpu": [], "wall": []}
        steps = []
        for _ in range(1 if quick else 5):
            for name, ranks, eta in ((one, 1, ETA), (two, 2, ETA), (plain, 2, 0.0)):
                found = step_seconds(ranks, batch, 40 * BATCH // batch + 30, eta)
                steps += [1e3 * found["wall"]] if ranks == 1 else []
                times = row["times"][f"{batch:,} rows: {name}"]
                times["cpu"].append(found["cpu"] / batch)
                times["wall"].append(found["wall"] / (ranks * batch))
        first = f"{batch:,} rows: {one}"
        for name, target in ((two, 1.7), (plain, None)):
            what = f"{first} / {name}, wall time per row"
            compare(row, what, first, f"{batch:,} rows: {name}", at_least=target, clock="wall")
        row["facts"].append(f"{batch:,} rows: a step on 1 process takes {median(steps):.1f} ms of wall time.")
    return row


def growth_row(*, quick: bool) -> Row:
    """Growth of time with the number of rows, related columns, related features and processes."""
    row = new_row()
    sizes = (10_000, 20_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000)
    per_row = {"training": _training_per_row, "audit": _audit_per_row, "gap metric": _metric_per_row}
    for name, seconds in per_row.items():
        seconds(sizes[0])  # imports and caches
        row["growth"][f"rows: {name}"] = [(size, seconds(size)) for size in sizes]
        found = row["growth"][f"rows: {name}"]
        what = f"{name}: time per row at {sizes[-1]:,} rows / at {sizes[-2]:,}"
        add_number(row, what, found[-1][1] / found[-2][1], "x", at_most=1.3)
    widths = (10, 100) if quick else (10, 100, 1000, 10_000)
    row["growth"]["columns: step with the penalty"] = [(width, _step(width, width)) for width in widths]
    row["growth"]["columns: penalty alone"] = [(width, _penalty_step(width, width)) for width in widths]
    found = row["growth"]["columns: penalty alone"]
    what = f"penalty: time at {widths[-1]:,} columns / at {widths[-2]:,}, ten times fewer"
    add_number(row, what, found[-1][1] / found[-2][1], "x", at_most=13.0)
    features = (1, 10) if quick else (1, 10, 100, 1000, 10_000)
    widest = features[-1]
    row["growth"]["features: penalty alone"] = [(k, _penalty_step(widest, k)) for k in features]
    row["growth"]["features: solve_lambda"] = [(k, _lambda_time(k)) for k in features]
    for ranks in (1,) if quick else (1, 2, 3, 4):
        try:
            wall = step_seconds(ranks, BATCH, 20 if quick else 60)["wall"]
        except (RuntimeError, ProcessException) as error:
            row["not_run"][f"{ranks} processes"] = reason(error)
            continue
        row["growth"].setdefault("ranks: training", []).append((ranks, wall / (ranks * BATCH)))
    row["facts"].append(
        f"The machine has {os.cpu_count()} cores: more processes than cores cannot be faster."
    )
    return row


def _training_per_row(rows: int) -> float:
    """Return the CPU seconds per row of an epoch with the penalty on ten columns, batch 4,096."""
    columns, batch = 10, 4096
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, columns, generator=draw)
    loader = TensorBatches({"inputs": inputs, "target": (inputs[:, 0] > 0).float()}, batch, shuffle=True)
    net, penalty = MLP(columns, dropout=0.0), packaged(columns, "covariance")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    start = used_cpu()
    for one in loader:
        logits = net(one["inputs"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, one["target"])
        optimizer.zero_grad()
        (loss + penalty(logits, one["inputs"])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (used_cpu() - start) / rows


def _audit_per_row(rows: int) -> float:
    rng = np.random.default_rng(0)
    race, probs = rng.integers(0, 5, rows), rng.random((1, rows))
    frame = pd.DataFrame({"race": pd.Categorical(np.array(list("abcde"))[race])})
    target = (rng.random(rows) < probs[0]).astype(np.int64)
    start = used_cpu()
    audit(Scores.of_arrays(target, probs, frame))
    return (used_cpu() - start) / rows


def _metric_per_row(rows: int) -> float:
    from fairrf_lightning.metrics import DemographicParityGap  # noqa: PLC0415

    draw = torch.Generator().manual_seed(0)
    preds = torch.rand(rows, generator=draw)
    target, groups = (torch.randint(0, 2, (rows,), generator=draw) for _ in range(2))
    metric = DemographicParityGap()
    start = used_cpu()
    for part in zip(*(values.split(4096) for values in (preds, target, groups)), strict=True):  # type: ignore[no-untyped-call]
        metric.update(*part)
    metric.compute()
    return (used_cpu() - start) / rows


def _step(width: int, columns: int) -> float:
    step = plain_steps(width, packaged(columns, "covariance"))
    step()
    return spread([step_time(step, 3, time.process_time) for _ in range(5)])[1]


def _penalty_step(columns: int, features: int) -> float:
    """Return the CPU seconds of value and gradient of the penalty on columns that belong to features."""
    related = {f"x{k}": list(range(k, columns, features)) for k in range(features)}
    penalty = RelatedFeaturePenalty(related, eta=ETA)
    inputs, logits = torch.randn(BATCH, columns), torch.randn(BATCH, requires_grad=True)

    def step() -> None:
        penalty(logits, inputs).backward()

    step()
    return spread([step_time(step, 3, time.process_time) for _ in range(7)])[1]


def _lambda_time(features: int) -> float:
    penalties = torch.rand(features) * 0.01
    return spread(
        [step_time(lambda: solve_lambda(penalties, BETA), 5, time.process_time) for _ in range(7)]  # type: ignore[arg-type]
    )[1]
