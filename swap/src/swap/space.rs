//! The swap space: what all objects of a process share.

use super::store::Admission;
use super::swapin::Nearness;
use super::totals::PageTotals;
use super::transfers::Transfers;
use super::writeback::Shrinking;
use crate::blocks::Blocks;
use crate::cipher::Cipher;
use crate::config::Config;
use crate::hash::HashKey;
use crate::held::Held;
use crate::hot::Hot;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::stats::Counters;
use crate::workingset::Workingset;
use crate::zswap::Zswap;
use crate::zswap::pool::SpanSource;
use std::sync::Arc;

/// The keys of a process, which must not be known outside of it.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The key for hashes of pages.
    pub hash: HashKey,
    /// The cipher for pages that go to the device; `None` to write them as they are.
    pub cipher: Option<Cipher>,
}

/// The pool, the device's blocks, the order in which memory is given up, and the counters.
#[derive(Debug)]
pub(super) struct SwapSpace<S: SpanSource> {
    pub(super) zswap: Arc<Zswap<S>>,
    pub(super) blocks: Blocks,
    /// Clusters with pages in the program, in the order in which they are taken out.
    pub(super) queue: Arc<Queue>,
    /// Clusters with pages in the pool, in the order in which they are written back.
    pub(super) pooled: Arc<Queue>,
    pub(super) keys: Keys,
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) workingset: Workingset,
    pub(super) policy: Box<dyn Policy>,
    pub(super) hot: Hot,
    pub(super) totals: PageTotals,
    pub(super) nearness: Nearness,
    pub(super) admission: Admission,
    pub(super) shrinking: Shrinking,
    pub(super) transfers: Transfers,
}

impl<S: SpanSource + Clone + 'static> SwapSpace<S> {
    /// Returns an empty space, whose pool may take no memory yet.
    pub(super) fn new(source: S, blocks: Blocks, keys: Keys, config: Config, counters: Counters) -> Self {
        let zswap = Arc::new(Zswap::new(source, config.zpool, config.switches));
        Self::assemble(zswap, blocks, keys, config, counters)
    }
}

impl<S: SpanSource> SwapSpace<S> {
    fn assemble(
        zswap: Arc<Zswap<S>>,
        blocks: Blocks,
        keys: Keys,
        config: Config,
        counters: Counters,
    ) -> Self {
        Self {
            zswap,
            blocks,
            queue: Arc::default(),
            pooled: Arc::default(),
            keys,
            config,
            counters,
            workingset: Workingset::new(config.cap_pages),
            policy: config.reclaim.policy(),
            hot: Hot::default(),
            totals: PageTotals::default(),
            nearness: Nearness::default(),
            admission: Admission::default(),
            shrinking: Shrinking::default(),
            transfers: Transfers::default(),
        }
    }

    /// Returns the space of a forked child, which shares the pool and the queues copy-on-write. Rates are measured
    /// anew.
    pub(super) fn for_child(&self, held: Held, counters: Counters) -> Self {
        let (zswap, blocks) = (Arc::clone(&self.zswap), self.blocks.for_child(held));
        Self {
            queue: Arc::clone(&self.queue),
            pooled: Arc::clone(&self.pooled),
            workingset: self.workingset.for_child(),
            totals: self.totals.for_child(),
            ..Self::assemble(zswap, blocks, self.keys.clone(), self.config, counters)
        }
    }
}
