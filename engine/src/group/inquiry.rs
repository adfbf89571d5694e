//! Inquiries: before a process ends for want of memory, all others of the run are asked whether anything of theirs can
//! leave, and all have to answer.
//!
//! An inquiry is a number. Who has begun to look after it was made, and has found nothing (or has given what it found),
//! notes that number in its slot. Whoever cannot answer is told by the launcher, which sees the state of its threads:
//! one that is stopped, or another program by now. The launcher answers too, when it has looked at all that it counts.

use super::layout::{Field, HEADER_WORDS, Header, PAGES_MAX, SLOT_HEADER_WORDS};
use super::{Group, ProcessSlot};
use crate::census::{Reason, Tally};
use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

const _: () = assert!(Header::EndedStuck as usize + Reason::ALL.len() <= HEADER_WORDS);
const _: () = assert!(Field::Stuck as usize + Reason::ALL.len() <= SLOT_HEADER_WORDS);

pagetide_page::numbered_enum! {
    /// Whether a process can answer, and if not, why.
    pub enum Responsiveness: u64 {
        /// The process answers, or may.
        Answers = 0,
        /// The process is stopped.
        Stopped = 1,
        /// The process has no engine any more: an exec made another program of it.
        Gone = 2,
    }
}

/// The processes that ended for want of memory, and what could not leave when the last one did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The number of processes.
    pub processes: u64,
    /// Pages of managed memory that could not leave, of all processes of the run.
    pub stuck: Tally,
    /// Pages of unmanaged memory, of all processes of the run.
    pub unmanaged: u64,
}

impl Group {
    fn word(&self, word: Header) -> &'static AtomicU64 {
        &self.header[word as usize]
    }

    /// Returns the number of the last inquiry; 0 if there was none.
    pub fn inquiry(&self) -> u64 {
        self.word(Header::Inquiries).load(Acquire)
    }

    /// Makes an inquiry in the name of `by`. Returns its number.
    pub fn inquire(&self, by: ProcessSlot) -> u64 {
        let number = self.word(Header::Inquiries).fetch_add(1, AcqRel).wrapping_add(1);
        self.live().filter(|slot| slot.index != by.index).for_each(|slot| slot.ring());
        number
    }

    /// Returns whether all others have answered an inquiry of `by`, or cannot. What is left of the launcher is for the
    /// caller.
    pub fn is_answered(&self, by: ProcessSlot, inquiry: u64) -> bool {
        self.live().filter(|slot| slot.index != by.index).all(|slot| {
            let cannot = slot.get(Field::Responsiveness) != Responsiveness::Answers.to_bits();
            // Without an engine, and nobody there to start one, nothing of it can leave.
            let may_answer = slot.get(Field::Armed) != 0 || slot.get(Field::Listens) != 0;
            cannot || !may_answer || slot.get(Field::Answered) >= inquiry
        })
    }

    /// Returns whether the launcher has looked since an inquiry was made.
    pub fn has_launcher_answered(&self, inquiry: u64) -> bool {
        self.word(Header::LauncherAnswered).load(Acquire) >= inquiry
    }

    /// Notes that the launcher has looked at all that it counts since this inquiry was made.
    pub fn answer_as_launcher(&self, inquiry: u64) {
        self.word(Header::LauncherAnswered).store(inquiry, Release);
    }

    /// Makes `slot` the one process that ends for want of memory. Returns false if another process ends just now: its
    /// memory is to be had soon.
    pub fn may_end(&self, slot: ProcessSlot) -> bool {
        let word = self.word(Header::Ending);
        let own = slot.tenant() + 1;
        let claim = |held: u64| (held == 0 || held == own || !self.has_tenant(held)).then_some(own);
        word.fetch_update(AcqRel, Acquire, claim).is_ok()
    }

    /// Notes that a process ends for want of memory, and the pages that could not leave.
    pub fn note_ended(&self, ended: &Ended) {
        for (nth, &reason) in Reason::ALL.iter().enumerate() {
            self.header[Header::EndedStuck as usize + nth].store(ended.stuck.get(reason), Relaxed);
        }
        self.word(Header::EndedUnmanaged).store(ended.unmanaged, Relaxed);
        self.word(Header::EndedProcesses).fetch_add(1, Release);
    }

    /// Counts from now on how often this process ends itself: once at most.
    pub fn count_kills(&self) {
        pagetide_sys::task::count_kills_in(self.word(Header::Kills));
    }

    /// Returns how many processes Pagetide has ended, for want of memory or because something had failed.
    pub fn kills(&self) -> u64 {
        self.word(Header::Kills).load(Relaxed)
    }

    /// Returns the processes that ended for want of memory.
    pub fn ended(&self) -> Ended {
        let at =
            |nth: usize| self.header[Header::EndedStuck as usize + nth].load(Relaxed).min(PAGES_MAX as u64);
        Ended {
            processes: self.word(Header::EndedProcesses).load(Acquire),
            stuck: Tally::from_counts(std::array::from_fn(at)),
            unmanaged: self.word(Header::EndedUnmanaged).load(Relaxed).min(PAGES_MAX as u64),
        }
    }

    /// Returns the pages that cannot leave, of all processes by their last answers, and the number of unmanaged pages.
    pub fn stuck(&self) -> (Tally, u64) {
        let mut stuck = Tally::default();
        let (group, launcher) = self.own_pages();
        let mut unmanaged = group + launcher + self.shared_pages();
        for slot in self.live() {
            let armed = slot.get(Field::Armed) != 0;
            stuck.add_all(&slot.stuck());
            unmanaged += slot.get(if armed { Field::Unmanaged } else { Field::Observed });
        }
        (stuck, unmanaged)
    }
}

impl ProcessSlot {
    /// Notes that the process has looked since an inquiry was made, and the pages that it found unable to leave.
    pub fn answer(&self, inquiry: u64, stuck: Option<&Tally>) {
        if let Some(stuck) = stuck {
            for (nth, &reason) in Reason::ALL.iter().enumerate() {
                self.words[Field::Stuck as usize + nth].store(stuck.get(reason), Relaxed);
            }
        }
        if self.get(Field::Answered) != inquiry {
            pagetide_sys::log!(Debug, "answers inquiry {inquiry}");
        }
        self.set(Field::Answered, inquiry);
    }

    /// Returns the pages that it last found unable to leave.
    pub fn stuck(&self) -> Tally {
        Tally::from_counts(std::array::from_fn(|nth| {
            self.words[Field::Stuck as usize + nth].load(Relaxed).min(PAGES_MAX as u64)
        }))
    }

    /// Returns whether it has yet to answer the last inquiry.
    pub fn is_asked(&self, group: &Group) -> bool {
        self.get(Field::Answered) < group.inquiry()
    }

    /// Whether, and why, the process does not answer: the launcher's to say.
    pub fn set_responsiveness(&self, responsiveness: Responsiveness) {
        self.set(Field::Responsiveness, responsiveness.to_bits());
    }
}
