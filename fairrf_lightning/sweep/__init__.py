"""A search for settings with Optuna: batches of trials trained as stacks."""
