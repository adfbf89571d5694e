//! Figures of a whole run: the parts of the group page added up.

use crate::accounts::pages::Pages;
use crate::units::PAGE;
use pagetide::group::{DeviceKind, Ended, Field, Group, ProcessSlot, RemoteFigure};
use pagetide::latency;
use pagetide_swap::Counter;
use pagetide_swap::distances::{self, Tier};
use serde_json::{Value, json};

/// Figures of a whole run at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    /// Counters of the living and the dead.
    pub(crate) counters: [u64; Counter::ALL.len()],
    /// Faults by the growth of memory that would have spared them, of the pool and of the device.
    pub(crate) distances: [[u64; distances::BUCKETS]; 2],
    /// Memory and disk of the living.
    pub(crate) pages: Pages,
    /// Pages stored in the pool, and the bytes of their payload.
    pub(crate) stored: (u64, u64),
    /// Pages of `stored` that are stored uncompressed.
    pub(crate) stored_raw: u64,
    /// Pages that consist of one repeated word.
    pub(crate) same_filled: u64,
    /// Pages of the pool that would be free if its entries lay together.
    pub(crate) loose: u64,
    /// Blocks of the swap file: its size, the size to which it may grow just now, and its largest size.
    pub(crate) file: [u64; 3],
    /// The figures of the remote tier, if there is one, in the order of [`RemoteFigure`].
    pub(crate) remote: Option<[u64; RemoteFigure::ALL.len()]>,
    /// Faults that wait for their page.
    pub(crate) stalled: u64,
    /// Processes that live.
    pub(crate) processes: usize,
    /// Processes whose engine runs.
    pub(crate) armed: usize,
}

impl Gathered {
    /// Adds up the parts of a group page.
    pub(crate) fn from(group: &Group) -> Self {
        let setup = group.setup();
        let mut this = Self {
            counters: [0; Counter::ALL.len()],
            distances: [[0; distances::BUCKETS]; 2],
            pages: Pages::default(),
            stored: (0, 0),
            stored_raw: 0,
            same_filled: 0,
            loose: 0,
            file: setup.tier(DeviceKind::File).map_or([0; 3], |tier| {
                let frontier = group.frontier(tier);
                [frontier.open(), frontier.allowed(), frontier.total()]
            }),
            remote: setup.tier(DeviceKind::Remote).map(|_| group.remote_figures()),
            stalled: 0,
            processes: 0,
            armed: 0,
        };
        this.count(group.dead());
        let (shared, launcher) = group.own_pages();
        this.pages.add(Pages::of_unmanaged(shared + launcher + group.unmanaged_pages()));
        this.pages.add(Pages::of_shared(group.shared_pages()));
        for slot in group.live() {
            this.count(slot);
            this.pages.add(Pages::of(slot));
            this.stored.0 += slot.get(Field::StoredPages);
            this.stored.1 += slot.get(Field::StoredBytes);
            this.stored_raw += slot.get(Field::StoredRaw);
            this.same_filled += slot.get(Field::SameFilled);
            this.loose += slot.get(Field::Loose);
            this.stalled += slot.get(Field::Stalled);
            this.processes += 1;
            this.armed += usize::from(slot.get(Field::Armed) != 0);
        }
        this
    }

    fn count(&mut self, slot: ProcessSlot) {
        for &counter in Counter::ALL {
            let count = &mut self.counters[counter as usize];
            *count = count.saturating_add(slot.counters().get(counter));
        }
        for (counts, tier) in self.distances.iter_mut().zip([Tier::Pool, Tier::Device]) {
            for (count, more) in counts.iter_mut().zip(slot.counters().distances().get(tier)) {
                *count = count.saturating_add(more);
            }
        }
    }

    /// Returns the figures of the pool as JSON, under the names of `/sys/kernel/debug/zswap`, with the bytes of
    /// payload and of loose pages.
    pub(crate) fn zswap(&self) -> Value {
        let mut zswap = json!({
            "pool_total_size": self.pages.pool * PAGE,
            "stored_pages": self.stored.0,
            "stored_incompressible_pages": self.stored_raw,
            "same_filled_pages": self.same_filled,
            "written_back_pages": self.counter(Counter::zswpwb),
            "stored_bytes": self.stored.1,
            "loose_bytes": self.loose * PAGE,
        });
        for counter in [
            Counter::pool_limit_hit,
            Counter::reject_reclaim_fail,
            Counter::reject_alloc_fail,
            Counter::reject_compress_fail,
            Counter::reject_compress_poor,
            Counter::decompress_fail,
        ] {
            zswap[counter.name()] = self.counter(counter).into();
        }
        zswap
    }

    /// Returns the refault distances as JSON: faults by the growth of memory below which they would have been spared.
    pub(crate) fn distances(&self) -> Value {
        let [pool, device] = &self.distances;
        let counts = pool.iter().zip(device).enumerate().filter(|(_, (pool, device))| **pool + **device > 0);
        counts
            .map(|(bucket, (pool, device))| {
                json!({ "growth": distances::growth(bucket), "pool": pool, "device": device })
            })
            .collect()
    }

    /// Returns the sizes of the swap file as JSON, in bytes.
    pub(crate) fn swap_file(&self) -> Value {
        let [size, allowed, most] = self.file.map(|blocks| blocks * PAGE);
        json!({ "size": size, "may_grow_to_now": allowed.max(size), "may_grow_to": most })
    }

    /// Returns the value of a counter.
    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Returns page bytes divided by payload bytes in the pool, if it holds anything.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (pages, bytes) = self.stored;
        (bytes > 0).then(|| (pages * PAGE) as f64 / bytes as f64)
    }
}

/// Returns the latencies of all faults of a run.
pub(crate) fn latencies(group: &Group) -> [u64; latency::WORDS] {
    let mut sum = [0; latency::WORDS];
    group.dead().latency().add_to(&mut sum);
    for slot in group.live() {
        slot.latency().add_to(&mut sum);
    }
    sum
}

/// Returns how many processes of a run ended for want of memory, and what could not leave, if any did.
pub(crate) fn ended(group: &Group) -> Option<Ended> {
    Some(group.ended()).filter(|ended| ended.processes > 0)
}
