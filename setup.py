"""Lists the packages: the root is itself the package `kukri`, which pyproject.toml has no setting for."""

from setuptools import find_packages, setup

PARTS = ["cli", "runtime", "quant", "tokenizer"]

found = find_packages(include=[*PARTS, *(f"{part}.*" for part in PARTS)])
setup(packages=["kukri", *(f"kukri.{name}" for name in found)])
