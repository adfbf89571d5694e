"""Ways to set up the kernel's own swap."""

import contextlib
from dataclasses import dataclass

from .procfs import read_fields
from .settings import PAGE_CLUSTER, THP, ZSWAP, Setting
from .swapfile import SwapFile
from .zram import Zram

SWAP_FILE_BYTES = 8 << 30
SWAP_FILE_DIRECTORY = "/var/tmp"


@dataclass(frozen=True)
class KernelConfig:
    """One way to set up the kernel's own swap."""

    name: str
    algorithm: str = "lz4"
    page_cluster: int = 0
    thp: str = "madvise"
    mthp_64k: str = "never"
    zswap: str = "N"
    back_end: str = "zram"  # or "a swap file"

    def describe(self):
        back_end = f"zram {self.algorithm}" if self.back_end == "zram" else self.back_end
        if self.zswap == "Y":
            back_end = f"zswap {self.algorithm} over {self.back_end}"
        return f"{back_end}, page-cluster {self.page_cluster}, THP {self.thp}, 64 KiB mTHP {self.mthp_64k}"

    @contextlib.contextmanager
    def memory_settings(self):
        """THP as this configuration has it: holds for both arms of a pair."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Setting(THP / "enabled", self.thp))
            if (THP / "hugepages-64kB").exists():
                stack.enter_context(Setting(THP / "hugepages-64kB" / "enabled", self.mthp_64k))
            yield

    @contextlib.contextmanager
    def swap_space(self):
        """Swap on, for the kernel's arm only. Yields the device or the file."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Setting(PAGE_CLUSTER, self.page_cluster))
            if self.zswap == "Y":
                stack.enter_context(Setting(ZSWAP / "compressor", self.algorithm))
                stack.enter_context(Setting(ZSWAP / "max_pool_percent", 50))
                if (ZSWAP / "shrinker_enabled").exists():
                    stack.enter_context(Setting(ZSWAP / "shrinker_enabled", "Y"))
            if ZSWAP.exists():
                stack.enter_context(Setting(ZSWAP / "enabled", self.zswap))
            yield stack.enter_context(Zram(self.algorithm) if self.back_end == "zram" else SwapFile(SWAP_FILE_DIRECTORY, SWAP_FILE_BYTES))


KERNEL_CONFIGS = {
    config.name: config
    for config in (
        KernelConfig("zram-lz4"),
        KernelConfig("zram-lzo-rle", algorithm="lzo-rle"),
        KernelConfig("zram-lz4-readahead", page_cluster=3),
        KernelConfig("zram-lz4-mthp", mthp_64k="always"),
        KernelConfig("zram-lzo-rle-mthp", algorithm="lzo-rle", mthp_64k="always"),
        KernelConfig("zram-lz4-thp", thp="always"),
        KernelConfig("zswap-lz4", zswap="Y"),
        KernelConfig("file", back_end="a swap file", page_cluster=3),
        KernelConfig("file-zswap-lz4", back_end="a swap file", page_cluster=3, zswap="Y"),
        KernelConfig("file-zswap-lzo-rle", algorithm="lzo-rle", back_end="a swap file", page_cluster=3, zswap="Y"),
    )
}
# Names of those that swap to RAM (of these the two that are tried for a first look), and to a file.
IN_MEMORY = tuple(name for name, config in KERNEL_CONFIGS.items() if config.back_end == "zram")
ZRAM = ("zram-lz4", "zram-lzo-rle")
ON_DISK = tuple(name for name in KERNEL_CONFIGS if name not in IN_MEMORY)


def zswap_pool_bytes():
    return read_fields("/proc/meminfo").get("Zswap", 0) * 1024
