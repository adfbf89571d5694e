//! Changes that the program makes in its memory: ranges discarded, moved or adopted.

use super::Engine;
use super::moves::Moving;
use super::parts::{clusters_of, offsets_of, part_of};
use crate::memory::{Memory, PageSet};
use pagetide_swap::trace::Event;
use pagetide_swap::{CLUSTER_PAGES, PageIndex, State};
use std::ops::Range;

impl<M: Memory> Engine<M> {
    /// Forgets `range`: its pages read as zeroes, or are gone. `also` is called for each part, in order, while no fault
    /// can be answered there: it makes the system call that drops the program's pages.
    pub fn discard(&self, range: Range<PageIndex>, mut also: impl FnMut(Range<PageIndex>)) {
        self.note(|| Event::Discard { page: range.start, pages: range.end.0.saturating_sub(range.start.0) });
        let mut done = range.start;
        for number in self.swap.table().touched(clusters_of(&range)) {
            let part = part_of(&range, number);
            if done < part.start {
                also(done..part.start);
            }
            done = part.end;
            let offsets = offsets_of(&part);
            let mut freed = Vec::new();
            let discarded =
                self.swap.discard(number, offsets.clone(), |slot, _| freed.push(slot), || also(part));
            self.charge(number, PageSet::range(offsets.clone()));
            self.forget_lent(number, PageSet::range(offsets));
            self.budget.give(discarded.present as i64);
            for slot in freed {
                self.unref(slot, 1);
            }
        }
        if done < range.end {
            also(done..range.end);
        }
        self.charge_pool();
    }

    /// Prepares a range whose mapping moves: every page that is on probation comes back into the program, and what is borrowed
    /// is charged.
    pub fn recall(&self, range: Range<PageIndex>) {
        for number in self.swap.table().touched(clusters_of(&range)) {
            let part = part_of(&range, number);
            let mut page = part.start;
            while page < part.end {
                // Waits until nothing moves there, then claims what is cached.
                let offset = page.offset();
                let Some(cluster) = self.swap.lock_settled(number, offset..offset + 1) else { break };
                let cached = cluster.get(offset).state() == State::Cached;
                drop(cluster);
                if cached {
                    // Looked at again: it may be stored meanwhile, or have failed for want of memory, which passes.
                    self.bring_back(page);
                    std::thread::yield_now();
                    continue;
                }
                page = page.plus(1);
            }
        }
        self.pay(range);
    }

    /// Notes that a mapping of so many pages moves, until what this returns is dropped.
    pub fn begin_move(&self, pages: u64) -> Moving<'_> {
        self.moves.begin(pages)
    }

    /// Moves the words of `length` pages from one place in the address space to another: the mapping
    /// moved. Both ranges must be quiet: no region, so no fault and no take-out.
    pub fn rename(&self, from: PageIndex, to: PageIndex, length: u64) {
        for nth in 0..length {
            let page = from.plus(nth);
            if self.swap.table().peek(page) != pagetide_swap::Word::HOLE {
                self.swap.rename(page, to.plus(nth));
            }
        }
    }

    /// Takes into account the pages of `range` that are in the program already, since the range becomes managed late.
    /// Returns how many there are.
    pub fn adopt(&self, range: Range<PageIndex>) -> usize {
        let mut count = 0;
        let mut page = range.start;
        while page < range.end {
            let number = page.cluster();
            let end = number.page(0).plus(CLUSTER_PAGES as u64).min(range.end);
            let found = self.memory.presence(page..end);
            if found.present.is_empty() {
                // Programs reserve terabytes of which they touch little.
                page = self.memory.first_present(end..range.end);
                continue;
            }
            count += self.swap.adopt_present(number, found.present.iter());
            self.zero_pages.come(found.zero.len());
            page = end;
        }
        self.budget.take(count as i64);
        count
    }
}
