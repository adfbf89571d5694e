//! What a run held when it held the most, and who held it.

use crate::accounts::exact::Counted;
use crate::accounts::pages::Pages;
use crate::units::show_bytes;

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// Programs that are named, of those that broke a cap.
pub(crate) const NAMED: usize = 3;

/// What a run held when it held the most, and who held of it what Pagetide does not manage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Most {
    /// What it held.
    pub(crate) pages: Pages,
    /// Those that held the most, in order, if that was above the cap.
    pub(crate) holders: Vec<Holder>,
    /// What was found where each page was counted once, if that was done: `pages` counts what a fork left shared in
    /// each process.
    pub(crate) counted: Option<Counted>,
    /// The most pages that were held at a look that found no more than the cap, where nothing was counted exactly.
    pub(crate) within: u64,
}

impl Most {
    /// Returns the most bytes that were held: where each page was counted once, or else at most.
    pub(crate) fn held_bytes(&self) -> u64 {
        let Self { pages, counted, within, .. } = self;
        counted.map_or(pages.total * PAGE, |counted| counted.bytes.max(within * PAGE))
    }
}

/// A process, and its pages that are not managed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    /// Its pid.
    pub(crate) pid: u32,
    /// What it is called; empty if it has gone.
    pub(crate) name: String,
    /// The pages.
    pub(crate) pages: u64,
    /// Whether none of its memory is managed.
    pub(crate) stranger: bool,
}

impl Holder {
    /// What a message says of it.
    pub(crate) fn describe(&self) -> String {
        let name = if self.name.is_empty() { "one that has ended" } else { &self.name };
        let stranger = if self.stranger { ", which runs without Pagetide" } else { "" };
        format!("{} in {name} (pid {}{stranger})", show_bytes(self.pages * PAGE), self.pid)
    }
}
