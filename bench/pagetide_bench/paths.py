"""Where things lie: the checkout, what is built in it, and what the benchmarks keep."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROGRAM_SOURCES = REPO / "tests" / "programs"
PROGRAMS = REPO / "target" / "programs"
DATA = REPO / "target" / "bench-data"
PAGETIDE = REPO / "target" / "release" / "pagetide"
PRELOAD = REPO / "target" / "release" / "libpagetide_preload.so"
RUNS = REPO / "bench" / "runs"


def portable(text):
    """Paths as they are called in the repository, and below the home directory."""
    return text.replace(f"{REPO}/", "").replace(str(Path.home()), "~")
