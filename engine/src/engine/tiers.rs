//! The tiers of the device: which of them takes pages, and which first.

use super::Engine;
use super::full::Full;
use crate::memory::Memory;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pages go to another tier if its reads take less than this many parts of 100 of what those of the present one take.
const CHEAPER_PERCENT: u64 = 75;

/// What a tier of the device does not do.
#[derive(Debug, Default)]
pub(super) struct TierOutage {
    /// Whether a write has failed: then no more are tried. Stored pages stay readable.
    pub(super) failed: AtomicBool,
    pub(super) full: Full,
}

impl<M: Memory> Engine<M> {
    /// Returns whether nothing is written to this tier of the device any more, since a write failed.
    ///
    /// # Panics
    /// If a device cannot have so many tiers.
    pub fn has_failed_writes(&self, tier: usize) -> bool {
        self.outage.tiers[tier].failed.load(Relaxed)
    }

    /// Returns whether no tier of the device had room of late.
    pub fn is_full(&self) -> bool {
        let now = self.now();
        self.tier_outages().all(|tier| tier.full.is_recent(now) || tier.failed.load(Relaxed))
    }

    /// Returns whether a tier had no room for the last write to it, or for blocks that were not tried again since.
    pub fn is_refused(&self) -> bool {
        self.tier_outages().any(|tier| tier.full.is_refused()) || self.swap.blocks().has_parked()
    }

    /// Has the next writes try blocks again for which the device had no room.
    pub fn retry_refused_blocks(&self) {
        let blocks = self.swap.blocks();
        (0..blocks.tiers()).for_each(|tier| blocks.unpark(tier));
    }

    /// Has pages go first to the tier whose reads take least time.
    pub fn prefer_cheapest_tier(&self) {
        let (Some(device), blocks) = (&self.device, self.swap.blocks()) else { return };
        let cost = |tier| device.cost(blocks.first_of(tier)).read_ns;
        let present = blocks.preferred();
        let cheapest = (0..blocks.tiers()).min_by_key(|&tier| cost(tier)).unwrap_or(present);
        if cheapest != present && cost(cheapest) * 100 < cost(present) * CHEAPER_PERCENT {
            let [to, from] = [cheapest, present].map(|tier| device.told(blocks.first_of(tier)).name);
            pagetide_sys::log!(Info, "pages go to the {to} first: the {from} is slower");
            blocks.prefer(cheapest);
        }
    }

    /// Returns the outages of the tiers that there are.
    pub(super) fn tier_outages(&self) -> impl Iterator<Item = &TierOutage> {
        self.outage.tiers.iter().take(self.swap.blocks().tiers())
    }

    /// Returns the outage of the tier in which a block lies.
    pub(super) fn tier_outage(&self, block: u64) -> &TierOutage {
        &self.outage.tiers[self.swap.blocks().tier_of(block)]
    }
}
