//! Peaks of a run, kept from sample to sample.

use crate::accounts::cap::is_passed;
use crate::accounts::exact::{self, Counted, Exact};
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
    /// The figures when the run held the most memory, since the cap is what it is.
    pub(crate) most: Most,
    /// The compression ratio when the pool held the most, and how many pages that were.
    pub(crate) ratio: Option<f64>,
    stored: u64,
    exact: Exact,
    /// The cap at the last sample, in pages.
    cap: Option<u64>,
    /// Whether the cap was lowered and memory has not come down to it yet.
    settles: bool,
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
            cap: None,
            settles: false,
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
        self.follow(group.cap_pages());
        self.pages = self.pages.max(now.pages);
        if now.stored.0 > self.stored
            && let Some(ratio) = now.ratio()
        {
            (self.stored, self.ratio) = (now.stored.0, Some(ratio));
        }
        let is_above = |bytes| is_passed(bytes, group.cap_pages());
        let bytes = now.pages.total * PAGE;
        let mut held = bytes;
        // A single process shares nothing.
        if is_above(bytes) && group.live().nth(1).is_some() {
            let look = || exact::shares(tree::descendants(launcher), Some(&group));
            held = self.exact.look(Instant::now(), group.own_pages().1, look).unwrap_or(bytes);
        }
        if self.settles && is_above(held) {
            // If it stays so, that is what is told of this cap.
            let counted = (held != bytes).then_some(Counted { bytes: held, looks: 1 });
            self.most = Most { pages: now.pages, holders: holders(), counted, within: 0 };
            return;
        }
        if std::mem::take(&mut self.settles) {
            self.most = Most::default();
            self.exact = Exact::new(Instant::now());
        }
        if now.pages.total > self.most.pages.total {
            self.most = Most { pages: now.pages, holders: holders(), ..self.most };
        }
        if is_above(bytes) {
            self.most.counted = self.exact.counted();
        } else {
            self.most.within = self.most.within.max(now.pages.total);
        }
    }

    /// Begins anew with a cap that was changed: what was held before says nothing about it.
    fn follow(&mut self, cap: u64) {
        let Some(before) = self.cap.replace(cap).filter(|&before| before != cap) else { return };
        self.settles |= cap < before;
        self.most = Most::default();
        self.exact = Exact::new(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::group;

    fn holding(group: &Group, pages: u64) -> Gathered {
        let mut gathered = Gathered::from(group);
        gathered.pages.total = pages;
        gathered
    }

    #[test]
    fn what_was_held_under_another_cap_says_nothing_about_this_one() {
        let (_fd, group) = group(1000);
        let mut peaks = Peaks::new(Instant::now());
        let mut take = |pages| {
            peaks.take(group, std::process::id(), &holding(&group, pages), Vec::new);
            (peaks.most.pages.total, peaks.pages.total)
        };
        assert_eq!(take(900), (900, 900));
        assert_eq!(take(800), (900, 900));
        group.change_cap(500);
        // It comes down, and what is left above the cap is told until it is there.
        assert_eq!(take(790), (790, 900));
        assert_eq!(take(600), (600, 900));
        assert_eq!(take(505), (505, 900));
        assert_eq!(take(300), (505, 900));
        assert_eq!(take(700), (700, 900), "it has passed the cap again");
        group.change_cap(2000);
        assert_eq!(take(650), (650, 900));
    }
}
