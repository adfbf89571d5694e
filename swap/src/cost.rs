//! What faults cost: the time that threads wait, or where processors are taken the work.
//!
//! While processors are idle, a thread that waits for a page is time lost. Where others run meanwhile only the processor time
//! of the fault counts. Between the two the costs are mixed.

/// The cost of a fault on a page in the pool, in nanoseconds: trap, wake-up, decompression, and the eviction that makes
/// room.
pub const POOL_FAULT_NS: f64 = 12_000.0;
/// The cost of a page that comes from the pool with the fault on another, in nanoseconds: decompression, its share of the
/// mapping, and the eviction that makes room.
pub const POOL_AHEAD_NS: f64 = 4_000.0;
/// The processor time of a fault on a page in the pool, in nanoseconds, take-out and compression of the page that makes
/// room included.
const POOL_WORK_NS: f64 = 20_000.0;
/// The processor time that a page takes more from the device than from the pool, in nanoseconds: request, interrupt,
/// wake-up of a second thread, decryption.
const DEVICE_WORK_NS: f64 = 40_000.0;
/// The same at least, of a page whose wait readahead hides: decryption, a copy, its share of the request.
const DEVICE_AHEAD_NS: f64 = 3_000.0;
/// The cost of a fault on a page on probation, in nanoseconds.
pub const PROBATION_FAULT_NS: f64 = 4_000.0;
/// The number of faults that the costs which are expected at first count for.
const EXPECTED: f64 = 256.0;
/// The part by which what came before counts for less at each look. Of a scan some windows come without a wait, and the next
/// ones after a long one.
const LATE_PART: f64 = 1.0 / 32.0;
/// The same of how processors were used, of which looks are further apart.
const LOAD_PART: f64 = 1.0 / 8.0;
/// How much what reclaim waits for a processor weighs, as a part of the time in which it wants to run: where it waits for a
/// third the processors are taken.
pub(crate) const WAITS_WEIGHT: f64 = 3.0;

/// How processors were used between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// For how long the reclaim thread ran, in nanoseconds.
    pub ran: u64,
    /// For how long it waited for a processor, in nanoseconds.
    pub waited: u64,
    /// For how long processors that this process may use were not idle, added up, in ticks.
    pub busy: u64,
    /// For how long there were such processors, added up, in ticks. 0 if that is not known.
    pub all: u64,
}

/// What pages came in between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct CameIn {
    /// Pages from the pool.
    pub pool_pages: u64,
    /// Those of them for which a fault waited.
    pub pool_faults: u64,
    /// Pages from the device.
    pub device_pages: u64,
    /// The time that faults waited for the device, in nanoseconds.
    pub device_ns: u64,
}

/// What a page costs, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PageCost {
    /// From the pool.
    pub pool: f64,
    /// From the device, beyond what it would cost from the pool.
    pub device_more: f64,
}

/// The costs of pages of late: sums in which what came before counts for a part less at each look.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pool_pages: f64,
    pool_faults: f64,
    device_pages: f64,
    device_ns: f64,
    ran: f64,
    waited: f64,
    busy: f64,
    all: f64,
}

/// Adds to a sum of which `part` is forgotten.
fn add(sum: &mut f64, more: u64, part: f64) {
    *sum += more as f64 - *sum * part;
}

impl Costs {
    /// What is expected before any fault has been seen.
    pub fn expected(device_fault_ns: f64) -> Self {
        Self {
            pool_pages: EXPECTED,
            pool_faults: EXPECTED,
            device_pages: EXPECTED,
            device_ns: EXPECTED * device_fault_ns,
            ran: 0.0,
            waited: 0.0,
            busy: 0.0,
            all: 0.0,
        }
    }

    /// Notes the pages that came in since the last look.
    pub fn note(&mut self, came: CameIn) {
        if came.pool_pages > 0 {
            add(&mut self.pool_pages, came.pool_pages, LATE_PART);
            add(&mut self.pool_faults, came.pool_faults, LATE_PART);
        }
        if came.device_pages > 0 {
            add(&mut self.device_pages, came.device_pages, LATE_PART);
            add(&mut self.device_ns, came.device_ns, LATE_PART);
        }
    }

