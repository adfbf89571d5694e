//! Peaks of a run, kept from sample to sample.

use crate::accounts::cap::is_passed;
use crate::accounts::exact::{self, Exact};
use crate::accounts::gathered::Gathered;
use crate::accounts::most::{Holder, Most};
use crate::accounts::pages::Pages;
use crate::processes::tree;
use crate::units::PAGE;
use pagetide::group::Group;
use std::time::Instant;

/// Peaks of a run.
#[derive(Debug)]
pub(crate) struct Peaks {
    /// The peak of each figure.
    pub(crate) pages: Pages,
    /// The figures when the run held the most memory.
    pub(crate) most: Most,
    /// The compression ratio when the pool held the most, and how many pages that were.
    pub(crate) ratio: Option<f64>,
    stored: u64,
    exact: Exact,
}

impl Peaks {
    /// Returns peaks without a sample.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            pages: Pages::default(),
            most: Most::default(),
            ratio: None,
            stored: 0,
            exact: Exact::new(now),
        }
    }

    /// Takes the figures of a sample of the run that `launcher` has launched. `holders` names its processes that hold
    /// the most unmanaged memory.
    pub(crate) fn take(
        &mut self,
        group: Group,
        launcher: u32,
        now: &Gathered,
        holders: impl FnOnce() -> Vec<Holder>,
    ) {
        self.pages = self.pages.max(now.pages);
        if now.pages.total > self.most.pages.total {
            self.most = Most { pages: now.pages, holders: holders(), ..self.most };
        }
        let bytes = now.pages.total * PAGE;
        if !is_passed(bytes, group.setup().cap_pages) {
            self.most.within = self.most.within.max(now.pages.total);
        } else if group.live().nth(1).is_some() {
            // A single process shares nothing.
            let look = || exact::shares(tree::descendants(launcher), Some(&group));
            self.exact.look(Instant::now(), group.own_pages().1, look);
            self.most.counted = self.exact.counted();
        }
        if now.stored.0 > self.stored
            && let Some(ratio) = now.ratio()
        {
            (self.stored, self.ratio) = (now.stored.0, Some(ratio));
        }
    }
}
