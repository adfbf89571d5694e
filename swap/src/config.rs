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
    /// The pool's switches at the start; they may change later.
    pub switches: Switches,
    /// The policy that decides which clusters leave the program.
    pub reclaim: Reclaim,
    /// The rule that says which neighbours of a page come in with it.
    pub readahead: Readahead,
    /// log2 of the pages that are read from the device at once, at most: the kernel's `page-cluster`.
    pub page_cluster: u32,
    /// The number of pages that the process may have in memory, compressed ones by the memory that they take.
    pub cap_pages: u64,
}

/// The largest [`Config::page_cluster`]: 2 MiB.
pub const PAGE_CLUSTER_MAX: u32 = 9;

impl Config {
    /// Returns the defaults for a process that may have `cap_pages` pages in memory.
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
