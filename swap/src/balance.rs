//! The balance between a program and the compressed pool: the part of the memory that the pool should have.
//!
//! A page of the pool holds as many pages as it compresses, and each of those is served from memory instead
//! of the device. It costs one page that would have stayed in the program, and that page is one of those which it holds. So the
//! pool should grow while
//!
//! > (ratio − 1) × (faults that a larger pool would save) × (device − pool) > (faults that more memory would save) × pool
//!
//! where *device* and *pool* are what a fault costs there, and both sides are rates a page. Shadows tell what would
//! have been saved: a page that comes from the device before twice as many have left as a page is old that is written
//! back would have been in a pool twice as large; one that comes from the pool before as many have left as are in the
//! program would have been there if that were twice as much. What is used all the time comes back from probation in
//! each turn of the clock. What a page costs is in [`crate::cost`]. The idea is marginal utility as in *Adaptive compressed caching* (Wilson, Kaplan and
//! Smaragdakis 1999), with shadows in place of their ghost entries.

use crate::PAGE_SIZE;
use crate::cost::{
    CameIn, Costs, Load, POOL_AHEAD_NS, POOL_FAULT_NS, PROBATION_FAULT_NS, PageCost, WAITS_WEIGHT,
};

/// Faults that must have come before the balance is judged anew.
const FAULTS_MIN: u64 = 256;
/// The factor by which one side must be better than the other before the share changes.
const MARGIN: f64 = 1.25;
/// The change of the share at a time, as a part of the process's memory.
const STEP: f64 = 1.0 / 64.0;
/// The pressure on the pool where a page in the program is worth as much as the entries that its memory would hold.
const PRESSURE: f64 = 0.5;
const SHARE_MIN: f64 = 0.1;
/// The share before any fault has been seen.
const SHARE_FIRST: f64 = 0.8;
/// The part by which what came back before counts for less each time that the balance is judged.
const LATE_PART: f64 = 1.0 / 8.0;
/// The part of the pool's rate of faults that is expected of pages on the device: the first to go there are a little
/// colder than the pool. It counts until as many pages as [`EXPECTED_WEIGHT`] of the pool's are there.
const EXPECTED_RATE: f64 = 1.0 / 4.0;
const EXPECTED_WEIGHT: f64 = 1.0 / 64.0;

/// Evictions of pages with a copy after which the worth of copies is judged anew.
const COPIES_MIN: u64 = 64;

/// The load of the reclaim thread, as parts of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimLoad {
    /// The part of all time in which reclaim works.
    pub busy: f64,
    /// The part of the time in which reclaim wants to run that it waits for a processor.
    pub waits: f64,
}

impl ReclaimLoad {
    /// Returns the part of reclaim's time that the program loses: all of it if the program waits for reclaim, or if
    /// they take turns on the processors.
    fn weight(self) -> f64 {
        (10.0 * self.busy - 9.0).max(WAITS_WEIGHT * self.waits).clamp(0.0, 1.0)
    }
}

/// The judgement whether stored copies of pages in the program are worth their memory.
///
/// A copy saves a compression if its page is clean when it leaves next, which matters as far as reclaim has
/// no time to spare. Its memory would hold a part of a page in the program, and save that page's faults.
#[derive(Debug)]
pub struct Copies {
    reused: u64,
    stale: u64,
    clean: f64,
    seen: Totals,
    /// The time that one page on the device costs at each fault of the program, in nanoseconds: the chance that the
    /// fault is on that page, times the cost of such a fault.
    device_loss: f64,
}

impl Default for Copies {
    fn default() -> Self {
        Self { reused: 0, stale: 0, clean: 1.0, seen: Totals::default(), device_loss: 0.0 }
    }
}

