//! The census: every page that is in memory is asked to leave once, in the order of addresses, by any way and to any
//! place that there is.
//!
//! Ordinary reclaim works for faults that wait, stops as soon as there is room, and passes over pages that leave only
//! with difficulty. The census answers the question that remains when it finds nothing: can any page leave at all? The
//! answer is complete: frames and the pool first, then what is on probation, then the program's pages, cluster by
//! cluster of the table.

use super::store::StoreFor;
use super::{Engine, Workspace};
use crate::census::{Reason, Step, Tally};
use crate::memory::{Memory, PageSet};
use pagetide_swap::reclaimer::TRIM_ENTRIES;
use pagetide_swap::swap::{Candidate, Victim};
use pagetide_swap::table::CLUSTERS_MAX;
use pagetide_swap::{ClusterNumber, PageIndex, PoolScope};
use std::ops::Range;

/// A census under way.
#[derive(Debug, Default)]
pub struct Round {
    stage: Stage,
    tally: Tally,
    moving: bool,
    /// The stores of other threads at the start: [`DirectStores::mark`](super::reclaim::DirectStores::mark).
    stores: Option<u64>,
    /// The moves of mappings that had begun at the start, if none was under way.
    moves: Option<u64>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Frames that no page is in, copies, and entries of the pool.
    #[default]
    Pool,
    /// This many slots are left of those that were on probation at the start.
    Probation(usize),
    /// Clusters of the table from this one on.
    Clusters(u64),
    /// Entries of the pool that a fork shares, of which so many have gone. Last: while they are there, pages that they are
    /// copies of leave for nothing.
    Shared(usize),
}

impl<M: Memory> Engine<M> {
    /// Does one step of a census: a bounded piece of work, which never waits for I/O.
    pub fn census_step(&self, round: &mut Round, work: &mut Workspace) -> Step {
        let freed = match round.stage {
            Stage::Pool => {
                self.take_refused();
                // Whether it takes pages is asked anew, page by page.
                self.swap.zswap().reopen();
                let dropped = std::iter::from_fn(|| self.drop_donor()).sum::<usize>() + self.drop_spare();
                // In this order: a store may become a request.
                round.stores = self.direct.mark();
                round.moves = (!self.moves.are_under_way()).then(|| self.moves.begun());
                round.moving |= self.requests() > 0;
                let lots = self.probation().len();
                round.stage = Stage::Probation(lots);
                dropped + self.shrink_own_pool(work)
            }
            Stage::Probation(0) => {
                round.stage = Stage::Clusters(0);
                0
            }
            Stage::Probation(left) => {
                round.stage = Stage::Probation(left - 1);
                let slot = self.probation().pop();
                let stored = slot.map_or(0, |slot| self.try_slot(slot, round, work));
                // What found no place is in the program again, and is asked once more with its cluster.
                round.tally = Tally::default();
                stored
            }
            Stage::Clusters(from) => {
                let Some(number) = self.swap.table().touched(from..CLUSTERS_MAX).next() else {
                    round.stage = Stage::Shared(0);
                    return Step::Goes;
                };
                round.stage = Stage::Clusters(number.0 + 1);
                self.try_cluster(number, round, work)
            }
            Stage::Shared(gone) => match self.unshare_pool(work) {
                0 if gone > 0 => gone,
                0 => {
                    round.moving |= self.requests() > 0 || !self.direct.were_none_since(round.stores);
                    if round.moves != Some(self.moves.begun()) {
                        // The pages of a mapping that moved were perhaps nowhere. One that moves again and again is no reason to wait
                        // for ever.
                        round.tally.add(Reason::Used, 1);
                    }
                    return if round.moving { Step::Moving } else { Step::Stuck(round.tally) };
                }
                more => {
                    round.stage = Stage::Shared(gone + more);
                    0
                }
            },
        };
        if freed > 0 { Step::Left } else { Step::Goes }
    }

    /// Has the pool give something that no fork shares. Returns how many entries go. What they took may be free at once, at
    /// the end of a write, or when their neighbours have gone too.
    fn shrink_own_pool(&self, work: &mut Workspace) -> usize {
        let copies = self.swap.drop_copies(TRIM_ENTRIES, PoolScope::Own);
        let gone = if copies > 0 { copies } else { self.write_back_own(work) };
        self.charge_pool();
        gone
    }

    /// Stores what is on probation in a slot. Returns how many pages left.
    fn try_slot(&self, slot: u16, round: &mut Round, work: &mut Workspace) -> usize {
        let stored = self.store_slot(slot, StoreFor::Reclaim, work);
        round.moving |= self.probation().is_late(slot);
        round.tally.add(Reason::NoPlace, self.take_refused());
        stored
    }

    /// Takes a cluster out and stores it at once. Returns how many pages left, or kept copies were dropped.
    fn try_cluster(&self, number: ClusterNumber, round: &mut Round, work: &mut Workspace) -> usize {
        let copies = self.swap.drop_copies_of(number);
        if copies > 0 {
            self.charge_pool();
            return copies;
        }
        let mut stays = Stays::default();
        let mut shared = Vec::new();
        let before = round.tally;
        let stored = self.try_out(number, &mut shared, &mut stays, round, work);
        if stored > 0 || shared.is_empty() {
            round.tally.add_all(&stays.tally);
            return stored;
        }
        // Shared since a fork, or pinned: what is the program's own by now, and still does not move, is pinned.
        if !self.unshare(&shared) {
            round.moving = true;
        }
        shared.clear();
        (stays, round.tally) = (Stays::default(), before);
        let stored = self.try_out(number, &mut shared, &mut stays, round, work);
        let pinned: u64 = shared.iter().map(|run| run.end.0 - run.start.0).sum();
        stays.tally.add(Reason::Pinned, pinned as usize);
        round.tally.add_all(&stays.tally);
        stored
    }

    fn try_out(
        &self,
        number: ClusterNumber,
        shared: &mut Vec<Range<PageIndex>>,
        stays: &mut Stays,
        round: &mut Round,
        work: &mut Workspace,
    ) -> usize {
        let regions = self.regions.read().unwrap_or_else(super::PoisonError::into_inner);
        let cluster = match self.swap.candidate(number) {
            Candidate::Empty => return 0,
            Candidate::Moving => {
                round.moving = true;
                return 0;
            }
            Candidate::Ready(cluster) => cluster,
        };
        let Some(slot) = self.probation().take_empty() else {
            // All wait for the device, or for whoever maps from them.
            round.moving = true;
            return 0;
        };
        let taken = self.take_out_into(slot, Victim::whole(cluster), &regions, shared, Some(stays));
        drop(regions);
        if taken == 0 {
            self.probation().put_back_empty(slot);
            return 0;
        }
        if self.probation().take_back(slot) { self.try_slot(slot, round, work) } else { 0 }
    }
}

/// The pages that a take-out leaves in the program, as far as its way tells.
#[derive(Debug, Default)]
pub(super) struct Stays {
    tally: Tally,
    left_out: Vec<(PageSet, Reason)>,
}

impl Stays {
    /// These pages, if they are there, are not asked to leave.
    pub(super) fn leave_out(&mut self, pages: Range<usize>, reason: Reason) {
        self.left_out.push((PageSet::range(pages), reason));
    }

    /// These are there.
    pub(super) fn are_there(&mut self, pages: PageSet) {
        for (part, reason) in self.left_out.drain(..) {
            self.tally.add(reason, part.and(pages).len());
        }
    }
}
