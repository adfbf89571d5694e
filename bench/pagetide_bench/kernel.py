"""Ways to set up the kernel's own swap."""

import contextlib
from dataclasses import dataclass

from .procfs import read_fields
from .settings import PAGE_CLUSTER, THP, ZSWAP, Setting
from .zram import Zram


@dataclass(frozen=True)
class KernelConfig:
    """One way to set up the kernel's own swap."""

    name: str
    algorithm: str = "lz4"
    page_cluster: int = 0
    thp: str = "madvise"
    mthp_64k: str = "never"
    zswap: str = "N"

    def describe(self):
        back_end = f"zswap {self.algorithm} over zram" if self.zswap == "Y" else f"zram {self.algorithm}"
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
        """Swap on, for the kernel's arm only. Yields the zram device."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Setting(PAGE_CLUSTER, self.page_cluster))
            if self.zswap == "Y":
                stack.enter_context(Setting(ZSWAP / "compressor", self.algorithm))
                stack.enter_context(Setting(ZSWAP / "max_pool_percent", 50))
            if ZSWAP.exists():
                stack.enter_context(Setting(ZSWAP / "enabled", self.zswap))
            yield stack.enter_context(Zram(self.algorithm))


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
    )
}


def zswap_pool_bytes():
    return read_fields("/proc/meminfo").get("Zswap", 0) * 1024
