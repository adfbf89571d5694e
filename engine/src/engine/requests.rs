//! Requests to the device that are under way.

use super::lock;
use crate::dump::board::{Board, Purpose, RequestShown, Root};
use pagetide_swap::frontier::TIERS;
use pagetide_swap::hash::PageHash;
use pagetide_swap::{Handle, PageIndex, Source, Transfer};
use std::sync::{Mutex, OnceLock};

/// The purpose of a request, with all that its end needs.
#[derive(Debug)]
pub(super) enum Pending {
    /// A read for a fault.
    Read {
        /// The pages that come in.
        transfer: Transfer,
        /// Whether the fault was a write.
        write: bool,
        /// The time at which the fault came, in nanoseconds of the engine's clock.
        since: u64,
    },
    /// A read that brings pages from the device to the pool.
    Move {
        /// The pages.
        transfer: Transfer,
    },
    /// A write of pages from a slot of staging.
    Store {
        /// The slot.
        slot: u16,
        /// The pages, one for each block.
        pages: Vec<PageIndex>,
        /// The first block.
        block: u64,
    },
    /// A write of entries of the pool.
    Writeback {
        /// The entries, one for each block.
        entries: Vec<(PageIndex, Handle, PageHash)>,
        /// The first block.
        block: u64,
    },
}

impl Pending {
    /// Returns the first block of a write.
    fn written(&self) -> Option<u64> {
        match self {
            Self::Store { block, .. } | Self::Writeback { block, .. } => Some(*block),
            Self::Read { .. } | Self::Move { .. } => None,
        }
    }

    fn shown(&self) -> RequestShown {
        let (purpose, first, pages, block, demand) = match self {
            Self::Read { transfer, since, .. } => {
                let demand = (!transfer.ahead).then(|| (transfer.demanded(), *since));
                (Purpose::Read, transfer.first, transfer.length, block_of(transfer), demand)
            }
            Self::Move { transfer } => {
                (Purpose::Move, transfer.first, transfer.length, block_of(transfer), None)
            }
            Self::Store { pages, block, .. } => {
                (Purpose::Store, pages.first().copied().unwrap_or(PageIndex(0)), pages.len(), *block, None)
            }
            Self::Writeback { entries, block } => {
                let first = entries.first().map_or(PageIndex(0), |&(page, ..)| page);
                (Purpose::Writeback, first, entries.len(), *block, None)
            }
        };
        RequestShown { purpose, first, pages: pages as u64, block, since: 0, demand }
    }
}

fn block_of(transfer: &Transfer) -> u64 {
    if let Source::Device { block } = transfer.source { block } else { 0 }
}

/// A place for a request; the tokens of requests are numbers of places.
#[derive(Debug, Default)]
struct Places {
    /// `None` is free, or its request has come back and is being dealt with.
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    count: usize,
    /// Faults for which the device had too much to do.
    refused: usize,
    writes: usize,
    /// Writes by tier of the device.
    writes_to: [usize; TIERS],
}

/// The requests of an engine that are under way. A request is until all that it led to is done: a fork waits for that.
#[derive(Debug)]
pub(super) struct Requests {
    places: Mutex<Places>,
    board: OnceLock<Board>,
    /// The first block of the device's second tier.
    second: u64,
}

/// A fault for which the device had too much to do: it counts as a request that is under way until this is dropped.
pub(super) struct Refused<'a>(&'a Requests);

impl Drop for Refused<'_> {
    fn drop(&mut self) {
        lock(&self.0.places).refused -= 1;
    }
}

/// A request that has come back from the device. It is under way until this is dropped.
pub(super) struct Ended<'a> {
    requests: &'a Requests,
    token: u64,
    /// The tier to which it wrote.
    wrote_to: Option<usize>,
}

impl Requests {
    /// Returns the requests to a device whose second tier begins with block `second`.
    pub(super) fn new(second: Option<u64>) -> Self {
        let (places, board) = Default::default();
        Self { places, board, second: second.unwrap_or(u64::MAX) }
    }