impl Copies {
    /// Returns whether copies should be kept. `store_ns` is the time that it takes to store a page again whose copy was
    /// not kept, in nanoseconds, and `page` what pages cost that come in.
    pub fn keep(
        &mut self,
        load: ReclaimLoad,
        store_ns: f64,
        page: PageCost,
        totals: Totals,
        sizes: Sizes,
    ) -> bool {
        let device_in = totals.device_in.saturating_sub(self.seen.device_in);
        let faults = device_in + totals.pool_in.saturating_sub(self.seen.pool_in);
        if faults >= FAULTS_MIN {
            let cost = device_in as f64 * page.device_more;
            let each = cost / faults as f64 / sizes.device.max(1) as f64;
            self.device_loss = each * totals.displaced_part();
            self.seen = totals;
        }
        let (more, less) =
            (totals.reused.saturating_sub(self.reused), totals.stale.saturating_sub(self.stale));
        if more + less >= COPIES_MIN {
            self.clean += (more as f64 / (more + less) as f64 - self.clean) / 4.0;
            (self.reused, self.stale) = (totals.reused, totals.stale);
        }
        let weight = load.weight();
        // Each page in the program leaves once for every fault, on one of the pages that are stored. A page of
        // the pool, given back, holds one in the program, which leaves room in the pool again: 1 / (ratio - 1)
        // pages for each copy.
        let surplus = (sizes.stored as f64 / sizes.pool.max(1) as f64 - 1.0).max(0.1);
        let gain = weight * self.clean * store_ns / sizes.resident.max(1) as f64;
        let loss = (POOL_FAULT_NS + weight * store_ns) / (surplus * sizes.stored as f64).max(1.0);
        // Or it holds as large an entry that lies on the device else, for want of room.
        gain > loss.max(if sizes.full { self.device_loss } else { 0.0 })
    }
}

/// Counts of pages that have come and gone since the process started. They only grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Pages that came from the pool.
    pub pool_in: u64,
    /// Pages of `pool_in` for which a fault waited; the others came with those.
    pub pool_faults: u64,
    /// Pages of `pool_in` that would have been in the program if it had twice the memory.
    pub pool_near: u64,
    /// Pages that came from the device.
    pub device_in: u64,
    /// Pages of `device_in` that would have been in the pool if that were twice as large.
    pub device_near: u64,
    /// The time that faults waited for the device, in nanoseconds.
    pub device_ns: u64,
    /// Pages that came back from probation.
    pub hits: u64,
    /// Pages that went to the device for want of room in the pool.
    pub displaced: u64,
    /// Pages that went to the device because they do not compress: no pool would hold them.
    pub incompressible: u64,
    /// Kept copies that were of use: their page was clean when it left again.
    pub reused: u64,
    /// Kept copies that were of no use: their page had been written to when it left again.
    pub stale: u64,
}

impl Totals {
    /// Returns the time that pages from the pool have cost, in nanoseconds.
    pub fn pool_ns(&self) -> u64 {
        let ahead = self.pool_in.saturating_sub(self.pool_faults);
        // Anybody in the run can write to the counters.
        let faults = self.pool_faults.saturating_mul(POOL_FAULT_NS as u64);
        faults.saturating_add(ahead.saturating_mul(POOL_AHEAD_NS as u64))
    }

    /// Returns the pages that came in since `before`.
    fn came_since(&self, before: &Self) -> CameIn {
        CameIn {
            pool_pages: self.pool_in.saturating_sub(before.pool_in),
            pool_faults: self.pool_faults.saturating_sub(before.pool_faults),
            device_pages: self.device_in.saturating_sub(before.device_in),
            device_ns: self.device_ns.saturating_sub(before.device_ns),
        }
    }

    /// Returns the part of the device's pages that a larger pool would hold.
    fn displaced_part(&self) -> f64 {
        self.displaced as f64 / (self.displaced + self.incompressible).max(1) as f64
    }
}

/// The sizes of pool, device and program just now, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Pages that are stored in the pool.
    pub stored: u64,
    /// Pages of memory that the pool takes.
    pub pool: u64,
    /// Bytes that are stored in the pool, compressed.
    pub payload: u64,
    /// Pages on the device.
    pub device: u64,
    /// Pages in the program.
    pub resident: u64,
    /// Whether the pool's limit keeps it from growing.
    pub full: bool,
}

