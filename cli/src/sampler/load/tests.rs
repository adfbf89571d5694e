//! Load control, in a run on two processors.

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
    engine: bool,
    /// Whether it works when it is told to rest.
    restless: bool,
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
            engine: true,
            restless: false,
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
                if (!process.rests || process.restless) && !process.idle {
                    process.faults += 1;
                    process.lost_ns += (TICK.as_nanos() as f64 * loss) as u64;
                }
            }
            let seen = |(tenant, process): (usize, &Process)| Seen {
                tenant: tenant as u64,
                engine: process.engine,
                work: process.faults,
                rests: process.rests,
                lost_ns: process.lost_ns,
                size: process.size,
                out: if process.fits || !process.engine { 0 } else { process.size / 2 },
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
    young.control.ended.note(5000);
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
    let mut without = World::new(&[5000, 3000, 2000]);
    without.processes[1].engine = false;
    assert_eq!(without.run(3 * REST, 0.9), [], "where engines start more can leave");
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
    world.control.ended = EndedSizes::default();
    world.control.ended.note(4000);
    world.processes = World::new(sizes).processes;
    world.processes.iter_mut().for_each(|process| process.fits = true);
    world.free = world.control.for_engines() + 1000;
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
    more.free += 3500;
    assert_eq!(more.run(SOON, 0.0), [(2, true), (3, true)], "what is free is for those that grow");
    let mut old = lately(&[3000, 3500, 2000]);
    old.free += 2000;
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
    world.run(2 * TICK, 0.0);
    world.processes.clear();
    world.run(2 * TICK, 0.0);
    assert_eq!(world.control.ended.expected(0), TOTAL as i64 / 2);
}

#[test]
fn the_young_rest_before_their_engines_start_and_keep_what_they_have() {
    let mut world = lately(&[3000, 3500, 400]);
    world.processes[2].engine = false;
    assert_eq!(world.run(SOON, 0.0), [(2, true)]);
    // The others lack 1500, it lacks 3600, and with less than a 16th left engines start.
    world.free = 5100 + world.control.for_engines();
    assert_eq!(world.run(SOON, 0.0), [], "what is free does not suffice");
    world.free += 1;
    assert_eq!(world.run(SOON, 0.0), [(2, false)], "what it has is not needed");
    let mut world = lately(&[3000, 3500, 400]);
    assert_eq!(world.run(SOON, 0.0), [(2, true)]);
    world.free = 5500 + world.control.for_engines();
    assert_eq!(world.run(SOON, 0.0), []);
    world.free += 1;
    assert_eq!(world.run(SOON, 0.0), [(2, false)], "what one with an engine has may be out");
}

#[test]
fn small_processes_that_end_say_nothing_of_others() {
    let mut world = World::new(&[3000, TOTAL / SMALL_PART as u64 - 1]);
    world.run(2 * TICK, 0.0);
    world.processes.clear();
    world.run(TICK, 0.0);
    assert_eq!(world.control.ended.expected(0), 3000);
}

#[test]
fn a_child_that_never_worked_says_nothing_of_others() {
    let mut world = World::new(&[3000, 4000]);
    world.processes[1].idle = true;
    world.run(2 * TICK, 0.0);
    world.processes.clear();
    world.run(TICK, 0.0);
    assert_eq!(world.control.ended.expected(0), 3000);
}

#[test]
fn one_that_cannot_rest_is_not_said_to() {
    let mut world = lately(&[3000, 3500, 400]);
    (world.processes[2].engine, world.processes[2].restless) = (false, true);
    assert_eq!(world.run(SOON, 0.0), [(2, true), (2, false), (0, true)], "another rests in its place");
    let mut world = lately(&[3000, 3500, 400]);
    (world.processes[2].engine, world.processes[2].restless) = (false, true);
    world.run(3 * TICK, 0.0);
    (world.processes[2].engine, world.processes[2].restless) = (true, false);
    world.run(SOON, 0.0);
    assert!(!world.control.known[&2].is_restless, "its faults wait once its engine runs");
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