    /// Notes how processors were used since the last look.
    pub fn note_load(&mut self, load: Load) {
        add(&mut self.ran, load.ran, LOAD_PART);
        add(&mut self.waited, load.waited, LOAD_PART);
        add(&mut self.busy, load.busy, LOAD_PART);
        add(&mut self.all, load.all, LOAD_PART);
    }

    /// Returns how far the processors are taken, from 0 to 1: reclaim waits for one, and they are not idle meanwhile. Behind
    /// a single thread reclaim waits, too; but when that thread waits for the device nobody has the processor.
    fn taken(&self) -> f64 {
        let part = |part: f64, whole: f64| (part / whole.max(1.0)).min(1.0);
        (WAITS_WEIGHT * part(self.waited, self.ran + self.waited)).min(1.0) * part(self.busy, self.all)
    }

    /// What a page from the pool costs where a fault there costs so much.
    fn pool_page(&self, fault: f64) -> f64 {
        let asked = (self.pool_faults / self.pool_pages.max(1.0)).min(1.0);
        POOL_AHEAD_NS + (fault - POOL_AHEAD_NS) * asked
    }

    /// Returns what a page would cost, were processors idle.
    pub fn page_if_idle(&self) -> PageCost {
        let pool = self.pool_page(POOL_FAULT_NS);
        let device = self.device_ns / self.device_pages.max(1.0);
        PageCost { pool, device_more: (device - pool).max(0.0) }
    }

    /// Returns what a page costs.
    pub fn page(&self) -> PageCost {
        let (idle, taken) = (self.page_if_idle(), self.taken());
        let mix = |idle: f64, busy: f64| idle + (busy - idle) * taken;
        let work = idle.device_more.clamp(DEVICE_AHEAD_NS, DEVICE_WORK_NS);
        PageCost {
            pool: mix(idle.pool, self.pool_page(POOL_WORK_NS)),
            device_more: mix(idle.device_more, work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a page, where so much comes in at each look under this load.
    fn cost(came: CameIn, load: Load) -> PageCost {
        let mut costs = Costs::expected(100_000.0);
        for _ in 0..1000 {
            costs.note(came);
            costs.note_load(load);
        }
        costs.page()
    }

    const TAKEN: Load = Load { ran: 1000, waited: 2000, busy: 20, all: 20 };

    #[test]
    fn nearly_as_much_as_expected_where_nothing_has_come() {
        assert_eq!(Costs::expected(100_000.0).page(), PageCost { pool: 12_000.0, device_more: 88_000.0 });
    }

    #[test]
    fn a_wait_counts_where_processors_are_idle_and_work_where_they_are_taken() {
        let came = CameIn { pool_pages: 100, pool_faults: 100, device_pages: 100, device_ns: 100 * 300_000 };
        let at = |load| cost(came, load);
        let close = |found: PageCost, pool: f64, device_more: f64| {
            let near = |found: f64, wanted: f64| (found - wanted).abs() < 10.0;
            assert!(near(found.pool, pool) && near(found.device_more, device_more), "{found:?}");
        };
        close(at(TAKEN), 20_000.0, 40_000.0);
        let if_idle = |load| {
            let mut costs = Costs::expected(300_000.0);
            costs.note_load(load);
            costs.page_if_idle()
        };
        close(if_idle(TAKEN), 12_000.0, 288_000.0);
        close(at(Load { busy: 0, ..TAKEN }), 12_000.0, 288_000.0);
        close(at(Load { waited: 0, ..TAKEN }), 12_000.0, 288_000.0);
        close(at(Load { busy: 10, ..TAKEN }), 16_000.0, 164_000.0);
        close(at(Load { busy: 0, all: 0, ..TAKEN }), 12_000.0, 288_000.0);
        close(at(Load::default()), 12_000.0, 288_000.0);
    }

    #[test]
    fn what_comes_with_another_page_costs_less_than_a_fault() {
        let scan = CameIn { pool_pages: 1000, pool_faults: 20, device_pages: 1000, device_ns: 1000 * 1000 };
        let idle = cost(scan, Load::default());
        assert!((4_000.0..4_200.0).contains(&idle.pool) && idle.device_more == 0.0, "{idle:?}");
        assert_eq!(cost(scan, TAKEN).device_more, DEVICE_AHEAD_NS, "readahead hides the wait, not the work");
    }
}
