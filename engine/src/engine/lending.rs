//! Pages that a fork shares and that are charged once for all children of a process.
//!
//! A parent *lends* what it has in memory: it is charged for one frame more of each such page, which stays with the children
//! when the parent writes. A child *borrows*: its kernel stops writes to those pages, and each is charged when the child writes
//! to it. Of what a process has borrowed nothing leaves: that would give no memory.

use super::parts::{by_cluster, clusters_of, offsets_of, part_of, run_of, whole};
use super::takeout::stays_for;
use super::{Engine, lock};
use crate::mask::Mask;
use crate::memory::{Memory, PageSet};
use crate::regions::{AtFork, Attributes};
use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, Counter, PageIndex, State};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Pages that are charged with the one that is written to, at most, where there is room: a write costs a fault.
const AHEAD: usize = 16;

/// Pages that are marked, by cluster.
#[derive(Debug, Default)]
struct Marks {
    clusters: Mutex<BTreeMap<u64, PageSet>>,
    count: AtomicI64,
}

impl Marks {
    fn count(&self) -> i64 {
        self.count.load(Relaxed)
    }

    fn of(&self, number: ClusterNumber) -> PageSet {
        if self.count() == 0 {
            return PageSet::default();
        }
        lock(&self.clusters).get(&number.0).copied().unwrap_or_default()
    }

    fn insert(&self, number: ClusterNumber, pages: PageSet) {
        let mut clusters = lock(&self.clusters);
        let marked = clusters.entry(number.0).or_default();
        let more = pages.minus(*marked).len();
        *marked = marked.or(pages);
        self.count.fetch_add(more as i64, Relaxed);
    }

    /// Removes marks. Returns those of `pages` that were marked: each is removed by one caller.
    fn remove(&self, number: ClusterNumber, pages: PageSet) -> PageSet {
        if self.count() == 0 {
            return PageSet::default();
        }
        let mut clusters = lock(&self.clusters);
        let Some(marked) = clusters.get_mut(&number.0) else { return PageSet::default() };
        let removed = marked.and(pages);
        *marked = marked.minus(pages);
        if marked.is_empty() {
            clusters.remove(&number.0);
        }
        self.count.fetch_sub(removed.len() as i64, Relaxed);
        removed
    }

    /// Removes all marks. Returns them.
    fn take(&self) -> BTreeMap<u64, PageSet> {
        let mut clusters = lock(&self.clusters);
        self.count.store(0, Relaxed);
        std::mem::take(&mut *clusters)
    }

    fn numbers(&self) -> Vec<ClusterNumber> {
        lock(&self.clusters).keys().map(|&number| ClusterNumber(number)).collect()
    }
}

/// Words of a cluster in a [`Ledger`].
const CLUSTER_WORDS: usize = CLUSTER_PAGES / 64;

/// What each child borrows, in memory that a parent shares with its children: a row of bits for each slot of the run. The parent
/// sets a child's before the fork, and the child ends them.
#[derive(Clone, Debug)]
pub struct Ledger {
    words: &'static [AtomicU64],
    clusters: usize,
    /// The place in a row of each cluster that was lent.
    places: BTreeMap<u64, usize>,
}

impl Ledger {
    /// Returns a ledger of rows of so many clusters, in zeroed memory.
    pub fn new(words: &'static [AtomicU64], clusters: usize) -> Self {
        Self { words, clusters, places: BTreeMap::new() }
    }

    /// Returns the number of words that a ledger takes.
    pub const fn words(rows: usize, clusters: usize) -> usize {
        rows * clusters * CLUSTER_WORDS
    }

    /// Returns the place of a cluster, a new one if need be; `None` if there is no more.
    fn place(&mut self, number: ClusterNumber) -> Option<usize> {
        let next = self.places.len();
        match self.places.get(&number.0) {
            Some(&place) => Some(place),
            None if next == self.clusters => None,
            None => Some(*self.places.entry(number.0).or_insert(next)),
        }
    }

