//! The group page: what the processes of one run share.
//!
//! It is a memfd that the launcher creates and owns; processes open it as `/proc/LAUNCHER/fd/N`, the path
//! in the environment variable [`ENVIRONMENT`]. Everything in it is an atomic word, so that a process
//! that is killed at any instant leaves it usable.
//!
//! ```text
//! ┌────────┬────────────────┬──────────────────────────┬─────────────────┬──────────────────────────┐
//! │ header │ totals of dead │ slots, one a process     │ block counts    │ held blocks, a bitmap a  │
//! │        │ processes      │ (header counters latency)│ (a byte a block)│ slot; boards; files that │
//! │        │                │                          │                 │ the keeper serves        │
//! └────────┴────────────────┴──────────────────────────┴─────────────────┴──────────────────────────┘
//! ```
//!
//! # Memory, as the group sees it
//! `free` + the grants of all slots = the cap. A process uses no more than its grant, but for what it
//! cannot know beforehand (its unmanaged memory): the launcher samples that, and takes from `free`, which
//! may then be negative until a process gives back.

mod asking;
mod board;
mod crossing;
mod device_spec;
mod figures;
#[cfg(test)]
mod hostile;
mod inquiry;
mod layout;
mod ledger;
mod lives;
mod remote;
mod rest;
mod served_files;
mod setup;
mod slot;
mod swapoff;
#[cfg(test)]
mod tests;

pub use device_spec::{Access, DeviceKind, DeviceSpec, OpenDevice, TierSpec};
pub use figures::Figures;
pub use inquiry::{Ended, Responsiveness};
pub use layout::{Field, bytes_needed};
pub(crate) use layout::{GRANTED, WANTED};
pub use remote::RemoteFigure;
pub(crate) use rest::RestOrder;
pub use setup::{Knobs, OpenError, Setup, VERSION};
pub use slot::ProcessSlot;
pub use swapoff::OffState;

use layout::{HEADER_WORDS, Header, SLOT_WORDS, counts_bytes, held_words};
use pagetide_swap::frontier::{Frontier, Frontiers, TIERS};
use pagetide_swap::held::Held;
use pagetide_sys::shared::Shared;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// The environment variable that has the path of the group page, for the processes of a run.
pub const ENVIRONMENT: &str = "PAGETIDE_GROUP";
/// The number of pages that a process may have in memory however much the others have.
pub const RESIDENT_MIN: i64 = 128;
/// The part of the cap, one in so many, that is left for others, and for what is not managed: with less free a process without an
/// engine gets no more, and its engine starts.
pub const OTHERS_PART: i64 = 16;
/// The number of processes that a run may have at one time.
pub const SLOTS: usize = 250;

/// A handle on the group page.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    shared: Shared,
    header: &'static [AtomicU64],
    slots: usize,
    setup: Setup,
}

impl Group {
    /// Returns the path under which processes of this run open a tier of the device.
    pub fn tier_path(&self, tier: usize) -> PathBuf {
        self.setup.tiers[tier].device.path(self.setup.launcher.pid)
    }

    /// Returns the path under which processes of this run open the trace, if there is one.
    pub fn trace_path(&self) -> Option<PathBuf> {
        Some(format!("/proc/{}/fd/{}", self.setup.launcher.pid, self.setup.trace_fd?).into())
    }

    fn slot_words(&self, index: usize) -> &'static [AtomicU64] {
        // Number 0 is the totals of the dead.
        self.shared.words((HEADER_WORDS + index * SLOT_WORDS) * 8, SLOT_WORDS)
    }

    /// Returns the number of processes that hold each block of the device.
    pub fn block_counts(&self) -> &'static [AtomicU8] {
        let offset = (HEADER_WORDS + SLOT_WORDS * (SLOTS + 1)) * 8;
        self.shared.bytes(offset, self.setup.blocks() as usize)
    }

    /// Returns the frontier of a tier, below which blocks are in use.
    ///
    /// # Panics
    /// If a device cannot have so many tiers.
    pub fn frontier(&self, tier: usize) -> Frontier {
        let words = self.header[Header::Frontiers as usize + tier * Frontier::WORDS..].first_chunk();
        Frontier::new(self.setup.tiers[tier].blocks, words.expect("the header has room for all its words"))
    }

    /// Returns the frontiers of the device's tiers.
    pub fn frontiers(&self) -> Frontiers {
        let tiers = (0..TIERS).filter(|&tier| self.setup.tiers[tier].blocks > 0);
        Frontiers::new(tiers.map(|tier| self.frontier(tier)))
    }

    /// Returns the bitmap of the blocks that a process holds.
    pub fn held(&self, slot: ProcessSlot) -> Held {
        let words = held_words(self.setup.blocks());
        let offset = (HEADER_WORDS + SLOT_WORDS * (SLOTS + 1)) * 8 + counts_bytes(self.setup.blocks());
        Held::new(self.shared.words(offset + slot.index() * words * 8, words), self.setup.blocks() as usize)
    }
}
