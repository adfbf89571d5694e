//! `--strict`: ends a run that passes its cap and stays above it.
//!
//! What the sampler counts is an upper bound: pages that a fork left shared are in it once a process. So a first look
//! asks the kernel for each process's share of its pages, has every process asked for what is too much, and a second
//! look, when all that were asked have given it or have nothing to give, decides.

use crate::exact;
use crate::report::Pages;
use crate::tree;
use pagetide::group::{Field, Group, ProcessSlot};
use std::sync::atomic::Ordering::AcqRel;

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// A cap is passed beyond so much of it.
const PASSED: f64 = 1.03;
/// Samples between looks at a run whose upper bound alone is above the cap: a look walks page tables.
const PAUSE: u32 = 12;

/// Watches over a cap.
#[derive(Debug, Default)]
pub struct Strict {
    /// Whether the cap was passed at the last look, and everybody was asked for what is too much.
    asked: bool,
    pause: u32,
}

/// A run that is above its cap, and stays there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Bytes that it holds.
    pub bytes: u64,
    /// The process that holds most, what it is called, and the bytes that it holds.
    pub most: (u32, String, u64),
}

impl Strict {
    /// Takes a sample of a run of these processes: how much it is above its cap, if it stays there.
    pub fn sample(
        &mut self,
        group: &Group,
        now: Pages,
        processes: impl FnOnce() -> Vec<u32>,
    ) -> Option<Passed> {
        let cap = group.setup().cap_pages;
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
        let shares = exact::shares(processes());
        let bytes = exact::total(&shares, group.own_pages().1);
        if !is_passed(bytes, cap) {
            *self = Self { asked: false, pause: PAUSE };
            return None;
        }
        if !std::mem::replace(&mut self.asked, true) {
            ask(group, bytes.div_ceil(PAGE) - cap);
            return None;
        }
        let (pid, most) = shares.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        Some(Passed { bytes, most: (pid, tree::name(pid), most) })
    }
}

/// Whether so many bytes are more than a cap, by more than sampling explains.
pub fn is_passed(bytes: u64, cap_pages: u64) -> bool {
    bytes as f64 > (cap_pages * PAGE) as f64 * PASSED
}

fn listeners(group: &Group) -> impl Iterator<Item = ProcessSlot> {
    group.live().filter(|slot| slot.get(Field::Listens) != 0)
}

/// Whether somebody was asked for pages and has not answered. Who does not listen any more does not count.
fn asked(group: &Group) -> bool {
    listeners(group).any(|slot| slot.get(Field::Asked) > 0)
}

/// Asks each process for that many pages, or for all that it has.
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
    use pagetide::group::Setup;
    use pagetide_sys::procfs::Identity;

    fn group(cap_pages: u64) -> (std::os::fd::OwnedFd, Group) {
        let setup = Setup::new(cap_pages, Identity::own());
        Group::create(setup).unwrap()
    }

    fn holding(pages: u64) -> Pages {
        Pages { total: pages, ..Pages::default() }
    }

    #[test]
    fn two_exact_looks_with_an_answer_between_them_decide() {
        let own = exact::total(&exact::shares(vec![std::process::id()]), 0) / PAGE;
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
    fn an_upper_bound_never_decides() {
        let own = exact::total(&exact::shares(vec![std::process::id()]), 0) / PAGE;
        let (_fd, group) = group(own * 2);
        let mut strict = Strict::default();
        for _ in 0..100 {
            assert_eq!(strict.sample(&group, holding(own * 9), || vec![std::process::id()]), None);
        }
    }
}
