//! Asking: processes of a run ask each other for pages.

use super::layout::Field;
use super::{Group, ProcessSlot, RESIDENT_MIN};
use std::sync::atomic::Ordering::AcqRel;

/// The factor by which the worth of one process's pages must exceed that of another's before it takes pages from that.
const WORTH_RATIO: f64 = 2.0;
/// The part of what an idle process was granted, one in so many, that is not asked of its program: its pool keeps as much
/// free, and would go to the device for more.
const KEPT_PART: i64 = 8;
/// The part of what an idle process has in its program, one in so many, that it is asked for at once.
const GIVER_PART: u64 = 8;
/// The part of what a process has in its program, one in so many, that it asks an idle one for at once.
const TAKER_PART: u64 = 4;
/// Nanoseconds that a page of the pool costs on its way to the device and back: three pages that a program waits for, 100 µs
/// each.
const POOL_PAGE_NS: u64 = 300_000;

impl Group {
    /// Returns the processes that can be asked for pages, but for `for_whom`.
    fn others(&self, for_whom: ProcessSlot) -> impl Iterator<Item = ProcessSlot> + '_ {
        self.live().filter(move |slot| slot.index != for_whom.index && slot.get(Field::Listens) != 0)
    }

    /// Returns the number of pages that a process could give. Without an engine it is not known which of the pages are
    /// there that it was handed out.
    fn could_give(slot: ProcessSlot) -> u64 {
        if slot.get(Field::Armed) == 0 { slot.granted().max(0) as u64 } else { slot.get(Field::Spare) }
    }

    /// Returns the number of pages that a process gives while others could do with less.
    fn would_give(slot: ProcessSlot) -> u64 {
        let in_program = || Self::in_program(slot).saturating_sub(RESIDENT_MIN as u64);
        let most = if slot.keeps_pool() { in_program() } else { u64::MAX };
        Self::could_give(slot).min(most)
    }

    /// Asks processes that hold more than an equal share to give back `pages` pages in all, the largest first.
    /// `for_whom` is not asked. Returns whether there is any such process.
    pub fn ask(&self, for_whom: ProcessSlot, pages: i64) -> bool {
        // What is for frames that children have nobody can give.
        let lent = self.live().map(|slot| slot.get(Field::Lent)).fold(0, u64::saturating_add);
        let divided = self.cap_pages().saturating_sub(lent);
        let share = (divided / self.live().count().max(1) as u64) as i64;
        let own = |slot: &ProcessSlot| slot.granted() - slot.get(Field::Lent) as i64;
        let richest = self
            .others(for_whom)
            .filter(|slot| own(slot) > share)
            // Who was asked for much already is passed over: it may be stopped.
            .max_by_key(|slot| own(slot) - 2 * slot.get(Field::Asked) as i64);
        let Some(richest) = richest else { return false };
        let spare = own(&richest) - share;
        let asked = richest.get(Field::Asked) as i64;
        if asked < spare {
            richest.word(Field::Asked).fetch_add(pages.min(spare - asked) as u64, AcqRel);
            pagetide_sys::log!(Debug, "asks process {} for {pages} pages", richest.known_as());
            richest.ring();
        }
        true
    }

    /// Asks a process that rests for `pages` pages. Returns false if all such processes were asked for all they have.
    pub fn ask_resting(&self, for_whom: ProcessSlot, pages: u64) -> bool {
        let unasked = |slot: &ProcessSlot| Self::would_give(*slot).saturating_sub(slot.get(Field::Asked));
        let resting = self.others(for_whom).filter(|slot| slot.is_resting() && slot.get(Field::Armed) != 0);
        let Some(slot) = resting.max_by_key(unasked).filter(|slot| unasked(slot) > 0) else { return false };
        slot.word(Field::Asked).fetch_add(pages.min(unasked(&slot)), AcqRel);
        pagetide_sys::log!(Debug, "asks process {}, which rests, for {pages} pages", slot.known_as());
        slot.ring();
        true
    }

    /// Asks every process but `for_whom` to give back `pages` pages, if it has any, whatever its share. It is the last
    /// resort of a process that has nothing, for shares do not tell which pages can leave. All rests end: a
    /// process that has just begun to rest would keep its pool.
    pub fn ask_all(&self, for_whom: ProcessSlot, pages: u64) {
        for slot in self.live().filter(|slot| slot.index != for_whom.index) {
            slot.set_resting(false);
        }
        for slot in self.others(for_whom) {
            let spare = Self::could_give(slot);
            let missing = pages.min(spare).saturating_sub(slot.get(Field::Asked));
            if missing > 0 {
                slot.word(Field::Asked).fetch_add(missing, AcqRel);
                pagetide_sys::log!(
                    Debug,
                    "asks process {} for {missing} pages, as the last resort",
                    slot.known_as()
                );
                slot.ring();
            }
        }
    }

    /// Asks the process whose pages are worth least for `pages` of those that it could give, or more if it idles, if
    /// those of `for_whom` are worth twice as much. A process that idles keeps its memory for as long as no other process
    /// misses any; of several the one with most to spare gives first. (By page fault frequency: Chu and Opderbeck 1972.)
    ///
    /// `time` is that since the process last looked at what it loses, in nanoseconds.
    pub fn level(&self, for_whom: ProcessSlot, pages: u64, time: u64) {
        if !for_whom.loses_time() {
            return;
        }
        let worth = Self::worth(for_whom);
        // Millionths of a second, a second.
        let lost = (worth * time as f64 / 1e6) as u64;
        for slot in self.others(for_whom).filter(|slot| slot.get(Field::Armed) != 0 && slot.idles()) {
            slot.word(Field::Rent).fetch_add(lost, AcqRel);
        }
        let spare = |slot: &ProcessSlot| Self::would_spare(*slot);
        // Who was asked already is passed over: it may be stopped.
        let can_give = self.others(for_whom).filter(|slot| slot.get(Field::Asked) == 0 && spare(slot) > 0);
        let giver = can_give.min_by(|one, other| {
            let worth = Self::worth(*one).total_cmp(&Self::worth(*other));
            worth.then_with(|| spare(other).cmp(&spare(one)))
        });
        let Some(giver) = giver else { return };
        if worth > Self::worth(giver) * WORTH_RATIO {
            let pages = if giver.idles() { pages.max(Self::more_of_idle(for_whom, giver)) } else { pages };
            let asked = pages.min(spare(&giver));
            giver.word(Field::Asked).fetch_add(asked, AcqRel);
            pagetide_sys::log!(
                Debug,
                "asks process {}, whose pages are worth least, for {asked} pages",
                giver.known_as()
            );
            giver.ring();
        }
    }

    /// Returns how many pages a process asks an idle one for: as many as that has given and not missed, so that one that
    /// only seemed to idle gives little, and at most a part of what each of the two has in its program.
    fn more_of_idle(taker: ProcessSlot, giver: ProcessSlot) -> u64 {
        let most = (Self::in_program(giver) / GIVER_PART).min(Self::in_program(taker) / TAKER_PART);
        giver.get(Field::Given).min(most)
    }

    /// Returns the number of pages that a process could spare: if it idles those of its program at first. Its pool
    /// goes to the device once others have lost as much for want of a page, since it idles, as a page of the pool costs to
    /// bring back (as a skier buys skis when the rent paid is their price: Karlin and others 1988).
    fn would_spare(slot: ProcessSlot) -> u64 {
        let kept = (slot.granted() / KEPT_PART).max(RESIDENT_MIN) as u64;
        let keeps = slot.get(Field::Armed) != 0 && slot.idles() && slot.get(Field::Rent) < POOL_PAGE_NS;
        let most = if keeps { Self::in_program(slot).saturating_sub(kept) } else { u64::MAX };
        Self::would_give(slot).min(most)
    }

    /// Returns what a page in memory is worth to a process, about what one more would save it: the part of its time that
    /// it loses to pages which come back, in millionths, divided by the pages that it has in memory. Nothing if it idles.
    fn worth(slot: ProcessSlot) -> f64 {
        let pressure = if slot.loses_time() { slot.get(Field::Pressure) } else { 0 };
        pressure as f64 / Self::in_program(slot).max(1) as f64
    }

    /// Returns the pages that a process has in its program, with those on their way out of it.
    fn in_program(slot: ProcessSlot) -> u64 {
        slot.get(Field::Resident) + slot.get(Field::Frames)
    }
}