    fn cell(&self, row: usize, place: usize) -> &'static [AtomicU64] {
        &self.words[(row * self.clusters + place) * CLUSTER_WORDS..][..CLUSTER_WORDS]
    }

    fn read(&self, row: usize, place: usize) -> PageSet {
        PageSet::from_words(std::array::from_fn(|nth| self.cell(row, place)[nth].load(SeqCst)))
    }

    fn write(&self, row: usize, place: usize, pages: PageSet) {
        let cell = self.cell(row, place);
        pages.words().into_iter().enumerate().for_each(|(nth, word)| cell[nth].store(word, SeqCst));
    }

    fn end(&self, row: usize, number: ClusterNumber, pages: PageSet) {
        if let Some(&place) = self.places.get(&number.0) {
            let cell = self.cell(row, place);
            pages
                .words()
                .into_iter()
                .enumerate()
                .for_each(|(nth, word)| _ = cell[nth].fetch_and(!word, SeqCst));
        }
    }

    fn clear(&self, row: usize) {
        (0..self.places.len()).for_each(|place| self.write(row, place, PageSet::default()));
    }

    /// Returns the pages that any of these borrows.
    fn of_any(&self, rows: &[usize], place: usize) -> PageSet {
        rows.iter().fold(PageSet::default(), |pages, &row| pages.or(self.read(row, place)))
    }
}

/// What a process has lent to its children, and borrowed from its parent.
#[derive(Debug, Default)]
pub(super) struct Lending {
    lent: Marks,
    borrowed: Marks,
    /// The number of pages that were borrowed at first.
    at_first: AtomicI64,
    /// That of this process's children.
    ledger: Mutex<Option<Ledger>>,
    /// The parent's, and the own row there.
    owed: Mutex<Option<(Ledger, usize)>>,
}

impl Lending {
    /// Ends that pages are borrowed. Returns those that were: each is told to one caller.
    fn pay(&self, number: ClusterNumber, pages: PageSet) -> PageSet {
        let paid = self.borrowed.remove(number, pages);
        if !paid.is_empty()
            && let Some((ledger, row)) = &*lock(&self.owed)
        {
            ledger.end(*row, number, paid);
        }
        paid
    }
}

/// Returns whether pages of a range with these attributes are lent. Others the child may not write to, or wait for.
fn is_lendable(attributes: &Attributes) -> bool {
    stays_for(attributes).is_none() && attributes.at_fork == AtFork::default()
}

impl<M: Memory> Engine<M> {
    /// Returns whether children can borrow: their kernel can stop writes, and what they have of their own can leave alone.
    pub fn can_lend(&self) -> bool {
        self.memory.can_lend() && self.memory.can_move() && !self.mask.masks(Mask::NO_LEND)
    }

    /// Returns the number of pages that are lent.
    pub fn lent(&self) -> i64 {
        self.lending.lent.count()
    }

    /// Returns the number of pages that are borrowed.
    pub fn borrowed(&self) -> i64 {
        self.lending.borrowed.count()
    }

    /// Returns whether a page is borrowed.
    pub fn is_borrowed(&self, page: PageIndex) -> bool {
        self.borrowed_of(page.cluster()).contains(page.offset())
    }

    /// Forgets those pages that were lent and that the process has not any more: it has written to them, or they have left. To
    /// be called before each fork, which would share what it has now.
    pub fn review_lent(&self) {
        for number in self.lending.lent.numbers() {
            let shared = self.memory.shared(whole(number));
            self.lending.lent.remove(number, PageSet::range(0..CLUSTER_PAGES).minus(shared));
        }
    }

    /// Gives the parent memory in which its children tell what they borrow. Without it no child is told from another.
    pub fn keep_ledger(&self, ledger: Ledger) {
        *lock(&self.lending.ledger) = Some(ledger);
    }

    /// Returns whether there is a ledger.
    pub fn has_ledger(&self) -> bool {
        lock(&self.lending.ledger).is_some()
    }

    /// Returns the number of pages that any of these children borrows, by their slots.
    pub fn borrowed_by(&self, children: &[usize]) -> i64 {
        let ledger = lock(&self.lending.ledger);
        let of = |ledger: &Ledger| {
            (0..ledger.places.len()).map(|place| ledger.of_any(children, place).len()).sum::<usize>()
        };
        ledger.as_ref().map_or(0, of) as i64
    }

