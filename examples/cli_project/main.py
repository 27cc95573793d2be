"""A LightningCLI project as people have them: own model, own data, own ``callbacks`` package, YAML."""

from lightning.pytorch.cli import LightningCLI
from model import Classifier
from people import People

if __name__ == "__main__":
    LightningCLI(Classifier, People, seed_everything_default=0, save_config_callback=None)