    fn tier_of(&self, pending: &Pending) -> Option<usize> {
        pending.written().map(|block| usize::from(block >= self.second))
    }

    /// Shows requests on `board` from now on.
    pub(super) fn show_on(&self, board: Board) {
        let places = lock(&self.places);
        board.show(Root::Requests, &places.count);
        board.show(Root::Writes, &places.writes);
        let _ = self.board.set(board);
    }

    /// Notes a request. Returns its token.
    pub(super) fn begin(&self, pending: Pending) -> u64 {
        let shown = self.board.get().map(|board| (board, pending.shown()));
        let tier = self.tier_of(&pending);
        let mut places = lock(&self.places);
        places.count += 1;
        places.writes += usize::from(tier.is_some());
        if let Some(tier) = tier {
            places.writes_to[tier] += 1;
        }
        let at = match places.free.pop() {
            Some(at) => at,
            None => {
                places.pending.push(None);
                places.pending.len() - 1
            }
        };
        places.pending[at] = Some(pending);
        if let Some((board, shown)) = shown {
            board.begin_request(at as u64, shown);
        }
        at as u64
    }

    /// Returns what a request was for that has come back, or was not taken by the device.
    ///
    /// # Panics
    /// If the token is of no request.
    pub(super) fn end(&self, token: u64) -> (Pending, Ended<'_>) {
        let pending = lock(&self.places).pending[token as usize].take().expect("a request ends once");
        let wrote_to = self.tier_of(&pending);
        (pending, Ended { requests: self, token, wrote_to })
    }

    /// Calls `each` with the time at which each fault came that waits for a request.
    pub(super) fn for_each_since(&self, mut each: impl FnMut(u64)) {
        for pending in lock(&self.places).pending.iter().flatten() {
            if let Pending::Read { transfer, since, .. } = pending
                && !transfer.ahead
            {
                each(*since);
            }
        }
    }

    /// Counts a fault for which the device has too much to do among the requests, until [`Requests::refused_again`].
    pub(super) fn refuse(&self) {
        lock(&self.places).refused += 1;
    }

    /// Returns such a fault, which is tried again.
    pub(super) fn refused_again(&self) -> Refused<'_> {
        Refused(self)
    }

    /// Returns the number of requests under way, and of faults that are to become one.
    pub(super) fn count(&self) -> usize {
        let places = lock(&self.places);
        places.count + places.refused
    }

    /// Returns how many of them are writes to this tier of the device.
    pub(super) fn writes_to(&self, tier: usize) -> usize {
        lock(&self.places).writes_to[tier]
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut places = lock(&self.requests.places);
        if let Some(board) = self.requests.board.get() {
            board.end_request(self.token);
        }
        places.free.push(self.token as usize);
        places.count -= 1;
        places.writes -= usize::from(self.wrote_to.is_some());
        if let Some(tier) = self.wrote_to {
            places.writes_to[tier] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_under_way_until_it_is_dealt_with() {
        let requests = Requests::new(Some(9));
        let store = |block| Pending::Store { slot: 3, pages: Vec::new(), block };
        let tokens = [7, 8].map(|block| requests.begin(store(block)));
        let read = requests.begin(Pending::Writeback { entries: Vec::new(), block: 9 });
        assert_eq!((requests.count(), requests.writes_to(0), requests.writes_to(1)), (3, 2, 1));
        let (pending, ended) = requests.end(tokens[1]);
        assert!(matches!(pending, Pending::Store { slot: 3, block: 8, .. }));
        assert_eq!((requests.count(), requests.writes_to(0), requests.writes_to(1)), (3, 2, 1));
        let other = requests.begin(store(10));
        assert!(!tokens.contains(&other) && other != read, "its token is its own for as long");
        drop(ended);
        assert_eq!((requests.count(), requests.writes_to(0), requests.writes_to(1)), (3, 1, 2));
        requests.refuse();
        let again = requests.refused_again();
        assert_eq!(requests.count(), 4);
        drop(again);
        assert_eq!(requests.count(), 3);
        assert_eq!(requests.begin(store(11)), tokens[1], "and is used again then");
    }
}
