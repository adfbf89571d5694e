//! Load control: which processes rest while others get on.
//!
//! Where several processes together want more memory than there is, each takes from the others what they will want back
//! next: all of them run, and all of them wait for pages. Fewer at a time get more done, as long as the processors have
//! work. So while memory is short, pages come back fast and more processes are at work than there are processors, one
//! of them *rests*: its faults wait, and the others take its memory. The smallest goes first, which has the least to
//! lose and, among equals that started one after the other, the most still to do; but none so small that its memory is
//! of no use to others. It goes on when there is room for it, at once when too few are at work, and after a second in
//! place of the one that has run for longest, unless that has rested within a second.
//!
//! Compilers of a build grow within a tenth of a second, and end soon after. So for some time after processes had to rest
//! the next rests while it is *young*: when what is free does not suffice for all young ones to grow as large as those
//! that have ended. Then it has little that must leave, and come back.
//!
//! That is the load control of early multiprogramming systems, which swapped whole processes out (Denning, *Thrashing:
//! its causes and prevention*, 1968); Linux 2.6.9 to 3.4 had its mirror image, a token that protected one process from
//! losing pages (Jiang and Zhang, *Token-ordered LRU*, 2005).

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time that a process rests before it takes turns with another, and that it is spared afterwards. Orders to rest
/// are renewed after this time, so that a process whose launcher is stopped does not rest for ever.
const REST: Duration = Duration::from_secs(1);
/// Time between two orders, after which the effect of the first is visible.
const SETTLES: Duration = Duration::from_millis(40);
/// A process is at work for this long after its last fault.
const AT_WORK: Duration = Duration::from_millis(100);
/// Processes rest if the time lost to pages that come back, in all, exceeds this part of one processor's.
const LOSS_MIN: f64 = 0.1;
/// Processes of less than this part of all memory do not count: mostly they start others and wait for them.
const SMALL_PART: i64 = 32;
/// Nor does the smallest of the others, if it is of less than this part: a client works by turns with its server, and what it
/// would give is little.
const CLIENT_PART: i64 = 16;
/// The least number of processes that may be at work: one of them may wait for the device.
const AT_WORK_MIN: usize = 2;
/// Weight of a sample against those before it.
const SMOOTHING: f64 = 0.5;
/// Memory is short when less than this part of it is free.
const SHORT_PART: i64 = 64;
/// Where processes have had to rest within this time, the young may rest before memory is short: when what is free does
/// not suffice for those at work, if the young among them grow to the size of those that have ended.
const LATELY: Duration = Duration::from_secs(10);
/// A process is young until it has run for this long, or is as large as those that have ended.
const YOUNG: Duration = Duration::from_secs(2);
/// Weight of the size of an ended process against those before it.
const TYPICAL_PART: f64 = 1.0 / 8.0;

/// Figures of a process whose engine runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its tenant number.
    pub(crate) tenant: u64,
    /// Faults so far.
    pub(crate) faults: u64,
    /// Nanoseconds lost so far to pages that came back.
    pub(crate) lost_ns: u64,
    /// Pages that it has in memory and out.
    pub(crate) size: u64,
    /// Pages of `size` that are out.
    pub(crate) out: u64,
}

/// An order to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    /// Its tenant number.
    pub(crate) tenant: u64,
    /// Whether it is to rest, or to go on.
    pub(crate) rests: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    faults: u64,
    lost_ns: u64,
    worked_at: Instant,
    /// The part of its time that it loses to pages that come back.
    loss: f64,
    size: u64,
    out: u64,
    /// For how long it has run, without its rests.
    ran: Duration,
    /// Whether it has rested before.
    rested: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Runs { since: Instant },
    Rests { since: Instant, renewed: Instant },
}

/// Load control of one run.
#[derive(Debug)]
pub(crate) struct LoadControl {
    /// The number of processes that may be at work in any case.
    at_work_min: usize,
    total: i64,
    known: HashMap<u64, Known>,
    /// Pages that a process comes to take in the end, by those that have ended; none counts for more than half of all memory.
    typical: f64,
    last: Instant,
    ordered: Instant,
    /// When memory was short last, and much was lost to pages that came back.
    thrashed: Option<Instant>,
}

impl LoadControl {
    /// Returns load control for a run of `total` pages on `processors`.
    pub(crate) fn new(processors: usize, total: u64, now: Instant) -> Self {
        Self {
            at_work_min: processors.max(AT_WORK_MIN),
            total: total as i64,
            known: HashMap::new(),
            typical: 0.0,
            last: now,
            ordered: now,
            thrashed: None,
        }
    }

