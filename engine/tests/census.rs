//! The census on a fake memory: it finds whatever can leave, and says of the rest why it cannot.

mod common;

use common::{Random, Shared, balances, compose, manage, noise, page, pages, prose};
use pagetide::census::{Reason, Step, Tally};
use pagetide::engine::{Engine, Progress, Round, Workspace};
use pagetide::fake::{self, FakeMemory, Setup};
use pagetide::mask::Mask;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_device::Device;
use pagetide_device::deferred::Deferred;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Completion, Direction};
use std::ops::Range;
use std::sync::Arc;

const BASE: u64 = 2000 * 512;
const GRANTED: i64 = 10_000;

struct World {
    engine: Engine<FakeMemory>,
    work: Workspace,
}

impl World {
    fn new(device: Option<Box<dyn Device>>, pool_pages_max: usize, mask: &str) -> Self {
        let mask = Mask::parse(mask).unwrap();
        let engine = fake::engine(Setup { device, pool_pages_max, mask, ..Setup::default() });
        engine.budget().give(GRANTED);
        Self { engine, work: Workspace::default() }
    }

    fn fill(&self, range: Range<u64>, contents: impl Fn(u64) -> Box<fake::Bytes>) {
        range.clone().for_each(|number| self.engine.memory().put(page(number), Some(&contents(number))));
        self.engine.adopt(pages(range));
    }

    fn census(&mut self) -> Step {
        self.end_of(Round::default())
    }

    fn end_of(&mut self, mut round: Round) -> Step {
        loop {
            match self.engine.census_step(&mut round, &mut self.work) {
                Step::Goes => {}
                step => return step,
            }
        }
    }

    /// Goes on until nothing leaves any more.
    fn run_to_end(&mut self) -> Tally {
        loop {
            match self.census() {
                Step::Stuck(tally) => return tally,
                Step::Goes | Step::Left | Step::Moving => self.complete(),
            }
        }
    }

    fn complete(&mut self) {
        let mut done: Vec<Completion> = Vec::new();
        if let Some(device) = self.engine.device()
            && self.engine.requests() > 0
        {
            device.wait(&mut done);
        }
        self.engine.complete(&mut done, &mut self.work);
    }

    fn present(&self) -> u64 {
        self.engine.memory().present().len() as u64
    }
}

fn mark(world: &World, range: Range<u64>, change: fn(&mut Attributes)) {
    let mut attributes = Attributes::new(Access::Write, Charging::ByMapping);
    change(&mut attributes);
    world.engine.regions.write().unwrap().insert(pages(range), attributes);
}

/// Its pages may have been nowhere when they were asked: what passes is proof after many rounds only.
#[test]
fn a_mapping_that_moves_during_a_round_is_noted_as_what_passes() {
    let mut world = World::new(None, 0, "");
    manage(&world.engine, BASE..BASE + 64, Access::Write);
    world.fill(BASE..BASE + 64, noise);
    let used = |step| matches!(step, Step::Stuck(tally) if tally.get(Reason::Used) == 1);
    assert!(!used(Step::Stuck(world.run_to_end())), "none moves");
    let mut round = Round::default();
    assert_eq!(world.engine.census_step(&mut round, &mut world.work), Step::Goes);
    drop(world.engine.begin_move(64));
    assert!(used(world.end_of(round)));
    // One that moves all the time is no reason to wait for ever.
    std::mem::forget(world.engine.begin_move(64));
    assert!(used(world.census()));
}

