"""The machine that figures are from."""

import os
import platform
import sys
from pathlib import Path

from .procfs import chosen, read_fields
from .settings import PAGE_CLUSTER, SWAPPINESS, THP, ZSWAP


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def thp_settings():
    settings = {"enabled": chosen(THP / "enabled"), "defrag": chosen(THP / "defrag")}
    for size in sorted(THP.glob("hugepages-*kB")):
        if (size / "enabled").exists() and chosen(size / "enabled") != "never":
            settings[size.name] = chosen(size / "enabled")
    return settings


def damon_actions():
    """What the kernel's DAMON is told to do on this machine: it may page out what is idle when swap is on."""
    schemes = Path("/sys/kernel/mm/damon/admin/kdamonds").glob("*/contexts/*/schemes/*/action")
    return sorted({path.read_text().strip() for path in schemes})


def machine():
    uname = os.uname()
    return {
        "kernel": f"{uname.sysname} {uname.release} {uname.machine}",
        "processors": os.cpu_count(),
        "model": cpu_model(),
        "memory_mib": read_fields("/proc/meminfo")["MemTotal"] // 1024,
        "load": os.getloadavg()[0],
        "thp": thp_settings(),
        "page_cluster": int(PAGE_CLUSTER.read_text()),
        "swappiness": int(SWAPPINESS.read_text()),
        "zswap": ZSWAP.exists() and (ZSWAP / "enabled").read_text().strip(),
        "damon": damon_actions(),
        "python": platform.python_version(),
    }


def print_machine():
    facts = machine()
    print(f"machine   {facts['kernel']}, {facts['processors']} × {facts['model']}, {facts['memory_mib']} MiB, load {facts['load']:.2f}")
    thp = ", ".join(f"{name} {value}" for name, value in facts["thp"].items())
    print(f"settings  THP {thp}; page-cluster {facts['page_cluster']}; swappiness {facts['swappiness']}; zswap {facts['zswap']}")
    if facts["damon"]:
        print(f"NOTE      DAMON runs here ({', '.join(facts['damon'])}): with swap on it may page out what was idle for long")
    if facts["load"] > 0.7:
        print("WARNING   the machine is busy with other work: the figures are noisy")
    sys.stdout.flush()
    return facts