    /// Lends what is in memory to the child of this slot, which is about to be forked. Returns how many pages its `elders`
    /// borrow as they were before: the process has written to them since.
    pub fn lend(&self, child: usize, elders: &[usize]) -> i64 {
        self.review_lent();
        let mut again = 0;
        let mut ledger = lock(&self.lending.ledger);
        if let Some(ledger) = &*ledger {
            ledger.clear(child);
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        for (start, region) in regions.iter().filter(|(_, region)| is_lendable(&region.attributes)) {
            let range = start..region.end;
            for number in self.swap.table().touched(clusters_of(&range)) {
                let part = part_of(&range, number);
                let pages = (part.start.0..part.end.0).map(PageIndex);
                let present: PageSet = pages
                    .filter(|&page| self.swap.table().peek(page).state() == State::Present)
                    .map(PageIndex::offset)
                    .collect();
                if let Some(ledger) = &mut *ledger {
                    // Where there is no place the child is charged.
                    let Some(place) = ledger.place(number).filter(|_| !present.is_empty()) else { continue };
                    let anew = present.minus(self.lending.lent.of(number));
                    again += anew.and(ledger.of_any(elders, place)).len() as i64;
                    ledger.write(child, place, ledger.read(child, place).or(present));
                }
                self.lending.lent.insert(number, present);
            }
        }
        again
    }

    /// Forgets what was lent: it is charged for by whoever has it.
    pub fn end_lending(&self) {
        self.lending.lent.take();
    }

    /// Borrows what the parent has lent, as far as writes to it can be stopped: in a forked child, before its program goes on. Its
    /// slot is its row in the parent's ledger.
    pub fn borrow_from(&self, parent: &Self, row: usize) {
        let ledger = lock(&parent.lending.ledger).clone();
        self.borrow(parent, |number| match &ledger {
            Some(ledger) => {
                ledger.places.get(&number.0).map_or_else(PageSet::default, |&place| ledger.read(row, place))
            }
            None => parent.lending.lent.of(number),
        });
        if let Some(ledger) = &ledger {
            for (&number, &place) in &ledger.places {
                ledger.write(row, place, self.lending.borrowed.of(ClusterNumber(number)));
            }
        }
        *lock(&self.lending.owed) = ledger.map(|ledger| (ledger, row));
        self.lending.at_first.store(self.borrowed(), Relaxed);
    }

    /// Returns the number of pages that were borrowed at first.
    pub fn borrowed_at_first(&self) -> i64 {
        self.lending.at_first.load(Relaxed)
    }

    fn borrow(&self, parent: &Self, lent_of: impl Fn(ClusterNumber) -> PageSet) {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let mut next: Range<PageIndex> = PageIndex(0)..PageIndex(0);
        for number in parent.lending.lent.numbers() {
            // What it has not in its page tables is to come in like any other page.
            let there = self.memory.presence(whole(number)).present;
            let lent = lent_of(number).and(there);
            for (part, _) in regions.pieces_of(number).filter(|(_, region)| is_lendable(&region.attributes)) {
                for run in lent.and(PageSet::range(offsets_of(&part))).runs() {
                    let run = run_of(number, &run);
                    if next.end == run.start {
                        next.end = run.end;
                    } else {
                        self.borrow_run(std::mem::replace(&mut next, run));
                    }
                }
            }
        }
        self.borrow_run(next);
    }

    fn borrow_run(&self, run: Range<PageIndex>) {
        if run.start < run.end && self.memory.stop_writes(run.clone()) {
            by_cluster(run).for_each(|(number, pages)| self.lending.borrowed.insert(number, pages));
        }
    }

    /// Answers a write to a page which is there, and to which writes are stopped: the page is charged, or the thread is parked until
    /// there is room. `since` is as for [`Engine::fault`].
    pub fn write_fault(&self, page: PageIndex, since: u64) {
        self.count(Counter::wp_fault, 1);
        let number = page.cluster();
        let first = page.offset() / AHEAD * AHEAD;
        let around = self.lending.borrowed.of(number).and(PageSet::range(first..first + AHEAD));
        if around.contains(page.offset()) {
            let mut taken = self.budget.take_up_to(self.share_of_room(around.len()));
            if taken == 0 {
                if !self.cannot_wait() {
                    self.park(page, true, since);
                    // Whoever has charged it meanwhile did not see that it was parked.
                    if !self.is_borrowed(page) {
                        self.end_parked(number, PageSet::range(page.offset()..page.offset() + 1));
                    }
                    return;
                }
                self.budget.take(1);
                taken = 1;
            }
            let mut paid = PageSet::range(page.offset()..page.offset() + 1);
            around.iter().filter(|&at| at != page.offset()).take(taken - 1).for_each(|at| paid.insert(at));
            let removed = self.lending.pay(number, paid);
            // The others were paid for meanwhile.
            self.budget.give((taken - removed.len()) as i64);
            self.allow_writes(number, removed);
            self.swap.queue_again(number);
        }
        self.allow_writes(number, PageSet::range(page.offset()..page.offset() + 1));
        self.answered(since);
    }

    fn allow_writes(&self, number: ClusterNumber, pages: PageSet) {
        for run in pages.runs() {
            let range = run_of(number, &run);
            self.memory.allow_writes(range.clone());
            self.memory.wake(range.start, run.len());
        }
        self.end_parked(number, pages);
    }

    /// Charges all that is borrowed from now on, room or not. Returns the number of pages.
    pub fn pay_all(&self) -> i64 {
        let taken = self.lending.borrowed.take();
        if let Some((ledger, row)) = &*lock(&self.lending.owed) {
            ledger.clear(*row);
        }
        let paid = taken.values().map(PageSet::len).sum::<usize>() as i64;
        self.budget.take(paid);
        for (&number, &pages) in &taken {
            self.allow_writes(ClusterNumber(number), pages);
            self.swap.queue_again(ClusterNumber(number));
        }
        paid
    }

    /// Ends the waits of those who wait to write to pages of a cluster: they were woken.
    fn end_parked(&self, number: ClusterNumber, pages: PageSet) {
        let is_one = |page: PageIndex| page.cluster() == number && pages.contains(page.offset());
        for (parked, waited) in self.parked.take_if(|fault| fault.write && is_one(fault.page)) {
            if waited {
                self.meters.stalled.fetch_sub(1, Relaxed);
                self.waited(parked.since);
            } else {
                self.rested(parked.parked);
            }
        }
    }

    /// Charges what is borrowed of a range, before the range leaves our care.
    pub(super) fn pay(&self, range: Range<PageIndex>) {
        if self.borrowed() > 0 {
            by_cluster(range)
                .for_each(|(number, pages)| self.allow_writes(number, self.charge(number, pages)));
        }
    }

    /// Charges those pages of a cluster that are borrowed: that are about to go, or are gone, and what they took is given back
    /// as for any other. Returns them. The caller holds no lock of the cluster.
    pub(super) fn charge(&self, number: ClusterNumber, pages: PageSet) -> PageSet {
        let charged = self.charge_gone(number, pages);
        if !charged.is_empty() {
            self.swap.queue_again(number);
        }
        charged
    }

    /// As [`Engine::charge`], for a caller that holds the lock of the cluster and sees to its place in the queue.
    pub(super) fn charge_gone(&self, number: ClusterNumber, pages: PageSet) -> PageSet {
        let charged = self.lending.pay(number, pages);
        self.budget.take(charged.len() as i64);
        charged
    }

    /// Forgets that pages of a cluster were lent, which leave the program.
    pub(super) fn forget_lent(&self, number: ClusterNumber, pages: PageSet) {
        self.lending.lent.remove(number, pages);
    }

    /// Returns the pages of a cluster that are borrowed.
    pub(super) fn borrowed_of(&self, number: ClusterNumber) -> PageSet {
        self.lending.borrowed.of(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_removed_once() {
        let (marks, number) = (Marks::default(), ClusterNumber(7));
        marks.insert(number, PageSet::range(3..9));
        marks.insert(number, PageSet::range(8..12));
        assert_eq!((marks.count(), marks.of(number)), (9, PageSet::range(3..12)));
        assert_eq!(marks.remove(number, PageSet::range(0..5)), PageSet::range(3..5));
        assert_eq!(marks.remove(number, PageSet::range(0..6)), PageSet::range(5..6));
        assert_eq!(marks.remove(ClusterNumber(8), PageSet::range(0..512)), PageSet::default());
        assert_eq!((marks.count(), marks.take().len(), marks.count()), (6, 1, 0));
    }

    #[test]
    fn a_ledger_tells_what_any_of_some_children_borrows() {
        let words: &'static [AtomicU64] =
            Vec::leak((0..Ledger::words(3, 2)).map(|_| AtomicU64::new(0)).collect());
        let mut ledger = Ledger::new(words, 2);
        let [near, far, more] = [7, 9000, 1].map(ClusterNumber);
        let places = [near, far, more, near].map(|number| ledger.place(number));
        assert_eq!(places, [Some(0), Some(1), None, Some(0)]);
        ledger.write(0, 0, PageSet::range(0..100));
        ledger.write(2, 0, PageSet::range(50..200));
        ledger.write(2, 1, PageSet::range(500..512));
        ledger.end(2, near, PageSet::range(100..150));
        ledger.end(2, more, PageSet::range(0..512));
        assert_eq!(ledger.of_any(&[0, 1, 2], 0).runs().collect::<Vec<_>>(), [0..100, 150..200]);
        assert_eq!(ledger.of_any(&[1], 0), PageSet::default());
        ledger.clear(2);
        assert_eq!((ledger.of_any(&[2], 0).len(), ledger.of_any(&[2], 1).len()), (0, 0));
        assert_eq!(ledger.read(0, 0), PageSet::range(0..100), "another's row");
    }
}
