"""Maps the preset folders into the package; everything else is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

PRESETS = {f"fairrf_lightning.presets.{folder}": folder for folder in ("callbacks", "datamodules")}

setup(
    packages=[*find_namespace_packages(include=["fairrf_lightning", "fairrf_lightning.*"]), *PRESETS],
    package_dir=PRESETS,
)