/// The pool's share of a process's memory, which follows what faults cost.
///
/// ```
/// use pagetide_swap::balance::{Balance, Sizes, Totals};
///
/// // 3000 pages lie in 1000 pages of pool, and 1000 on a device that takes 100 µs a fault.
/// let sizes = Sizes { stored: 3000, pool: 1000, payload: 1000 << 12, device: 1000, resident: 2000, full: true };
/// let mut balance = Balance::new(100_000.0);
/// let mut totals = Totals { displaced: 1, ..Totals::default() };
/// let first = balance.share(totals, sizes, 0.5);
/// for _ in 0..100 {
///     // Nothing comes from the device, and much from the pool: the program is short of memory.
///     totals.pool_in += 1000;
///     totals.pool_faults += 1000;
///     balance.share(totals, sizes, 0.5);
/// }
/// assert!(balance.share(totals, sizes, 0.5) < first);
/// ```
#[derive(Debug)]
pub struct Balance {
    share: f64,
    seen: Totals,
    late: Late,
    costs: Costs,
    pressure: f64,
}

/// Pages that came back of late: each time that the balance is judged, what came before counts for a part less.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    pool: f64,
    pool_near: f64,
    device_near: f64,
    hits: f64,
}

impl Late {
    /// Counts what came between two looks at the totals.
    fn note(&mut self, before: &Totals, now: &Totals) {
        let add = |late: &mut f64, now: u64, before: u64| {
            *late += now.saturating_sub(before) as f64 - *late * LATE_PART;
        };
        add(&mut self.pool, now.pool_in, before.pool_in);
        add(&mut self.pool_near, now.pool_near, before.pool_near);
        add(&mut self.device_near, now.device_near, before.device_near);
        add(&mut self.hits, now.hits, before.hits);
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            share: SHARE_FIRST,
            seen: Totals::default(),
            late: Late::default(),
            costs: Costs::expected(100_000.0),
            pressure: 0.0,
        }
    }
}

impl Balance {
    /// Returns the balance of a process that has seen no fault. A fault on a page of the device is expected to take
    /// `device_fault_ns`.
    pub fn new(device_fault_ns: f64) -> Self {
        Self { costs: Costs::expected(device_fault_ns), ..Self::default() }
    }

    /// Notes how processors were used since the last call.
    pub fn note_load(&mut self, load: Load) {
        self.costs.note_load(load);
    }

    /// Returns what pages cost of late.
    pub fn page_cost(&self) -> PageCost {
        self.costs.page()
    }

    /// Returns the pool's share of the process's memory, from 0 to `ceiling`, as it follows from what has happened
    /// since the last call.
    pub fn share(&mut self, totals: Totals, sizes: Sizes, ceiling: f64) -> f64 {
        let pool_in = totals.pool_in.saturating_sub(self.seen.pool_in);
        let device_in = totals.device_in.saturating_sub(self.seen.device_in);
        let hits = totals.hits.saturating_sub(self.seen.hits);
        if pool_in + device_in + hits >= FAULTS_MIN {
            let before = std::mem::replace(&mut self.seen, totals);
            self.late.note(&before, &totals);
            self.costs.note(totals.came_since(&before));
            let Late { pool, pool_near, device_near, hits } = self.late;
            let rate = |count: f64, pages: f64| count / pages.max(1.0);
            let (stored, resident) = (sizes.stored as f64, sizes.resident as f64);
            // Of what is stored next: what a fork froze, or gaps hold, is memory of the pool, too.
            let ratio = rate(stored, sizes.payload as f64 / PAGE_SIZE as f64);
            let pool_rate = rate(pool, stored);
            // What does not compress says nothing of what a larger pool would hold.
            let displaced = totals.displaced_part();
            let device = sizes.device as f64 * displaced;
            let seen = device / (device + (stored * EXPECTED_WEIGHT).max(1.0));
            // A pool that is larger by what the device holds would hold all: it need not be twice as large.
            let near_rate = rate(device_near * displaced, stored.min(device));
            let idle = self.costs.page_if_idle();
            let worth = |cost: PageCost| {
                // What has not been seen is expected to cost the more that it may.
                let expected = (1.0 - seen) * EXPECTED_RATE * pool_rate * idle.device_more;
                // Of what a page of the pool holds one is the page of the program in whose place it is.
                let gain = (ratio - 1.0).max(0.0) * (seen * near_rate * cost.device_more + expected);
                // Whatever leaves goes to the pool in the end; and what is used all the time leaves too, once in each turn
                // of the clock, and comes back from probation: the more there is in the program, the longer a turn takes.
                let loss = (pool_rate.max(rate(pool_near, resident)) * cost.pool)
                    .max(rate(hits, resident) * PROBATION_FAULT_NS);
                (gain, loss)
            };
            let (gain, loss) = worth(self.costs.page());
            let steps = f64::from(gain > loss * MARGIN) - f64::from(loss > gain * MARGIN);
            // Where the pool is worth more, only what is cold goes: at a pace for which waits count, that is slower.
            let (gain, loss) = if loss * MARGIN > gain { (gain, loss) } else { worth(idle) };
            self.pressure = (loss / gain.max(1.0) * PRESSURE).min(1.0);
            if sizes.full {
                self.share += steps * STEP;
            }
        }
        self.share = self.share.min(ceiling).max(SHARE_MIN.min(ceiling));
        self.share
    }

