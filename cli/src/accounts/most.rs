//! The moment at which a run held the most, and the processes that held it.

use crate::accounts::exact::Counted;
use crate::accounts::pages::Pages;
use crate::units::{PAGE, show_bytes};

/// Processes that are named when a cap is broken.
pub(crate) const NAMED: usize = 3;

/// The figures of a run when it held the most memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Most {
    /// Memory and disk of the run at that time.
    pub(crate) pages: Pages,
    /// Processes that held the most unmanaged memory then, largest first; empty if the run was below its cap.
    pub(crate) holders: Vec<Holder>,
    /// Result of exact looks, if there were any: `pages` has pages that a fork left shared once for each process.
    pub(crate) counted: Option<Counted>,
    /// The most pages at a sample at which no exact look was called for: it was within the cap, or of a single process.
    pub(crate) certain: u64,
}

impl Most {
    /// Returns the most bytes that the run held: by exact looks if there were any, else the upper bound.
    pub(crate) fn held_bytes(&self) -> u64 {
        let Self { pages, counted, certain, .. } = self;
        counted.map_or(pages.total * PAGE, |counted| counted.bytes.max(certain * PAGE))
    }
}

/// A process that held unmanaged memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    /// Its pid.
    pub(crate) pid: u32,
    /// Its name; empty if it has ended.
    pub(crate) name: String,
    /// Its unmanaged pages.
    pub(crate) pages: u64,
    /// Whether it ran without Pagetide, so that none of its memory is managed.
    pub(crate) outside: bool,
}

impl Holder {
    /// Describes it in a message.
    pub(crate) fn describe(&self) -> String {
        let name = if self.name.is_empty() { "one that has ended" } else { &self.name };
        let outside = if self.outside { ", which runs without Pagetide" } else { "" };
        format!("{} in {name} (pid {}{outside})", show_bytes(self.pages * PAGE), self.pid)
    }
}
