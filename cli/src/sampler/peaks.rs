//! Peaks of a run, kept from sample to sample.

use crate::accounts::cap::is_passed;
use crate::accounts::exact::{self, Exact};
use crate::accounts::gathered::Gathered;
use crate::accounts::most::{Holder, Most};
use crate::accounts::pages::Pages;
use crate::processes::tree;
use crate::units::PAGE;
use pagetide::group::Group;
use std::time::{Duration, Instant};

/// Memory that does not fall for this long stays: the lowered cap does not hold.
const STAYS: Duration = Duration::from_secs(1);

/// Memory on its way down to a cap that was lowered.
#[derive(Clone, Copy, Debug)]
struct Settling {
    /// The least that was held meanwhile, in bytes, and since when.
    least: u64,
    since: Instant,
}

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
    /// Pages that were counted more than once at the last look.
    twice: u64,
    /// The cap at the last sample, in pages.
    cap: Option<u64>,
    /// After the cap was lowered, until memory has come down to it or stays above it.
    settling: Option<Settling>,
}

impl Settling {
    /// Returns its state after a look at which so much was held; `None` if it has not become less for a while.
    fn goes_on(self, held: u64, now: Instant) -> Option<Self> {
        match held < self.least {
            true => Some(Self { least: held, since: now }),
            false => (now.duration_since(self.since) < STAYS).then_some(self),
        }
    }
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
            twice: 0,
            cap: None,
            settling: None,
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
        if now.stored.0 > self.stored
            && let Some(ratio) = now.ratio()
        {
            (self.stored, self.ratio) = (now.stored.0, Some(ratio));
        }
        let is_above = |bytes| is_passed(bytes, group.cap_pages());
        let bytes = now.pages.total * PAGE;
        if self.settling.is_some() {
            // What was counted before says nothing about this cap.
            self.exact.forget();
        }
        // A single process shares nothing.
        let shares = group.live().nth(1).is_some() || group.unmanaged_pages() > 0;
        let is_looked_at = is_above(bytes) && shares;
        let look = || exact::shares(tree::descendants(launcher), Some(&group));
        let counted = match is_looked_at {
            true => self.exact.look(Instant::now(), group.own_pages().1, look),
            false => Some(bytes),
        };
        let held = counted.unwrap_or(bytes);
        // What was counted more than once is not needed so often; how much that is the last look has told.
        if let Some(counted) = counted {
            self.twice = bytes.saturating_sub(counted) / PAGE;
        }
        let needed = now.pages.needed.saturating_sub(self.twice);
        self.pages = self.pages.max(Pages { needed, ..now.pages });
        if let Some(settling) = self.settling.take() {
            // If it stays so, that is what is told of this cap.
            self.most = Most::default();
            if is_above(held) {
                self.settling = settling.goes_on(held, Instant::now());
            }
        }
        if now.pages.total > self.most.pages.total {
            self.most = Most { pages: now.pages, holders: holders(), ..self.most };
        }
        if is_looked_at {
            self.most.counted = self.exact.counted();
        } else {
            self.most.certain = self.most.certain.max(now.pages.total);
        }
    }

    /// Begins anew with a cap that was changed: what was held before says nothing about it.
    fn follow(&mut self, cap: u64) {
        let Some(before) = self.cap.replace(cap).filter(|&before| before != cap) else { return };
        if cap < before {
            self.settling = Some(Settling { least: u64::MAX, since: Instant::now() });
        }
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

    #[test]
    fn memory_that_does_not_come_down_is_told() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let settling = Settling { least: u64::MAX, since: start };
        let falls = settling.goes_on(900, after(5)).unwrap().goes_on(800, after(20)).unwrap();
        assert!(falls.goes_on(850, after(20)).is_some(), "a moment is no reason");
        assert!(falls.goes_on(800, after(22)).is_none(), "it stays");
        let (_fd, group) = group(1000);
        let mut peaks = Peaks::new(start);
        let take = |peaks: &mut Peaks, pages| {
            peaks.take(group, std::process::id(), &holding(&group, pages), Vec::new);
            peaks.most.pages.total
        };
        take(&mut peaks, 900);
        group.change_cap(500);
        take(&mut peaks, 800);
        let Settling { least, since } = peaks.settling.unwrap();
        peaks.settling = Some(Settling { least, since: since - STAYS });
        assert_eq!(take(&mut peaks, 800), 800);
        // Its processes end: that they held it is no less true.
        assert_eq!(take(&mut peaks, 10), 800);
    }

    #[test]
    fn what_was_counted_when_memory_has_come_down_stays_counted() {
        let (_fd, group) = group(1000);
        let claim = |pid| {
            group.claim(pagetide_sys::procfs::Identity { pid, ..pagetide_sys::procfs::Identity::own() })
        };
        let _two = [1, 2].map(|pid| claim(pid).unwrap());
        let mut peaks = Peaks::new(Instant::now());
        // This launcher has no descendants: each exact look finds nothing, whatever the upper bound.
        let nobody = u32::MAX;
        let mut take = |pages| peaks.take(group, nobody, &holding(&group, pages), Vec::new);
        take(900);
        group.change_cap(500);
        take(790);
        take(300);
        assert!(!is_passed(peaks.most.held_bytes(), 500), "{:?}", peaks.most);
    }

    #[test]
    fn what_is_counted_more_than_once_is_not_needed_so_often() {
        let (_fd, group) = group(500);
        let own = pagetide_sys::procfs::Identity::own();
        let mut peaks = Peaks::new(Instant::now());
        let mut take = |pages, needed| {
            let mut held = holding(&group, pages);
            held.pages.needed = needed;
            // No descendants: an exact look finds nothing.
            peaks.take(group, u32::MAX, &held, Vec::new);
            (peaks.pages.needed, peaks.most.held_bytes() / PAGE)
        };
        assert_eq!(take(490, 900), (900, 490));
        // One process shares nothing: what it holds is certain.
        let _one = group.claim(pagetide_sys::procfs::Identity { pid: 1, ..own }).unwrap();
        assert_eq!(take(700, 1000), (1000, 700));
        let _two = group.claim(pagetide_sys::procfs::Identity { pid: 2, ..own }).unwrap();
        assert_eq!(take(800, 1700), (1000, 700), "800 of them are counted twice");
        assert_eq!(take(800, 1900), (1100, 700));
    }

    #[test]
    fn a_process_without_a_slot_is_looked_at() {
        let (_fd, group) = group(500);
        let own = pagetide_sys::procfs::Identity::own();
        let _one = group.claim(pagetide_sys::procfs::Identity { pid: 1, ..own }).unwrap();
        group.charge_unmanaged(700);
        let mut peaks = Peaks::new(Instant::now());
        peaks.take(group, u32::MAX, &holding(&group, 800), Vec::new);
        assert_eq!(peaks.most.counted.map(|counted| counted.looks), Some(1));
    }
}
