"""Train, validate, test and predict: `python train.py fit --data adult`."""

from fairrf_lightning.cli import main

if __name__ == "__main__":
    main()
