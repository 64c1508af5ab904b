"""What pyproject.toml cannot say: configs/ and results/, which stand beside src/, become folders of the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("src"), "fedshvr.configs", "fedshvr.results"],
    package_dir={"": "src", "fedshvr.configs": "configs", "fedshvr.results": "results"},
    package_data={
        "fedshvr": ["py.typed", "reporting/*.css", "reporting/*.js"],
        "fedshvr.configs": ["*.yaml", "**/*.yaml"],
        "fedshvr.results": ["*.csv", "**/*.csv"],
    },
)
