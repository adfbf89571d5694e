//! Changes that the program makes in its memory: pages discarded, adopted, lost or moved.

use super::Swap;
use crate::table::ClusterGuard;
use crate::word::{State, Word};
use crate::zswap::pool::SpanSource;
use pagetide_page::{ClusterNumber, PageIndex};

/// The pages that a discard released, by where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Discarded {
    /// Pages that were in the program.
    pub present: usize,
    /// Pages that were on probation; their frames are free now, and were reported to the caller one by one.
    pub cached: usize,
}

impl<S: SpanSource> Swap<S> {
    /// Forgets a cluster's pages in `range`: they read as zeroes, or are gone. It frees their places and calls
    /// `frame_freed(slot, offset)` for every frame. It waits until no transfer is under way there.
    ///
    /// `also` runs under the cluster's lock, after the words have changed. It makes the system call that drops the
    /// program's pages, so that no fault comes between the two.
    pub fn discard(
        &self,
        number: ClusterNumber,
        range: std::ops::Range<usize>,
        mut frame_freed: impl FnMut(u16, usize),
        also: impl FnOnce(),
    ) -> Discarded {
        let mut discarded = Discarded::default();
        let Some(mut cluster) = self.lock_settled(number, range.clone()) else {
            also();
            return discarded;
        };
        for offset in range {
            let word = cluster.get(offset);
            match word.state() {
                State::Hole => continue,
                State::Present => discarded.present += 1,
                State::Cached => {
                    discarded.cached += 1;
                    frame_freed(word.slot(), offset);
                }
                State::Swapped | State::Poisoned => {}
            }
            self.free_place(word.place());
            self.set(&mut cluster, offset, Word::HOLE);
        }
        also();
        if cluster.is_empty() {
            let history = cluster.history();
            cluster.set_history(history.emptied());
        }
        discarded
    }

    /// Waits until no transfer is under way in `range`, and locks the cluster; `None` if no page near it was ever
    /// touched.
    pub fn lock_settled(
        &self,
        number: ClusterNumber,
        range: std::ops::Range<usize>,
    ) -> Option<ClusterGuard<'_>> {
        loop {
            let cluster = self.object.table().lock(number)?;
            let busy = |cluster: &ClusterGuard<'_>| {
                cluster.locked() > 0 && range.clone().any(|offset| cluster.get(offset).is_locked())
            };
            if !busy(&cluster) {
                return Some(cluster);
            }
            drop(cluster);
            self.space
                .transfers
                .wait_while(|| self.object.table().lock(number).is_some_and(|cluster| busy(&cluster)));
        }
    }

    /// Adopts pages that are in the program and that the table has as holes, since their region was registered late.
    /// Returns how many it adopted.
    pub fn adopt_present(&self, number: ClusterNumber, offsets: impl Iterator<Item = usize>) -> usize {
        let mut cluster = self.object.table().lock_or_create(number);
        let mut count = 0;
        for offset in offsets {
            let word = cluster.get(offset);
            // One that is locked comes in by a fault, which says so itself.
            if word.state() == State::Hole && !word.is_locked() {
                self.set(&mut cluster, offset, Word::present(None));
                count += 1;
            }
        }
        if count > 0 {
            self.enqueue(&mut cluster);
        }
        count
    }

    /// Makes a hole of a page which the table has as present, if `is_absent` confirms under the cluster's lock that it
    /// is not: a system call that we did not see has dropped it. Returns whether it did.
    pub fn lost(&self, page: PageIndex, is_absent: impl FnOnce() -> bool) -> bool {
        let Some(mut cluster) = self.object.table().lock(page.cluster()) else { return false };
        let word = cluster.get(page.offset());
        if word.state() != State::Present || word.is_locked() || !is_absent() {
            return false;
        }
        self.free_place(word.place());
        self.set(&mut cluster, page.offset(), Word::HOLE);
        true
    }

    /// Runs `poison` under the cluster's lock if the page is poisoned. Under the lock, for the program may drop the
    /// page, which makes an ordinary hole of it.
    pub fn if_poisoned<T>(&self, page: PageIndex, poison: impl FnOnce() -> T) -> Option<T> {
        let cluster = self.object.table().lock(page.cluster())?;
        (cluster.get(page.offset()).state() == State::Poisoned).then(poison)
    }

    /// Moves one page's word to another index, as its mapping has moved. The target must be a hole, and the page
    /// neither cached nor locked.
    pub fn rename(&self, from: PageIndex, to: PageIndex) {
        let take = |cluster: &mut ClusterGuard<'_>| {
            let word = cluster.get(from.offset());
            debug_assert!(!word.is_locked() && word.state() != State::Cached, "{word:?}");
            self.set(cluster, from.offset(), Word::HOLE);
            word.with_writeback(false)
        };
        let put = |cluster: &mut ClusterGuard<'_>, word: Word| {
            debug_assert_eq!(cluster.get(to.offset()), Word::HOLE);
            self.set(cluster, to.offset(), word);
            if word.state() == State::Swapped {
                self.note_pooled(cluster, word.place());
            }
            if word.state() == State::Present {
                self.enqueue(cluster);
            }
        };
        if from.cluster() == to.cluster() {
            let mut cluster = self.object.table().lock_or_create(from.cluster());
            let word = take(&mut cluster);
            put(&mut cluster, word);
        } else {
            let (mut a, mut b) = self.object.table().lock_pair(from.cluster(), to.cluster());
            let word = take(&mut a);
            if word != Word::HOLE {
                put(&mut b, word);
            }
        }
    }
}
