"""Checkpoints that somebody else made: no import, no traceback, no damage unnoticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fairrf_lightning.checkpoints import load_checkpoint
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from tests.conftest import Refused
from tests.reliability.conftest import DATA, QUICK
from tests.reliability.runs import differ

CANARY = "canarymod.run"
SPEC = {"class_path": CANARY}
SPOTS: dict[str, dict[str, Any]] = {
    "backbone": {"backbone": CANARY},
    "backbone_spec": {"backbone": SPEC},
    "inner": {"backbone": {"class_path": "fairrf_lightning.backbones.MLP", "init_args": {"hidden": SPEC}}},
    "optimizer": {"optimizer": SPEC},
    "scheduler": {"lr_scheduler": CANARY},
    "model": {"_class_path": CANARY},
    "unknown": {"something": [CANARY]},
    "through_us": {"backbone": "fairrf_lightning.errors.os.system"},
    "yaml": {"backbone": f"class_path: {CANARY}"},
    "json": {"optimizer": f'{{"class_path": "{CANARY}"}}'},
    "file": {"backbone": "./evil.yaml"},
    "of_torch": {"backbone": "torch.hub.load"},
}
LIGHTNING = ("fit", "validate", "test", "predict")


def command(name: str, checkpoint: Path) -> list[str]:
    path = str(checkpoint)
    if name in LIGHTNING:
        return [name, *DATA, *QUICK, "--ckpt_path", path]
    if name == "audit":
        return ["audit", *DATA, "--ckpt_path", path, "--out", "audit"]
    if name == "against":
        return ["audit", *DATA, "--ckpt_path", str(checkpoint.with_name("last.ckpt")), "--against", path]
    if name == "certify":
        Path("sample.csv").write_text("group\na\n")
        return ["certify", *DATA, "--ckpt_path", path, "--audit-sample", "sample.csv"]
    return ["report", "lightning_logs/version_0"]


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(path, weights_only=True)
    changed = change(content)
    torch.save(content if changed is None else changed, path)


@pytest.mark.parametrize("name", [*LIGHTNING, "audit", "against", "certify", "report"])
def test_no_command_imports_what_a_checkpoint_names(name: str, run_folder: Path, refused: Refused) -> None:
    Path("canarymod.py").write_text(
        "open('sung', 'w').close()\ndef run(*_, **__): raise SystemExit('sung')\n"
    )
    checkpoint = run_folder / "best.ckpt"
    rewrite(checkpoint, lambda content: content["hyper_parameters"].update(SPOTS["backbone"]))
    if name == "report":
        with suppress(SystemExit):  # it may do without the checkpoint
            main(command(name, checkpoint))
    else:
        assert CANARY in refused(command(name, checkpoint))
    assert not Path("sung").exists()


@pytest.mark.parametrize("spot", SPOTS)
def test_nothing_is_imported_wherever_it_is_named(spot: str, run_folder: Path, refused: Refused) -> None:
    Path("canarymod.py").write_text("open('sung', 'w').close()\nrun = open\n")
    Path("evil.yaml").write_text(f"class_path: {CANARY}")
    checkpoint = run_folder / "best.ckpt"
    rewrite(checkpoint, lambda content: content["hyper_parameters"].update(SPOTS[spot]))
    assert "which is not of this package" in refused(command("test", checkpoint))
    assert not Path("sung").exists()


@pytest.mark.parametrize(
    ("options", "model", "hint"),
    [
        ({"ksmote": CANARY}, {}, f"--data.ksmote {CANARY}"),
        ({"ksmote": SPEC}, {}, f"--data.ksmote {CANARY}"),
        ({"data_dir": CANARY}, {"backbone": CANARY}, f"--model.backbone {CANARY}"),
        ({"url": "http://localhost:9/a.csv"}, {}, "--data.url http://localhost:9/a.csv"),
    ],
)
def test_options_of_the_data_that_the_checkpoint_names_are_checked(
    options: dict[str, Any], model: dict[str, Any], hint: str, run_folder: Path, refused: Refused
) -> None:
    Path("canarymod.py").write_text("open('sung', 'w').close()\nrun = open\n")
    checkpoint = run_folder / "best.ckpt"
    rewrite(checkpoint, lambda content: content["datamodule_hyper_parameters"].update(options))
    rewrite(checkpoint, lambda content: content["hyper_parameters"].update(model))
    assert hint in refused(["test", *QUICK, "--ckpt_path", str(checkpoint)])
    assert not Path("sung").exists()


def test_a_class_that_the_user_names_is_used(
    run_folder: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my_backbones.py").write_text(
        "from fairrf_lightning.backbones import MLP\nclass Mine(MLP):\n    '''Mine.'''\n"
    )
    checkpoint = run_folder / "best.ckpt"
    rewrite(checkpoint, lambda content: content["hyper_parameters"].update(backbone="my_backbones.Mine"))
    args = command("test", checkpoint)
    assert "--model.backbone my_backbones.Mine" in refused(args)
    main([*args, "--model.backbone", "my_backbones.Mine"])
    assert "Test split" in capsys.readouterr().out


def replaced(part: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__setitem__(part, value)


DATA_STATE = "SyntheticDataModule"
MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": list,
    "weights as list": replaced("state_dict", [1, 2]),
    "weights as text": replaced("state_dict", "none"),
    "no weights": replaced("state_dict", {}),
    "a weight as text": lambda content: content["state_dict"].update({"backbone.0.weight": "1"}),
    "a weight of another shape": lambda c: c["state_dict"].update({"backbone.0.weight": torch.zeros(3)}),
    "options as text": replaced("hyper_parameters", "eta"),
    "options as list": replaced("hyper_parameters", [1]),
    "option of another type": lambda content: content["hyper_parameters"].update(eta="high"),
    "numbered options": replaced("hyper_parameters", {1: 2}),
    "empty data": replaced(DATA_STATE, {}),
    "data as text": replaced(DATA_STATE, "adult"),
    "data without encoder": lambda content: content[DATA_STATE].pop("encoder"),
    "data without split": lambda content: content[DATA_STATE].pop("split"),
    "table options as list": lambda content: content[DATA_STATE].update(table_options=["a"]),
    "encoder as text": lambda content: content[DATA_STATE].update(encoder="none"),
    "empty encoder": lambda content: content[DATA_STATE].update(encoder={}),
    "split as text": lambda content: content[DATA_STATE].update(split="half"),
    "seed as list": lambda content: content[DATA_STATE].update(seed=[1]),
    "callbacks as list": replaced("callbacks", [1]),
    "callbacks without content": lambda c: c.update(callbacks=dict.fromkeys(c["callbacks"], "x")),
    "loops as text": replaced("loops", "none"),
    "empty loops": replaced("loops", {}),
    "loops without content": lambda content: content.update(loops={key: {} for key in content["loops"]}),
    "number of steps as tuple": lambda content: content["loops"]["fit_loop"]["epoch_loop.state_dict"].update(
        _batches_that_stepped=()
    ),
    "number of batches as text": lambda content: content["loops"]["fit_loop"]["epoch_loop.batch_progress"][
        "total"
    ].update(ready="none"),
    "optimiser as dict": replaced("optimizer_states", {"a": 1}),
    "empty optimiser": replaced("optimizer_states", [{}]),
    "schedulers as text": replaced("lr_schedulers", "none"),
    "random state as text": replaced("rng_state", "none"),
    "empty random state": replaced("rng_state", {}),
    "short random state": replaced("rng_state", {"cpu": torch.zeros(3, dtype=torch.uint8), "cuda": []}),
    "sums as text": replaced("train_sums", "none"),
    "epoch as text": replaced("epoch", "three"),
    "version as number": replaced("pytorch-lightning_version", 2),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_checkpoint_is_one_clear_error(fault: str, run_folder: Path, refused: Refused) -> None:
    checkpoint = run_folder / "last.ckpt"
    rewrite(checkpoint, MALFORMED[fault])
    assert str(checkpoint) in refused([*command("fit", checkpoint), "--trainer.max_epochs=4"])


@pytest.mark.parametrize("fault", ["empty data", "a weight of another shape", "options as text"])
@pytest.mark.parametrize("name", ["validate", "test", "predict", "audit"])
def test_every_command_says_so(name: str, fault: str, run_folder: Path, refused: Refused) -> None:
    checkpoint = run_folder / "last.ckpt"
    rewrite(checkpoint, MALFORMED[fault])
    assert str(checkpoint) in refused(command(name, checkpoint))


@pytest.mark.parametrize(
    "option",
    [
        "--data.related=[height]",
        "--data.include_sensitive=true",
        "--data.split=[0.6,0.2,0.2]",
        "--data.seed=5",
        "--data.ksmote.n_clusters=3",
        "--data.remove_related=true",
    ],
)
def test_a_resume_with_other_data_options_is_one_clear_error(
    option: str, run_folder: Path, refused: Refused
) -> None:
    args = [*command("fit", run_folder / "last.ckpt"), "--trainer.max_epochs=4", option]
    assert "a resumed run keeps it" in refused(args)


def test_any_flipped_bit_that_matters_is_noticed(run_folder: Path) -> None:
    path = run_folder / "best.ckpt"
    content = path.read_bytes()
    intact = load_checkpoint(path)
    drawn = random.Random(0)  # noqa: S311 - no secret
    noticed = 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        try:
            found = load_checkpoint(path, content=bytes(damaged))
        except InputError:
            noticed += 1
        else:
            # Some bytes of a zip file are padding or times, which nobody reads.
            assert not list(differ(found, intact))
    assert noticed > 150


def test_a_flipped_bit_of_a_weight_stops_every_command(run_folder: Path, refused: Refused) -> None:
    path = run_folder / "best.ckpt"
    weight = load_checkpoint(path)["state_dict"]["backbone.0.weight"].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(weight) + 100] ^= 8
    path.write_bytes(content)
    for name in ("test", "predict", "audit", "report"):
        assert "differs from its checksum" in refused(command(name, path))