#[test]
fn what_cannot_leave_is_counted_by_its_reason() {
    for ways in ["", "remap"] {
        let mut world = World::new(None, 0, ways);
        // Five clusters and a half.
        manage(&world.engine, BASE..BASE + 2800, Access::Write);
        mark(&world, BASE + 100..BASE + 700, |attributes| attributes.locked = true);
        mark(&world, BASE + 1500..BASE + 1503, |attributes| attributes.kept = true);
        mark(&world, BASE + 2048..BASE + 2058, |attributes| attributes.access = Access::Read);
        world.fill(BASE..BASE + 2800, noise);
        let memory = world.engine.memory();
        memory.protect(pages(BASE + 2048..BASE + 2058), false);
        let expect = |reasons: &[(Reason, usize)]| {
            let mut tally = Tally::default();
            reasons.iter().for_each(|&(reason, pages)| tally.add(reason, pages));
            tally
        };
        let expected = [(Reason::Locked, 600), (Reason::Kept, 3), (Reason::NoPlace, 2800 - 603)];
        assert_eq!(world.census(), Step::Stuck(expect(&expected)), "{ways}");
        assert_eq!(world.present(), 2800, "nothing has changed");

        // Pages that the kernel holds; others were only shared by a fork.
        world.engine.memory().set_may_pin(true);
        world.engine.memory().share();
        [5, 6, 2050, 2700].iter().for_each(|&at| world.engine.memory().pin(page(BASE + at), true));
        let expected = [
            (Reason::Locked, 600),
            (Reason::Kept, 3),
            (Reason::Guarded, 1),
            (Reason::Pinned, 3),
            (Reason::NoPlace, 2800 - 607),
        ];
        assert_eq!(world.census(), Step::Stuck(expect(&expected)), "{ways}");
        balances(&world.engine, GRANTED);
    }
}

#[test]
fn threads_that_fault_and_find_nothing_to_store_do_not_put_the_end_off() {
    let mut world = World::new(None, 0, "");
    manage(&world.engine, BASE..BASE + 1600, Access::Write);
    world.fill(BASE..BASE + 1500, noise);
    let free = world.engine.budget().free();
    world.engine.budget().take(free);
    world.engine.fault(page(BASE + 1550), true, fake::clock(), &mut world.work);
    assert_eq!(world.engine.waiting(), 1);
    let mut round = Round::default();
    let step = loop {
        world.engine.reclaim_directly(&mut world.work);
        match world.engine.census_step(&mut round, &mut world.work) {
            Step::Goes => {}
            step => break step,
        }
    };
    let mut tally = Tally::default();
    tally.add(Reason::NoPlace, 1500);
    assert_eq!(step, Step::Stuck(tally));
}

#[test]
fn a_place_anywhere_is_found() {
    // One page of prose among noise, and a pool that was full once.
    let mut world = World::new(None, 1, "");
    manage(&world.engine, BASE..BASE + 2000, Access::Write);
    world.fill(BASE..BASE + 2000, |number| if number == BASE + 1999 { prose(1) } else { noise(number) });
    assert_eq!(world.census(), Step::Left);
    assert_eq!(world.run_to_end().total(), 1999);

    // A device with room for ten.
    let mut world = World::new(Some(Box::new(Ram::new(10))), 0, "");
    manage(&world.engine, BASE..BASE + 600, Access::Write);
    world.fill(BASE..BASE + 600, noise);
    assert_eq!(world.run_to_end().get(Reason::NoPlace), 590);
    balances(&world.engine, GRANTED);
}

/// Entries of the pool, and copies that are kept there, give their memory when several have gone.
#[test]
fn what_the_pool_holds_leaves_to_the_last_entry() {
    let mut world = World::new(Some(Box::new(Ram::new(4096))), 400, "");
    manage(&world.engine, BASE..BASE + 600, Access::Write);
    world.fill(BASE..BASE + 600, prose);
    while !matches!(world.engine.reclaim(&mut world.work), Progress::Nothing) {
        if world.present() == 0 && world.engine.swap().cached() == 0 {
            break;
        }
    }
    world.complete();
    let pool = world.engine.swap().zswap().pool_pages();
    assert!(pool > 0);
    // Some come back, and leave copies.
    world.engine.keep_copies(true);
    for number in (BASE..BASE + 600).step_by(37) {
        world.engine.fault(page(number), false, fake::clock(), &mut world.work);
    }
    assert!(world.engine.swap().copies() > 0);
    assert_eq!(world.run_to_end().total(), 0);
    assert_eq!((world.engine.swap().zswap().pool_pages(), world.engine.swap().copies()), (0, 0));
    balances(&world.engine, GRANTED);
}

