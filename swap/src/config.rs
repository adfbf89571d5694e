//! Every limit and switch of the swap subsystem, in one place.

use crate::policy::Reclaim;
use crate::streams::Readahead;
use crate::zswap::pool::Allocator;
use crate::zswap::switches::Switches;

/// Device blocks that one write carries at most: 128 KiB.
pub const WRITE_BATCH_PAGES: usize = 32;

/// Settings of one process's swap subsystem.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The pool's allocator.
    pub zpool: Allocator,
    /// How the pool begins.
    pub switches: Switches,
    /// What decides which clusters leave.
    pub reclaim: Reclaim,
    /// Which neighbours of a page come in with it.
    pub readahead: Readahead,
    /// log2 of the pages that are read from the device at once, at most: the kernel's `page-cluster`.
    pub page_cluster: u32,
    /// Pages that the process may have, in memory and compressed.
    pub cap_pages: u64,
}

/// The largest [`Config::page_cluster`]: 2 MiB.
pub const PAGE_CLUSTER_MAX: u32 = 9;

impl Config {
    /// The defaults, for a process that may have `cap_pages`.
    pub fn for_cap(cap_pages: u64) -> Self {
        Self {
            zpool: Allocator::default(),
            switches: Switches::default(),
            reclaim: Reclaim::default(),
            readahead: Readahead::default(),
            page_cluster: PAGE_CLUSTER_MAX,
            cap_pages,
        }
    }
}
