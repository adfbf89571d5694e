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
//! that have ended. Then it has little that must leave, and come back; mostly it has no engine yet, and waits where it charges
//! more memory.
//!
//! That is the load control of early multiprogramming systems, which swapped whole processes out (Denning, *Thrashing:
//! its causes and prevention*, 1968); Linux 2.6.9 to 3.4 had its mirror image, a token that protected one process from
//! losing pages (Jiang and Zhang, *Token-ordered LRU*, 2005).

mod sizes;
#[cfg(test)]
mod tests;

use pagetide::group::OTHERS_PART;
use sizes::EndedSizes;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time that a process rests before it takes turns with another, and that it is spared afterwards. Orders to rest
/// are renewed after this time, so that a process whose launcher is stopped does not rest for ever.
const REST: Duration = Duration::from_secs(1);
/// Time between two orders, after which the effect of the first is visible.
const SETTLES: Duration = Duration::from_millis(40);
/// A process is at work for this long after its last fault or, without an engine, charge.
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

/// Figures of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its tenant number.
    pub(crate) tenant: u64,
    /// Whether its engine runs. Without it nothing of the process can be out.
    pub(crate) engine: bool,
    /// Faults so far, or pages that it has charged: a number that changes while it is at work.
    pub(crate) work: u64,
    /// Whether it is told to rest: others than the launcher may have ended its rest.
    pub(crate) rests: bool,
    /// Nanoseconds lost so far to pages that came back.
    pub(crate) lost_ns: u64,
    /// Pages that it has in memory and out, or that it was handed out.
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
    engine: bool,
    work: u64,
    lost_ns: u64,
    /// When it worked last, or was first seen, and whether it has worked since it was first seen.
    worked_at: Instant,
    has_worked: bool,
    /// Whether it was told to rest at the last look.
    rested_then: bool,
    /// Whether it works though it was told to rest: without an engine some processes cannot rest.
    is_restless: bool,
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
    /// Of those that were not small; none counts for more than half of all memory.
    ended: EndedSizes,
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
            ended: EndedSizes::default(),
            last: now,
            ordered: now,
            thrashed: None,
        }
    }

    /// Follows a change of the cap.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = total as i64;
    }

    /// Takes a sample of all processes, and of the free pages. Returns orders.
    pub(crate) fn sample(&mut self, now: Instant, free: i64, seen: &[Seen]) -> Vec<Order> {
        self.look(now, seen);
        let mut orders = self.let_restless_go_on();
        let settled = now.saturating_duration_since(self.ordered) >= SETTLES;
        if !orders.is_empty() {
            // Who is at work is known at the next sample.
        } else if let Some(tenant) = self.who_goes_on(now, settled.then_some(free)) {
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

    /// Returns orders for those that were told to rest and do not: whoever looks at them is to see that they run.
    fn let_restless_go_on(&self) -> Vec<Order> {
        let rests = |known: &Known| known.is_restless && matches!(known.state, State::Rests { .. });
        let restless = self.known.iter().filter(|(_, known)| rests(known));
        restless.map(|(&tenant, _)| Order { tenant, rests: false }).collect()
    }

    fn look(&mut self, now: Instant, seen: &[Seen]) {
        let since_last = now.saturating_duration_since(self.last);
        let time = since_last.as_nanos().max(1) as f64;
        self.last = now;
        let mut old = std::mem::take(&mut self.known);
        for one in seen {
            let mut known = old.remove(&one.tenant).unwrap_or(Known {
                engine: one.engine,
                work: one.work,
                lost_ns: one.lost_ns,
                worked_at: now,
                has_worked: false,
                rested_then: one.rests,
                is_restless: false,
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
            if one.work != known.work {
                (known.worked_at, known.has_worked) = (now, true);
            }
            // From one look to the next, and the order was there for a while before: a charge that had begun has ended by then.
            let before = now.checked_sub(since_last).unwrap_or(now);
            let told = |since| before.saturating_duration_since(since) >= SETTLES;
            let rests = one.rests && known.rested_then;
            if rests && matches!(known.state, State::Rests { since, .. } if told(since)) {
                known.is_restless |= one.work > known.work;
            }
            known.rested_then = one.rests;
            // Once its engine runs its faults wait.
            known.is_restless &= !one.engine;
            let loss = one.lost_ns.saturating_sub(known.lost_ns) as f64 / time;
            known.loss += (loss - known.loss) * SMOOTHING;
            (known.engine, known.work, known.lost_ns) = (one.engine, one.work, one.lost_ns);
            (known.size, known.out) = (one.size, one.out);
            self.known.insert(one.tenant, known);
        }
        for ended in old.values() {
            // A child that only calls another program ends soon, at the size of its parent.
            if (ended.has_worked || ended.ran >= AT_WORK) && !self.is_small(ended) {
                self.ended.note((ended.size as i64).min(self.total / 2));
            }
        }
    }

    /// Returns whether a process is too small for load control.
    fn is_small(&self, known: &Known) -> bool {
        (known.size as i64) < self.total / SMALL_PART
    }

    /// Returns the pages that are left for others: when fewer are free engines start.
    fn for_engines(&self) -> i64 {
        self.total / OTHERS_PART
    }

    /// Returns how many pages a process still lacks of those that it is expected to have in the end.
    fn lacks(&self, known: &Known) -> i64 {
        let size = known.size as i64;
        (self.ended.expected(size) - size).max(0)
    }

    /// Returns how many pages a process still lacks of those that it will come to have, if it is young; 0 where memory was not short
    /// lately, and nobody looks ahead.
    fn grows(&self, known: &Known, now: Instant) -> i64 {
        let lately = self.thrashed.is_some_and(|then| now.saturating_duration_since(then) <= LATELY);
        if lately && known.ran < YOUNG { self.lacks(known) } else { 0 }
    }

    fn at_work(&self, now: Instant) -> impl Iterator<Item = (&u64, &Known)> {
        let works = move |known: &Known| {
            matches!(known.state, State::Runs { .. })
                && !self.is_small(known)
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
        let room = free.is_some_and(|free| free > self.needed_beside(&self.known[&tenant], now));
        let turn = free.is_some() && self.is_due_alone(since, now);
        (room || turn || self.count_at_work(now) < self.at_work_min).then_some(tenant)
    }

    /// Returns how many pages are to be free before a process that rests goes on beside those at work.
    fn needed_beside(&self, known: &Known, now: Instant) -> i64 {
        // Others take what one with an engine has while it rests.
        let taken = if known.engine { known.size as i64 } else { 0 };
        let (lacks, growth) = (self.lacks(known), self.growth(now));
        let for_engines = if lacks + growth > 0 { self.for_engines() } else { 0 };
        (taken + lacks).min(self.total / 2) + growth + for_engines
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
        let with_engine = self.at_work(now).filter(|(_, known)| known.engine).count();
        let thrashes = short && loss >= LOSS_MIN && with_engine > self.at_work_min;
        if thrashes {
            self.thrashed = Some(now);
        }
        let young = if self.growth(now) + self.for_engines() > free { self.youngest(now) } else { None };
        young.or_else(|| if thrashes { smallest(self.unspared(now)) } else { None })
    }

    /// Returns the smallest of the young at work, unless all of them have rested a moment ago.
    fn youngest(&self, now: Instant) -> Option<u64> {
        let may_rest =
            |known: &Known| self.grows(known, now) > 0 && !known.is_spared(now) && !known.is_restless;
        smallest(self.at_work(now).filter(|(_, known)| may_rest(known)))
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
