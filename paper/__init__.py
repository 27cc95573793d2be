"""The reproduction of the paper's evaluation; it needs a clone and is not part of the wheel."""