    /// Returns `share`, whatever misses cost. The pool is then pressed whenever pages leave the program, as the kernel
    /// does it.
    pub fn fixed(&mut self, share: f64) -> f64 {
        self.pressure = 1.0;
        share
    }

    /// Returns how hard the pool should be pressed to give memory that the program needs, from 0 to 1: by the worth of
    /// a page in the program against that of the entries which its memory would hold. The limit tells how large the
    /// pool may become; this, whether it should stay so large. The shrinker finds what is cold, so a little pressure is
    /// right also where the pool is worth more.
    pub fn pressure(&self) -> f64 {
        self.pressure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        stored: 3000,
        pool: 1000,
        payload: 1000 * PAGE_SIZE as u64,
        device: 1000,
        resident: 2000,
        full: true,
    };

    fn converge(device_in: u64, pool_in: u64, hits: u64, full: bool) -> f64 {
        converge_in(Sizes { full, ..SIZES }, device_in, pool_in, hits)
    }

    fn converge_in(sizes: Sizes, device_in: u64, pool_in: u64, hits: u64) -> f64 {
        let each = Totals {
            device_in,
            device_near: device_in,
            pool_in,
            pool_faults: pool_in,
            hits,
            ..Totals::default()
        };
        balanced(sizes, each).0
    }

    /// The share and the pressure where so much comes in time after time.
    fn balanced(sizes: Sizes, each: Totals) -> (f64, f64) {
        balanced_under(Load::default(), sizes, each)
    }

    /// The same, under this load.
    fn balanced_under(load: Load, sizes: Sizes, each: Totals) -> (f64, f64) {
        let mut balance = Balance::default();
        let mut totals = Totals::default();
        let mut share = 0.0;
        for _ in 0..100 {
            totals.device_in += each.device_in;
            totals.device_near += each.device_near;
            totals.device_ns += each.device_in * 100_000;
            totals.pool_in += each.pool_in;
            totals.pool_faults += each.pool_faults;
            totals.pool_near += each.pool_near;
            totals.hits += each.hits;
            totals.displaced += 1;
            balance.note_load(load);
            share = balance.share(totals, sizes, 0.8);
        }
        (share, balance.pressure())
    }

    #[test]
    fn evenly_used_pages_belong_into_the_pool() {
        assert_eq!(converge(100, 300, 10, true), 0.8);
    }

    #[test]
    fn a_pool_that_holds_no_more_than_its_own_size_is_of_no_use() {
        let sizes = |stored| Sizes { stored, ..SIZES };
        assert_eq!(converge_in(sizes(1000), 100, 300, 10), 0.1);
        assert_eq!(converge_in(sizes(2000), 100, 300, 10), 0.8);
        let frozen = Sizes { pool: 5000, ..SIZES };
        assert_eq!(converge_in(frozen, 100, 300, 10), 0.8, "what is stored next takes no more for that");
    }