/// Memory of the pool that a fork shares is free when both have let go of it: each does so as its last resort.
#[test]
fn what_forks_share_of_the_pool_leaves_too() {
    let mut world = World::new(Some(Box::new(Ram::new(4096))), 400, "");
    manage(&world.engine, BASE..BASE + 900, Access::Write);
    world.fill(BASE..BASE + 600, prose);
    while world.present() > 0 || world.engine.swap().cached() > 0 {
        world.engine.reclaim(&mut world.work);
    }
    world.complete();
    world.engine.swap().zswap().freeze();
    world.engine.charge_pool();
    let shared = world.engine.swap().zswap().frozen_pages();
    assert!(shared > 0);
    // What is its own goes first.
    world.fill(BASE + 600..BASE + 900, prose);
    assert_eq!(world.census(), Step::Left);
    assert_eq!(world.engine.swap().zswap().frozen_pages(), shared);
    assert_eq!(world.run_to_end().total(), 0);
    assert_eq!((world.engine.swap().zswap().pool_pages(), world.present()), (0, 0));
    balances(&world.engine, GRANTED);
}

#[test]
fn what_is_on_its_way_is_no_proof() {
    let device = Arc::new(Deferred::new(4096));
    let mut world = World::new(Some(Shared::new(&device)), 0, "");
    manage(&world.engine, BASE..BASE + 400, Access::Write);
    world.fill(BASE..BASE + 400, noise);
    assert_eq!(world.census(), Step::Left);
    for _ in 0..5 {
        // The device has as much to write as it may, and has not said how that ends.
        assert!(matches!(world.census(), Step::Left | Step::Moving));
    }
    assert_eq!(world.census(), Step::Moving);
    while device.release(0) {
        world.complete();
        while matches!(world.census(), Step::Left) {}
    }
    assert_eq!(world.run_to_end().total(), 0);

    // Written, and failed: what comes back has no place.
    let failing = Faulty::new(Box::new(Ram::new(4096)), Direction::Write, 1, Failure::Errno(5));
    let mut world = World::new(Some(Shared::new(&Arc::new(failing))), 0, "");
    manage(&world.engine, BASE..BASE + 400, Access::Write);
    world.fill(BASE..BASE + 400, noise);
    assert_eq!(world.run_to_end().get(Reason::NoPlace), 400);
    balances(&world.engine, GRANTED);
}

#[test]
fn where_a_census_finds_nothing_ordinary_reclaim_finds_nothing_either() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let blocks = random.below(600);
        let device: Option<Box<dyn Device>> =
            if random.one_in(2) { Some(Box::new(Ram::new(blocks))) } else { None };
        let ways = ["", "remap", "move", "copy"][random.below(4) as usize];
        let mut world = World::new(device, random.below(200) as usize, ways);
        world.engine.memory().set_can_move(ways != "move");
        manage(&world.engine, BASE..BASE + 3000, Access::Write);
        for _ in 0..random.below(4) {
            let start = BASE + random.below(2900);
            mark(&world, start..start + 1 + random.below(100), |attributes| attributes.locked = true);
        }
        world.fill(BASE..BASE + 3000, compose);
        if random.one_in(2) {
            world.engine.memory().share();
        }
        for _ in 0..random.below(40) {
            // Some is out, or on probation, in the pool with a copy, or has been.
            world.engine.reclaim(&mut world.work);
            world.complete();
        }
        let tally = world.run_to_end();
        assert_eq!(tally.total(), world.present(), "seed {seed}: {tally:?}");
        for _ in 0..40 {
            let progress = world.engine.reclaim(&mut world.work);
            world.complete();
            assert!(!matches!(progress, Progress::Freed(1..)), "seed {seed}: {progress:?} after {tally:?}");
        }
        balances(&world.engine, GRANTED);
    }
}
