"""The penalty in a ``Trainer`` subclass of transformers, with a tiny random model.

Prints R of the related feature over all rows, trained without and with the penalty.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from fairrf_lightning import RelatedFeaturePenalty

ROWS, WORDS = 512, 8


def rows() -> list[dict[str, Any]]:
    """Return rows whose label depends on one word, which depends on age, and on another."""
    torch.manual_seed(0)
    age = torch.randn(ROWS)
    words = torch.randint(10, 50, (ROWS, WORDS))
    words[:, 1] = torch.where(age + 0.5 * torch.randn(ROWS) > 0, 3, 4)
    words[:, 2] = torch.randint(5, 7, (ROWS,))
    label = ((words[:, 1] == 3).float() + (words[:, 2] == 5).float() + 0.3 * torch.randn(ROWS) > 1).long()
    return [{"input_ids": w, "labels": y, "age": a} for w, y, a in zip(words, label, age, strict=True)]


class FairTrainer(Trainer):  # type: ignore[misc] # not installed here
    """Adds the penalty to the loss and updates lambda by one line."""

    penalty = RelatedFeaturePenalty({"age": [0]}, eta=4.0)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002 - transformers' signature
        """Return the loss of the model with the penalty; ``age`` is not for the model."""
        age = inputs.pop("age")
        output = model(**inputs)
        logit = output.logits[:, 1] - output.logits[:, 0]
        loss = output.loss + self.penalty(logit, age[:, None])
        if self.state.global_step % 10 == 9:
            self.penalty.update_weights(beta=0.5)
        return (loss, output) if return_outputs else loss


def trained(eta: float) -> tuple[float, float]:
    """Return |cov| of the prediction with age, and the accuracy, over all rows."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertForSequenceClassification(config)
    FairTrainer.penalty = RelatedFeaturePenalty({"age": [0]}, eta=eta)
    data = rows()
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder,
            num_train_epochs=12,
            per_device_train_batch_size=64,
            learning_rate=5e-3,
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        FairTrainer(model=model, args=options, train_dataset=data).train()
    with torch.no_grad():
        words, age, label = (
            torch.stack([row[key] for row in data]) for key in ("input_ids", "age", "labels")
        )
        probs = model.eval()(input_ids=words).logits.softmax(-1)[:, 1]
    covariance = ((probs - probs.mean()) * (age - age.mean())).mean().abs()
    return float(covariance), float(((probs > 0.5).long() == label).float().mean())


if __name__ == "__main__":
    for eta in (0.0, 4.0):
        covariance, accuracy = trained(eta)
        print(f"eta {eta:g}: covariance {covariance:.4f}, accuracy {accuracy:.3f}")
