"""Default batch size and interval between updates of lambda, scaled to the number of training rows."""

from __future__ import annotations

_MAX_BATCH_SIZE = 512
_MIN_BATCH_SIZE = 16
_MIN_BATCHES = 6  # of an epoch; the smallest published data set, COMPAS, has six batches of 512
UPDATE_INTERVAL = 50  # optimiser steps, with batches of 512 rows


def default_batch_size(rows: int) -> int:
    """Return the largest power of two, from 16 to 512, that makes at least six batches of the rows.

    >>> [default_batch_size(rows) for rows in (22_611, 3_086, 1_000, 500, 20)]
    [512, 512, 128, 64, 16]
    """
    size = _MAX_BATCH_SIZE
    while size > _MIN_BATCH_SIZE and size * _MIN_BATCHES > rows:
        size //= 2
    return size


def default_update_interval(rows: int) -> int:
    """Return the optimiser steps between updates of lambda: 50, or fewer in proportion to the batch size.

    >>> [default_update_interval(rows) for rows in (22_611, 3_086, 1_000, 500, 20)]
    [50, 50, 12, 6, 1]
    """
    return UPDATE_INTERVAL * default_batch_size(rows) // _MAX_BATCH_SIZE
