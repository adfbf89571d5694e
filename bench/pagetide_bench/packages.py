"""Packages of Debian and of Python that programs under test come from."""

import os
import subprocess

from .paths import DATA
from .script import progress

VENV = DATA / "venv"
WHEELS = ("numpy", "pandas", "polars", "duckdb", "scikit-learn")


def quietly(command, **options):
    """Runs a command. Returns what it said if it failed."""
    try:
        ended = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    except OSError as error:
        return str(error)
    return "" if ended.returncode == 0 else (ended.stderr or ended.stdout).strip().splitlines()[-1:] or [f"status {ended.returncode}"]


def installed(package):
    return not quietly(["dpkg", "-s", package])


def install_packages(packages):
    """Returns what went wrong."""
    missing = [package for package in packages if not installed(package)]
    if not missing:
        return ""
    progress(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", "--no-upgrade", *missing]
    if failed := quietly(command, env=environment):
        # The list of packages may be old.
        failed = quietly(["apt-get", "update"]) or quietly(command, env=environment)
    return failed and f"apt-get: {failed[0] if isinstance(failed, list) else failed}"


def install_wheels():
    if not (VENV / "bin" / "python").exists() and (failed := quietly(["/usr/bin/python3", "-m", "venv", VENV])):
        return f"venv: {failed}"
    if quietly([VENV / "bin" / "python", "-c", "import numpy, pandas, polars, duckdb, sklearn"]):
        progress(f"installing {' '.join(WHEELS)}")
        if failed := quietly([VENV / "bin" / "pip", "install", "-q", *WHEELS]):
            return f"pip: {failed}"
    return ""
