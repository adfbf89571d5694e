//! `--strict`: detection of a run that passes its cap and stays above it.
//!
//! The sampler's sum is an upper bound: it has pages that a fork left shared once for each process. So the decision
//! takes two exact looks. After the first one every process is asked for the excess. The second one decides, when
//! all that were asked have given it or have nothing to give. What those hold that cannot be asked is no reason to end a
//! run as long as it would bring the run below its cap.

use crate::accounts::cap::is_passed;
use crate::accounts::exact;
use crate::accounts::pages::Pages;
use crate::processes::tree;
use crate::units::PAGE;
use pagetide::group::{Field, Group, ProcessSlot};
use std::sync::atomic::Ordering::AcqRel;

/// Samples between exact looks at a run of which only the upper bound is above the cap: a look walks page tables.
const PAUSE: u32 = 12;

/// State of the watch over a cap.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    /// Whether the cap was passed at the last look, and every process was asked for the excess.
    asked: bool,
    pause: u32,
}

/// A run that stays above its cap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Passed {
    /// Bytes that it holds.
    pub(crate) bytes: u64,
    /// The process that holds most: its pid, its name and its bytes.
    pub(crate) most: (u32, String, u64),
}

impl Strict {
    /// Takes a sample of a run of these processes. Returns a finding if the run stays above its cap.
    pub(crate) fn sample(
        &mut self,
        group: &Group,
        now: Pages,
        processes: impl FnOnce() -> Vec<u32>,
    ) -> Option<Passed> {
        let cap = group.cap_pages();
        if !is_passed(now.total * PAGE, cap) {
            *self = Self::default();
            return None;
        }
        if self.asked && asked(group) {
            // They have not answered yet.
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let shares = exact::shares(processes(), Some(group));
        let bytes = exact::total(&shares, group.own_pages().1);
        if !is_passed(bytes, cap) {
            *self = Self { asked: false, pause: PAUSE };
            return None;
        }
        let excess = bytes.div_ceil(PAGE) - cap;
        if !std::mem::replace(&mut self.asked, true) {
            ask(group, excess);
            return None;
        }
        if could_come_from_the_unasked(group, excess) {
            *self = Self { asked: false, pause: PAUSE };
            return None;
        }
        let (pid, most) = shares.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        Some(Passed { bytes, most: (pid, tree::name(pid), most) })
    }
}

fn listeners(group: &Group) -> impl Iterator<Item = ProcessSlot> {
    group.live().filter(|slot| slot.get(Field::Listens) != 0)
}

/// Returns whether processes that cannot be asked have been handed out that many pages: small ones, whose engine has not
/// started and which nobody wakes. A cap that was lowered can find many of them.
fn could_come_from_the_unasked(group: &Group, excess: u64) -> bool {
    let unasked = group.live().filter(|slot| slot.get(Field::Listens) == 0 && slot.get(Field::Armed) == 0);
    unasked.map(|slot| slot.granted().max(0) as u64).sum::<u64>() >= excess
}

/// Returns whether a process that listens was asked for pages and has not answered.
fn asked(group: &Group) -> bool {
    listeners(group).any(|slot| slot.get(Field::Asked) > 0)
}

/// Asks each process for that many pages, or for all of its grant.
fn ask(group: &Group, pages: u64) {
    for slot in listeners(group) {
        let more = pages.min(slot.granted().max(0) as u64).saturating_sub(slot.get(Field::Asked));
        slot.word(Field::Asked).fetch_add(more, AcqRel);
        slot.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::group;
    use pagetide_sys::procfs::Identity;

    fn holding(pages: u64) -> Pages {
        Pages { total: pages, ..Pages::default() }
    }

    #[test]
    fn two_exact_looks_with_an_answer_between_them_decide() {
        let own = exact::total(&exact::shares(vec![std::process::id()], None), 0) / PAGE;
        let (_fd, group) = group(own / 2);
        let slot = group.claim(Identity::own()).unwrap();
        slot.listen();
        slot.set(Field::Grant, own);
        let me = || vec![std::process::id()];
        let mut strict = Strict::default();
        assert_eq!(strict.sample(&group, holding(own / 2), me), None);
        assert_eq!(strict.sample(&group, holding(own), me), None);
        assert!(slot.get(Field::Asked) >= own / 4);
        for _ in 0..100 {
            assert_eq!(strict.sample(&group, holding(own), me), None, "it has not answered");
        }
        slot.set(Field::Asked, 0);
        let passed = strict.sample(&group, holding(own), me).unwrap();
        assert_eq!((passed.most.0, passed.most.2 <= passed.bytes), (std::process::id(), true));

        // It came below in between.
        let mut strict = Strict::default();
        assert_eq!(strict.sample(&group, holding(own), me), None);
        slot.set(Field::Asked, 0);
        assert_eq!(strict.sample(&group, holding(1), me), None);
        assert_eq!(strict.sample(&group, holding(own), me), None);
    }

    #[test]
    fn what_cannot_be_asked_is_no_reason_to_end_a_run_that_it_would_bring_down() {
        let own = exact::total(&exact::shares(vec![std::process::id()], None), 0) / PAGE;
        let (_fd, group) = group(own / 2);
        let slot = group.claim(Identity::own()).unwrap();
        let decides = |granted| {
            slot.set(Field::Grant, granted);
            let mut strict = Strict::default();
            (0..100).any(|_| strict.sample(&group, holding(own), || vec![std::process::id()]).is_some())
        };
        assert!(!decides(own), "it has no engine, and nobody wakes it");
        assert!(decides(own / 10), "without it the run would hold too much, too");
    }

    #[test]
    fn an_upper_bound_never_decides() {
        let own = exact::total(&exact::shares(vec![std::process::id()], None), 0) / PAGE;
        let (_fd, group) = group(own * 2);
        let mut strict = Strict::default();
        for _ in 0..100 {
            assert_eq!(strict.sample(&group, holding(own * 9), || vec![std::process::id()]), None);
        }
    }
}