    #[test]
    fn what_comes_from_the_device_after_long_would_not_have_been_in_a_larger_pool() {
        let far =
            Totals { device_in: 300, device_near: 1, pool_in: 300, pool_faults: 300, ..Totals::default() };
        assert_eq!(balanced(SIZES, far).0, 0.1);
        assert_eq!(balanced(SIZES, Totals { device_near: 300, ..far }).0, 0.8);
    }

    #[test]
    fn the_pool_is_pressed_by_what_the_program_misses() {
        let each =
            Totals { device_in: 100, device_near: 100, pool_in: 300, pool_faults: 300, ..Totals::default() };
        let pressure = |pool_near| balanced(SIZES, Totals { pool_near, ..each }).1;
        assert!(pressure(0) > 0.0 && pressure(0) < 0.2, "a little in any case: {}", pressure(0));
        assert!(pressure(300) > pressure(0));
        assert_eq!(balanced(SIZES, Totals { device_near: 0, pool_near: 300, ..each }).1, 1.0);
    }

    #[test]
    fn a_small_device_tells_as_much_a_page_as_a_large_one() {
        let all_come_back = |device| {
            let each = Totals {
                device_in: device / 10,
                device_near: device / 10,
                pool_in: 1000,
                pool_faults: 1000,
                ..Totals::default()
            };
            balanced(Sizes { device, ..SIZES }, each).1
        };
        let (small, large) = (all_come_back(300), all_come_back(3000));
        assert!(small < 0.5 && (small - large).abs() < 0.05, "a tenth of both comes back: {small}, {large}");
    }

    #[test]
    fn what_does_not_compress_tells_nothing_of_a_larger_pool() {
        let pressure = |incompressible: u64| {
            let mut balance = Balance::default();
            let mut totals = Totals { incompressible, ..Totals::default() };
            for _ in 0..100 {
                totals.pool_in += 1000;
                totals.pool_faults += 1000;
                totals.displaced += 1;
                balance.share(totals, SIZES, 0.8);
            }
            balance.pressure()
        };
        assert_eq!(pressure(0), 1.0, "what the device holds is cold");
        let unknown = pressure(1 << 40);
        assert!(unknown < 0.5, "what it would hold of the pool's is not known: {unknown}");
    }

    #[test]
    fn one_moment_does_not_decide() {
        let mut balance = Balance::default();
        let mut totals = Totals { displaced: 1, ..Totals::default() };
        let mut moment = |pool_in, device_in| {
            totals.pool_in += pool_in;
            totals.pool_faults += pool_in;
            totals.device_in += device_in;
            totals.device_near += device_in;
            totals.device_ns += device_in * 100_000;
            balance.share(totals, SIZES, 0.8);
            balance.pressure()
        };
        let usual = (0..50).map(|_| moment(300, 100)).last().unwrap();
        assert!(moment(1000, 0) < 0.3, "for a moment nothing comes from the device; else {usual}");
        assert_eq!((0..100).map(|_| moment(1000, 0)).last(), Some(1.0), "nothing comes from it any more");
    }

    #[test]
    fn where_others_run_meanwhile_only_the_work_of_a_fault_counts() {
        let each = Totals {
            device_in: 120,
            device_near: 120,
            pool_in: 3000,
            pool_faults: 3000,
            pool_near: 3000,
            ..Totals::default()
        };
        let load = Load { ran: 1000, waited: 2000, busy: 20, all: 20 };
        let share = |load| balanced_under(load, SIZES, each).0;
        assert_eq!(share(load), 0.1, "a thread waits 100 µs for the device, and others run");
        assert_eq!(share(Load { busy: 2, ..load }), 0.8, "nobody does");
        assert_eq!(share(Load { waited: 0, ..load }), 0.8, "they leave processors free");
        assert_eq!(share(Load::default()), 0.8, "it is not known");
    }

