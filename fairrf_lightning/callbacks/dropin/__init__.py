"""The drop-in: a penalty for a LightningModule that does not hold one, without changes to its code.

``LambdaUpdateCallback(penalty=...)`` owns an ``Attachment``. A training batch passes these files:

1. ``side_channel``: related columns that travel with the batch are taken out before the module gets it.
2. ``prediction``: a hook on the submodule, or a wrapper of the method, records what it predicts.
3. ``attachment``: a wrapper of ``LightningModule.backward`` takes the recorded predictions.
4. ``matching``: finds the related columns and labels of the same rows in the batch (``batch_parts``).
5. ``attachment``: adds the penalty to the loss, and calls the module's own backward pass.

In validation, ``validation`` measures the penalty over all rows of the epoch. ``wrapped_method`` wraps and
restores methods of an instance. ``inspection`` is ``inspect``, which shows what to attach to.
"""
