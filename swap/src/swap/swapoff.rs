//! Swapoff: pages leave the device.

use super::Swap;
use super::swapin::Transfer;
use crate::place::Place;
use crate::table::CLUSTERS_MAX;
use crate::word::State;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};

/// A run of adjacent pages that lie one block after the other on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceRun {
    /// The first block.
    pub block: u64,
    /// The page at that block.
    pub first: PageIndex,
    /// The number of pages.
    pub length: usize,
}

impl DeviceRun {
    /// Returns the pages of the run.
    pub fn pages(&self) -> std::ops::Range<PageIndex> {
        self.first..self.first.plus(self.length as u64)
    }
}

impl<S: SpanSource> Swap<S> {
    /// Returns the first `most` runs of pages that lie on the device from `block` on, by their blocks. Copies on the
    /// device of pages which are in memory are dropped on the way.
    ///
    /// It goes through the whole table, with a look-up for each run ([`crate::table::Table::has_page`]), and takes no
    /// more memory than its result.
    pub fn device_runs(&self, block: u64, most: usize) -> Vec<DeviceRun> {
        let mut lowest = std::collections::BinaryHeap::with_capacity(most + 1);
        for number in self.object.table().touched(0..CLUSTERS_MAX) {
            let mut kept = false;
            let mut offset = 0;
            while offset < CLUSTER_PAGES {
                let page = number.page(offset);
                let word = self.object.table().peek(page);
                offset += 1;
                let Some(Place::Device(first)) = word.place() else { continue };
                if word.state() != State::Swapped {
                    kept = true;
                    continue;
                }
                let run = self.object.table().has_page(page, 0, CLUSTER_PAGES - offset).unwrap_or_default();
                offset += run.after;
                if first >= block {
                    lowest.push(DeviceRun { block: first, first: page, length: run.after + 1 });
                }
                if lowest.len() > most {
                    lowest.pop();
                }
            }
            if kept {
                self.drop_device_copies(number);
            }
        }
        lowest.into_sorted_vec()
    }

    fn drop_device_copies(&self, number: ClusterNumber) {
        let Some(mut cluster) = self.object.table().lock(number) else { return };
        for offset in 0..CLUSTER_PAGES {
            let word = cluster.get(offset);
            if let Some(place @ Place::Device(_)) = word.place()
                && matches!(word.state(), State::Present | State::Cached)
                && !word.is_locked()
            {
                self.set(&mut cluster, offset, word.without_place());
                self.free_place(Some(place));
            }
        }
    }

    /// Ends a transfer of pages that were stored anew and stay out of the program. A page whose entry in `places` is a
    /// new place is there from now on, the others are as they were. Returns the pages for which a fault waits, a bit
    /// for each.
    pub fn finish_move(&self, transfer: &Transfer, places: &[Option<Place>]) -> u64 {
        let mut wanted = 0;
        {
            let mut cluster = self.object.table().lock_or_create(transfer.first.cluster());
            for (nth, place) in places.iter().enumerate() {
                let (offset, word) = (transfer.first.offset() + nth, transfer.words()[nth]);
                wanted |= u64::from(cluster.get(offset).is_wanted()) << nth;
                let moved = |place| word.with_place(place).with_chances(1);
                let after = place.map_or(word, moved).with_writeback(false);
                self.set(&mut cluster, offset, after);
                if place.is_some() {
                    self.free_place(word.place());
                    self.note_pooled(&mut cluster, *place);
                }
            }
        }
        self.space.transfers.notify();
        wanted
    }
}