    #[test]
    fn what_comes_with_another_page_costs_less_than_a_fault() {
        let scan =
            Totals { device_in: 60, device_near: 60, pool_in: 3000, pool_near: 1500, ..Totals::default() };
        let (few, all) = (Totals { pool_faults: 50, ..scan }, Totals { pool_faults: 3000, ..scan });
        let pressure = |each| balanced(SIZES, each).1;
        assert!(pressure(few) < 0.5 * pressure(all), "{} against {}", pressure(few), pressure(all));
        assert_eq!(few.pool_ns(), 50 * 12_000 + 2950 * 4_000);
        assert_eq!(Totals { pool_in: u64::MAX, ..few }.pool_ns(), u64::MAX, "counters may hold anything");
    }

    #[test]
    fn windows_that_come_without_a_wait_now_and_then_do_not_move_the_share() {
        let mut balance = Balance::default();
        let mut totals = Totals { displaced: 1, ..Totals::default() };
        let share = |nth: u64| {
            totals.pool_in += 1000;
            totals.pool_faults += 20;
            totals.device_in += 300;
            totals.device_near += 300;
            // One time in sixteen a window waits for its pages.
            totals.device_ns += if nth.is_multiple_of(16) { 16 * 300 * 12_000 } else { 0 };
            balance.share(totals, SIZES, 0.8)
        };
        let least = (0..400).map(share).skip(100).fold(1.0, f64::min);
        assert_eq!(least, 0.8);
    }

    #[test]
    fn a_cold_device_gives_the_program_its_memory_back() {
        assert_eq!(converge(0, 300, 10, true), 0.1);
    }

    #[test]
    fn a_pool_that_holds_all_keeps_its_room() {
        let all = Sizes { device: 0, ..SIZES };
        assert_eq!(converge_in(all, 0, 300, 10), 0.8);
        assert_eq!(converge_in(all, 0, 3, 500), 0.1, "what is in it is cold");
    }

    #[test]
    fn pages_that_come_back_from_probation_at_once_are_worth_more_than_cold_ones_on_the_device() {
        assert_eq!(converge(1, 10, 500, true), 0.1);
    }

    #[test]
    fn copies_are_kept_where_reclaim_is_short_of_time_and_pages_stay_clean() {
        let keep_in = |sizes: Sizes, each: Totals, busy: f64, waits: f64| {
            let load = ReclaimLoad { busy, waits };
            let mut copies = Copies::default();
            let mut totals = Totals { pool_in: 0, ..each };
            let mut last = false;
            for _ in 1..20 {
                totals.pool_in += 1000;
                totals.device_in += each.device_in;
                totals.device_ns += each.device_in * 100_000;
                totals.reused += each.reused;
                totals.stale += each.stale;
                let page = PageCost { pool: 12_000.0, device_more: 88_000.0 };
                last = copies.keep(load, 10_000.0, page, totals, Sizes { resident: 1000, ..sizes });
            }
            last
        };
        let clean = Totals { reused: 100, displaced: 1, ..Totals::default() };
        let keep =
            |reused, stale, busy, waits| keep_in(SIZES, Totals { reused, stale, ..clean }, busy, waits);
        let busy_in = |sizes, each| keep_in(sizes, each, 1.0, 0.0);
        assert!(keep(100, 0, 1.0, 0.0));
        assert!(busy_in(SIZES, Totals { device_in: 10, ..clean }), "the device holds what is cold");
        let warm = Totals { device_in: 300, ..clean };
        assert!(!busy_in(SIZES, warm), "the pool is too small for what is not cold");
        assert!(busy_in(Sizes { full: false, ..SIZES }, warm), "there is room");
        assert!(
            busy_in(SIZES, Totals { incompressible: 99, ..warm }),
            "the device holds what does not compress"
        );
        assert!(keep(100, 0, 0.4, 0.3), "reclaim takes the program's processors");
        assert!(!keep(100, 0, 0.8, 0.03), "reclaim has time");
        assert!(!keep(5, 95, 1.0, 0.3), "the program writes what it touches");
    }

    #[test]
    fn nothing_changes_without_need() {
        assert_eq!(converge(100, 300, 10, false), SHARE_FIRST);
        assert_eq!(converge(1, 0, 0, true), SHARE_FIRST, "few faults tell little");
        assert_eq!(converge(0, 0, 0, true), SHARE_FIRST);
    }
}
