"""Files of /proc and /sys."""

import contextlib
import os
from pathlib import Path


def read_fields(path):
    """A file of lines `name value …` as a dict of ints."""
    fields = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(" ")
        with contextlib.suppress(ValueError, IndexError):
            fields[name.rstrip(":")] = int(value.split()[0])
    return fields


def chosen(path):
    """The bracketed word of a sysfs file such as `always [madvise] never`."""
    text = Path(path).read_text().strip()
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else text


def stolen_seconds():
    """Processor time that the host gave to others: how noisy the machine is."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