    /// Follows a change of the cap.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = total as i64;
    }

    /// Takes a sample of all processes whose engine runs, and of the free pages. Returns orders.
    pub(crate) fn sample(&mut self, now: Instant, free: i64, seen: &[Seen]) -> Vec<Order> {
        self.look(now, seen);
        let mut orders = Vec::new();
        let settled = now.saturating_duration_since(self.ordered) >= SETTLES;
        if let Some(tenant) = self.who_goes_on(now, settled.then_some(free)) {
            orders.push(Order { tenant, rests: false });
        } else if settled {
            if let Some((tenant, instead)) = self.who_take_turns(now) {
                orders.extend([Order { tenant: instead, rests: false }, Order { tenant, rests: true }]);
            } else if let Some(tenant) = self.who_rests(now, free) {
                orders.push(Order { tenant, rests: true });
            }
        }
        for order in &orders {
            let state = if order.rests {
                State::Rests { since: now, renewed: now }
            } else {
                State::Runs { since: now }
            };
            let known = self.known.get_mut(&order.tenant).expect("an order is for one of them");
            (known.state, known.rested) = (state, true);
            self.ordered = now;
        }
        for (&tenant, known) in &mut self.known {
            if let State::Rests { renewed, .. } = &mut known.state
                && now.saturating_duration_since(*renewed) >= REST
            {
                *renewed = now;
                orders.push(Order { tenant, rests: true });
            }
        }
        orders
    }

    fn look(&mut self, now: Instant, seen: &[Seen]) {
        let since_last = now.saturating_duration_since(self.last);
        let time = since_last.as_nanos().max(1) as f64;
        self.last = now;
        let mut old = std::mem::take(&mut self.known);
        for one in seen {
            let mut known = old.remove(&one.tenant).unwrap_or(Known {
                faults: one.faults,
                lost_ns: one.lost_ns,
                worked_at: now,
                loss: 0.0,
                size: 0,
                out: 0,
                ran: Duration::ZERO,
                rested: false,
                state: State::Runs { since: now },
            });
            if matches!(known.state, State::Runs { since } if since < now) {
                known.ran += since_last;
            }
            if one.faults != known.faults {
                known.worked_at = now;
            }
            let loss = one.lost_ns.saturating_sub(known.lost_ns) as f64 / time;
            known.loss += (loss - known.loss) * SMOOTHING;
            (known.faults, known.lost_ns) = (one.faults, one.lost_ns);
            (known.size, known.out) = (one.size, one.out);
            self.known.insert(one.tenant, known);
        }
        for ended in old.values() {
            let size = (ended.size as i64).min(self.total / 2) as f64;
            self.typical += (size - self.typical) * TYPICAL_PART;
        }
    }

    /// Returns how many pages a process still lacks of those that it will come to have, if it is young; 0 where memory was not short
    /// lately, and nobody looks ahead.
    fn grows(&self, known: &Known, now: Instant) -> i64 {
        let lately = self.thrashed.is_some_and(|then| now.saturating_duration_since(then) <= LATELY);
        if lately && known.ran < YOUNG { (self.typical as i64 - known.size as i64).max(0) } else { 0 }
    }

    fn at_work(&self, now: Instant) -> impl Iterator<Item = (&u64, &Known)> {
        let works = move |known: &Known| {
            matches!(known.state, State::Runs { .. })
                && known.size as i64 >= self.total / SMALL_PART
                && now.saturating_duration_since(known.worked_at) <= AT_WORK
        };
        let working = move || self.known.iter().filter(move |(_, known)| works(known));
        let is_client =
            |known: &Known| (known.size as i64) < self.total / CLIENT_PART && self.grows(known, now) == 0;
        let client = smallest(working()).filter(|tenant| is_client(&self.known[tenant]));
        working().filter(move |&(&tenant, _)| Some(tenant) != client)
    }

    /// Returns the number of processes at work. One that has just gone on is, however small and whatever it does.
    fn count_at_work(&self, now: Instant) -> usize {
        let at_work: Vec<u64> = self.at_work(now).map(|(&tenant, _)| tenant).collect();
        let beside = |&(tenant, known): &(&u64, &Known)| known.just_went_on(now) && !at_work.contains(tenant);
        at_work.len() + self.known.iter().filter(beside).count()
    }

    /// Returns the resting processes, with the time since which they rest.
    fn resting(&self) -> impl Iterator<Item = (Instant, u64)> {
        self.known.iter().filter_map(|(&tenant, known)| match known.state {
            State::Rests { since, .. } => Some((since, tenant)),
            State::Runs { .. } => None,
        })
    }

    /// Returns the processes at work that may rest: they have pages out, and have run for [`REST`] since they rested
    /// last.
    fn unspared(&self, now: Instant) -> impl Iterator<Item = (&u64, &Known)> {
        self.at_work(now).filter(move |(_, known)| known.out > 0 && !known.is_spared(now))
    }

    /// Returns the process that goes on beside the others: since too few are at work, or, if orders have settled, since the
    /// `free` pages suffice for it or it is its turn.
    fn who_goes_on(&self, now: Instant, free: Option<i64>) -> Option<u64> {
        let (since, tenant) = self.resting().min()?;
        let need = (self.known[&tenant].size as i64).max(self.typical as i64).min(self.total / 2);
        let room = free.is_some_and(|free| free - self.growth(now) > need);
        let turn = free.is_some() && self.is_due_alone(since, now);
        (room || turn || self.count_at_work(now) < self.at_work_min).then_some(tenant)
    }

    /// Returns the pages that the young at work will come to take.
    fn growth(&self, now: Instant) -> i64 {
        self.at_work(now).map(|(_, known)| self.grows(known, now)).sum()
    }

    /// Returns whether a process that rests since then has done so for long enough, and none of those at work could rest in
    /// its place: all they have is in memory. One goes on at a time.
    fn is_due_alone(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= REST
            && self.at_work(now).all(|(_, known)| known.out == 0)
            && !self.known.values().any(|known| known.just_went_on(now))
    }

    /// Returns the process that rests next and the one that goes on in its place, if that has rested for long
    /// enough.
    fn who_take_turns(&self, now: Instant) -> Option<(u64, u64)> {
        let (since, tired) = self.resting().min()?;
        let over = now.saturating_duration_since(since) >= REST;
        let (&tenant, _) =
            self.unspared(now).min_by_key(|&(&tenant, known)| (known.state.since(), tenant))?;
        over.then_some((tenant, tired))
    }

    /// Returns the process that should rest now.
    fn who_rests(&mut self, now: Instant, free: i64) -> Option<u64> {
        if self.at_work(now).count() <= self.at_work_min {
            return None;
        }
        let short = free < self.total / SHORT_PART;
        let loss: f64 = self.at_work(now).map(|(_, known)| known.loss).sum();
        let thrashes = short && loss >= LOSS_MIN;
        if thrashes {
            self.thrashed = Some(now);
        }
        let young = if self.growth(now) > free { self.youngest(now) } else { None };
        young.or_else(|| if thrashes { smallest(self.unspared(now)) } else { None })
    }

    /// Returns the smallest of the young at work, unless all of them have rested a moment ago.
    fn youngest(&self, now: Instant) -> Option<u64> {
        smallest(self.at_work(now).filter(|(_, known)| self.grows(known, now) > 0 && !known.is_spared(now)))
    }
}

