"""Lists the packages: the root is itself the package `kukri`, which pyproject.toml has no setting for."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PARTS = ["cli", "runtime", "quant", "tokenizer"]


class BuildWithoutSetup(build_py):
    """Leaves this file out of the package whose folder it lies in."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] != ("kukri", "setup")]


found = find_packages(include=[*PARTS, *(f"{part}.*" for part in PARTS)])
setup(packages=["kukri", *(f"kukri.{name}" for name in found)], cmdclass={"build_py": BuildWithoutSetup})
