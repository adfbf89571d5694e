//! Peaks of a run, kept from sample to sample.

use crate::accounts::cap::is_passed;
use crate::accounts::exact::Exact;
use crate::accounts::gathered::Gathered;
use crate::accounts::most::{Holder, Most};
use crate::accounts::pages::Pages;
use crate::processes::tree;
use crate::units::PAGE;
use pagetide::group::Group;
use std::time::Instant;

/// Returns the processes of a run but the keeper of its shared memory, which counts itself.
pub(crate) fn processes(group: Group, launcher: u32) -> Vec<u32> {
    let mut processes = tree::descendants(launcher);
    let keepers: Vec<_> = group.keepers().map(|slot| slot.known_as()).collect();
    processes.retain(|&pid| !keepers.contains(&pid.into()));
    processes
}

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
            let beside = [group.own_pages().1, group.keeper_pages()];
            self.exact.look(Instant::now(), beside, || processes(group, launcher));
            self.most.counted = self.exact.counted();
        }
        if now.stored.0 > self.stored
            && let Some(ratio) = now.ratio()
        {
            (self.stored, self.ratio) = (now.stored.0, Some(ratio));
        }
    }
}