fn smallest<'a>(processes: impl Iterator<Item = (&'a u64, &'a Known)>) -> Option<u64> {
    processes.map(|(&tenant, known)| (known.size, tenant)).min().map(|(_, tenant)| tenant)
}

impl Known {
    /// Returns whether the process has gone on within [`AT_WORK`]: its faults may not be seen yet.
    fn just_went_on(&self, now: Instant) -> bool {
        let State::Runs { since } = self.state else { return false };
        self.rested && now.saturating_duration_since(since) <= AT_WORK
    }

    /// Returns whether the process has rested, and has not run for [`REST`] since.
    fn is_spared(&self, now: Instant) -> bool {
        self.rested && now.saturating_duration_since(self.state.since()) < REST
    }
}

impl State {
    fn since(self) -> Instant {
        match self {
            Self::Runs { since } | Self::Rests { since, .. } => since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 10_000;
    const TICK: Duration = Duration::from_millis(20);

    /// A run on two processors, in which every process that does not rest faults.
    struct World {
        control: LoadControl,
        now: Instant,
        free: i64,
        processes: Vec<Process>,
    }

    struct Process {
        size: u64,
        faults: u64,
        lost_ns: u64,
        idle: bool,
        fits: bool,
        rests: bool,
        rested: Duration,
        ordered: Instant,
    }

    impl World {
        fn new(sizes: &[u64]) -> Self {
            let now = Instant::now();
            let process = |&size| Process {
                size,
                faults: 0,
                lost_ns: 0,
                idle: false,
                fits: false,
                rests: false,
                rested: Duration::ZERO,
                ordered: now,
            };
            Self {
                control: LoadControl::new(2, TOTAL, now),
                now,
                free: 0,
                processes: sizes.iter().map(process).collect(),
            }
        }

        /// Goes on for some time, in which each process at work loses a part of it. Returns who was told what.
        fn run(&mut self, time: Duration, loss: f64) -> Vec<(u64, bool)> {
            let mut orders = Vec::new();
            let end = self.now + time;
            while self.now < end {
                self.now += TICK;
                for process in &mut self.processes {
                    process.rested += if process.rests { TICK } else { Duration::ZERO };
                    if !process.rests && !process.idle {
                        process.faults += 1;
                        process.lost_ns += (TICK.as_nanos() as f64 * loss) as u64;
                    }
                }
                let seen = |(tenant, process): (usize, &Process)| Seen {
                    tenant: tenant as u64,
                    faults: process.faults,
                    lost_ns: process.lost_ns,
                    size: process.size,
                    out: if process.fits { 0 } else { process.size / 2 },
                };
                let seen: Vec<_> = self.processes.iter().enumerate().map(seen).collect();
                for Order { tenant, rests } in self.control.sample(self.now, self.free, &seen) {
                    if self.processes[tenant as usize].rests != rests {
                        self.processes[tenant as usize].rests = rests;
                        orders.push((tenant, rests));
                    }
                    self.processes[tenant as usize].ordered = self.now;
                }
                let forgotten = |process: &Process| process.rests && self.now - process.ordered > REST + TICK;
                assert!(!self.processes.iter().any(forgotten), "orders to rest are given anew");
            }
            orders
        }
    }

    const SOON: Duration = Duration::from_millis(400);

    #[test]
    fn the_smallest_of_too_many_rest_and_as_many_as_processors_go_on() {
        let mut world = World::new(&[5000, 2000, 4000, 3000, 6000]);
        assert_eq!(world.run(SOON, 0.2), [(1, true), (3, true), (2, true)]);
    }

    #[test]
    fn nobody_rests_without_need() {
        let mut few = World::new(&[5000; 2]);
        assert_eq!(few.run(3 * REST, 0.9), [], "as many as may be at work");
        let mut calm = World::new(&[5000; 5]);
        assert_eq!(calm.run(3 * REST, 0.01), [], "little is lost");
        let mut roomy = World::new(&[5000; 5]);
        roomy.free = TOTAL as i64 / SHORT_PART;
        assert_eq!(roomy.run(3 * REST, 0.9), [], "memory is free");
        let mut young = World::new(&[5000, 700, 700]);
        young.control.typical = 5000.0;
        young.free = -100;
        assert_eq!(young.run(3 * REST, 0.01), [], "nothing was lost lately");
        let mut fitting = World::new(&[5000; 5]);
        fitting.processes.iter_mut().for_each(|process| process.fits = true);
        assert_eq!(fitting.run(3 * REST, 0.9), [], "nothing of them is out, and none is young");
        let mut waiting = World::new(&[5000; 5]);
        for nth in [0, 2, 4] {
            waiting.processes[nth].idle = true;
        }
        waiting.run(AT_WORK * 2, 0.0);
        assert_eq!(waiting.run(3 * REST, 0.9), [], "those that wait are not at work");
        let mut small = World::new(&[5000, 300, 300, 5000, 300]);
        assert_eq!(small.run(3 * REST, 0.9), [], "the small ones do not count");
        let mut served = World::new(&[5000, 600, 5000, 300]);
        assert_eq!(served.run(3 * REST, 0.9), [], "nor does a client");
        let mut clients = World::new(&[5000, 600, 5000, 610]);
        assert_eq!(clients.run(SOON, 0.9), [(3, true)], "but several do");
    }

    #[test]
    fn a_rest_ends_when_there_is_room_or_too_few_are_at_work() {
        let mut world = World::new(&[2000, 3000, 3000]);
        assert_eq!(world.run(SOON, 0.2), [(0, true)]);
        world.free = 2001;
        assert_eq!(world.run(SOON, 0.2), [(0, false)], "it fits");
        let mut world = World::new(&[2000, 3000, 3000]);
        assert_eq!(world.run(SOON, 0.2), [(0, true)]);
        world.processes[2].idle = true;
        assert_eq!(world.run(SOON, 0.2), [(0, false)], "the others wait, for it perhaps");
        let mut world = World::new(&[2000, 3000, 3000]);
        assert_eq!(world.run(SOON, 0.2), [(0, true)]);
        world.processes.pop();
        world.free = 2000;
        assert_eq!(world.run(SOON, 0.2), [(0, false)], "one has ended");
    }

    /// Returns a world of which a process had to rest and has ended since, as have others of 4000 pages.
    fn lately(sizes: &[u64]) -> World {
        let mut world = World::new(&[5000, 5000, 2000]);
        assert_eq!(world.run(SOON, 0.2), [(2, true)]);
        world.processes.clear();
        world.run(TICK, 0.0);
        world.control.typical = 4000.0;
        world.processes = World::new(sizes).processes;
        world.processes.iter_mut().for_each(|process| process.fits = true);
        world.free = 1000;
        world
    }

    #[test]
    fn the_youngest_rests_before_memory_is_short_where_others_had_to_lately() {
        let mut growing = lately(&[3000, 3500, 400]);
        assert_eq!(growing.run(SOON, 0.0), [(2, true)]);
        assert_eq!(lately(&[3500, 3500, 4000]).run(SOON, 0.0), [], "what is free suffices");
        assert_eq!(lately(&[5000, 400]).run(SOON, 0.0), [], "as many as may be at work");
        let mut grown = lately(&[4500, 4600, 400]);
        assert_eq!(grown.run(SOON, 0.0), [(2, true)]);
        grown.processes[0].idle = true;
        assert_eq!(grown.run(SOON, 0.0), [(2, false)], "too few are at work");
        grown.processes[0].idle = false;
        assert_eq!(grown.run(SOON, 0.0), [], "it has just gone on, and the others have grown");
        let mut more = lately(&[3000, 3500, 400, 600]);
        more.free = 4500;
        assert_eq!(more.run(SOON, 0.0), [(2, true), (3, true)], "what is free is for those that grow");
        let mut old = lately(&[3000, 3500, 2000]);
        old.free = 3000;
        assert_eq!(old.run(SOON, 0.0), [(2, true)]);
        old.run(2 * YOUNG, 0.0);
        assert_eq!(old.run(2 * YOUNG, 0.0), [], "none is young any more");
        let mut client = lately(&[5000, 500]);
        client.run(YOUNG, 0.0);
        client.processes.extend(World::new(&[3000]).processes);
        assert_eq!(client.run(SOON, 0.0), [], "the smallest is a client, and does not count");
        let mut calm = lately(&[5000, 5000]);
        assert_eq!(calm.run(LATELY, 0.0), []);
        calm.processes.extend(World::new(&[400]).processes);
        assert_eq!(calm.run(SOON, 0.0), [], "that is long ago");
    }

    #[test]
    fn the_young_have_their_turn_though_nobody_can_take_their_place() {
        let mut world = lately(&[4500, 4500, 400, 450]);
        assert_eq!(world.run(SOON, 0.0), [(2, true), (3, true)]);
        assert_eq!(world.run(REST - SOON + 3 * TICK, 0.0), [(2, false)], "one at a time");
        assert_eq!(world.run(AT_WORK + 2 * TICK, 0.0), [(3, false)]);
    }

    #[test]
    fn a_giant_that_has_ended_counts_for_no_more_than_half() {
        let mut world = World::new(&[9 * TOTAL]);
        world.run(TICK, 0.0);
        world.processes.clear();
        world.run(TICK, 0.0);
        assert_eq!(world.control.typical, TOTAL as f64 / 2.0 * TYPICAL_PART);
    }

    #[test]
    fn one_that_has_just_gone_on_is_at_work_before_its_first_fault() {
        let mut world = lately(&[3000, 3500, 400, 410]);
        assert_eq!(world.run(SOON, 0.0), [(2, true), (3, true)]);
        for nth in [0, 2, 3] {
            world.processes[nth].idle = true;
        }
        assert_eq!(world.run(AT_WORK + 3 * TICK, 0.0), [(2, false)], "one goes on in place of one");
        assert_eq!(world.run(AT_WORK, 0.0), [(3, false)], "the other when that does nothing");
    }

    #[test]
    fn all_have_their_turn() {
        let mut world = World::new(&[3000; 8]);
        world.run(REST * 64, 0.3);
        let rested: Vec<_> = world.processes.iter().map(|process| process.rested.as_secs_f64()).collect();
        // Two of eight are at work: each rests three quarters of the time.
        assert!(rested.iter().all(|&rested| (44.0..=52.0).contains(&rested)), "{rested:?}");
    }

    #[test]
    fn after_a_while_another_rests_that_has_run_for_as_long() {
        let mut world = World::new(&[1000, 5000, 5000]);
        assert_eq!(world.run(SOON, 0.2), [(0, true)]);
        assert_eq!(world.run(REST, 0.2), [(0, false), (1, true)]);
        assert_eq!(world.run(REST, 0.2), [(1, false), (2, true)]);
        assert_eq!(world.run(REST, 0.2), [(2, false), (0, true)]);
    }
}
