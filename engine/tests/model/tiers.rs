//! Devices of two tiers: where pages go when one of them fails, or is slow.

use crate::common::{manage, noise};
use crate::drawn::{EIO, ENOSPC};
use crate::small::{BASE, on_device, scattered};
use crate::world::World;
use pagetide::fake::Setup;
use pagetide::regions::Access;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Completion, Cost, Device, Direction, Request};
use pagetide_swap::Counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks of the tiers.
const FIRST: u64 = 512;
const SECOND: u64 = 600;

fn two_tiers(device: Box<dyn Device>) -> World {
    let tiers = vec![FIRST as usize, SECOND as usize];
    let setup = Setup { device: Some(device), tiers, pool_pages_max: 0, ..Setup::default() };
    let world = World::new(setup, 300);
    manage(&world.engine, BASE..BASE + 1024, Access::Write);
    world
}

#[test]
fn where_one_tier_takes_nothing_pages_go_to_the_other() {
    for (errno, counter) in [(EIO, Counter::write_error), (ENOSPC, Counter::write_full)] {
        let failure = Failure::Errno(errno);
        let device = Faulty::at(Box::new(Ram::new(FIRST + SECOND)), Direction::Write, 0..FIRST, failure);
        let mut world = two_tiers(Box::new(device));
        let put = |world: &mut World, round| {
            scattered().for_each(|number| world.put(number, noise(number + round)));
            world.push_out();
        };
        put(&mut world, 0);
        assert!(world.counter(counter) > 0);
        put(&mut world, 1000);
        assert!(scattered().all(|number| on_device(&world, number)), "errno {errno}");
        let (engine, blocks) = (&world.engine, world.engine.swap().blocks());
        assert_eq!((blocks.used_of(0), blocks.used_of(1)), (0, 32));
        assert_eq!([0, 1].map(|tier| engine.has_failed_writes(tier)), [errno == EIO, false]);
        assert!(engine.can_write() && !engine.is_full());
        scattered().for_each(|number| world.read(number));
        world.check_end();
    }
}

/// A device whose tiers take so many nanoseconds for a read.
#[derive(Debug)]
struct Costly(Ram, Arc<[AtomicU64; 2]>);

impl Device for Costly {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn cost(&self, block: u64) -> Cost {
        Cost { read_ns: self.1[usize::from(block >= FIRST)].load(Relaxed) }
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        self.0.submit(request)
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.0.wait(into);
    }
    fn nudge(&self) {
        self.0.nudge();
    }
}

#[test]
fn pages_go_first_to_the_tier_that_is_cheaper_by_a_quarter() {
    let costs = Arc::new([100, 100].map(AtomicU64::new));
    let mut world = two_tiers(Box::new(Costly(Ram::new(FIRST + SECOND), Arc::clone(&costs))));
    let mut used = [0, 0];
    // The costs, and the tier to which pages go then.
    let steps = [([100, 100], 0), ([100, 80], 0), ([100, 70], 1), ([60, 70], 1), ([50, 70], 0)];
    for (round, (cost, wanted)) in steps.into_iter().enumerate() {
        costs.iter().zip(cost).for_each(|(word, cost)| word.store(cost, Relaxed));
        world.engine.prefer_cheapest_tier();
        let first = BASE + 64 * round as u64;
        (first..first + 16).for_each(|number| world.put(number, noise(number)));
        world.push_out();
        used[wanted] += 16;
        let blocks = world.engine.swap().blocks();
        assert_eq!([blocks.used_of(0), blocks.used_of(1)], used, "round {round}");
    }
    world.check_end();
}
