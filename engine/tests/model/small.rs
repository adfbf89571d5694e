//! Small worlds, for tests of one behaviour each.

use crate::common::{Shared, manage, noise, page};
use crate::world::World;
use pagetide::fake::Setup;
use pagetide::mask::Mask;
use pagetide::regions::Access;
use pagetide_device::deferred::Deferred;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Device, Direction};
use pagetide_swap::State;
use std::sync::Arc;

pub(crate) const BASE: u64 = 1001 * 512;

/// A world with one region, room for `granted` pages and no pool unless `pool_pages_max` says so.
pub(crate) fn plain(device: Option<Box<dyn Device>>, pool_pages_max: usize, granted: i64) -> World {
    set_up(Setup { device, pool_pages_max, ..Setup::default() }, granted)
}

/// The same, without a device and some of the ways.
pub(crate) fn masked(mask: Mask, pool_pages_max: usize, granted: i64) -> World {
    set_up(Setup { mask, pool_pages_max, ..Setup::default() }, granted)
}

fn set_up(setup: Setup, granted: i64) -> World {
    let world = World::new(setup, granted);
    manage(&world.engine, BASE..BASE + 1024, Access::Write);
    world
}

pub(crate) fn on_device(world: &World, number: u64) -> bool {
    matches!(world.word(page(number)).place(), Some(pagetide_swap::Place::Device(_)))
        && world.word(page(number)).state() == State::Swapped
}

pub(crate) fn faulty(direction: Direction, nth: u64, failure: Failure) -> Option<Box<dyn Device>> {
    Some(Box::new(Faulty::new(Box::new(Ram::new(4096)), direction, nth, failure)))
}

/// Every other page, so that each is a transfer of its own.
pub(crate) fn scattered() -> impl Iterator<Item = u64> {
    (BASE..BASE + 64).step_by(2)
}

pub(crate) fn deferred(pool_pages_max: usize, granted: i64) -> (World, Arc<Deferred>) {
    let device = Arc::new(Deferred::new(4096));
    let mut world = plain(Some(Shared::new(&device)), pool_pages_max, granted);
    world.deferred = Some(Arc::clone(&device));
    (world, device)
}

/// A world of which 512 pages that do not compress lie on the device, in order.
pub(crate) fn written_in_order(device: Option<Box<dyn Device>>) -> World {
    let mut world = plain(device, 0, 900);
    write_in_order(&mut world);
    world
}

/// The same, on a device that ends a request when it is told to.
pub(crate) fn written_behind_a_slow_device() -> (World, Arc<Deferred>) {
    let device = Arc::new(Deferred::new(4096));
    let mut world = plain(Some(Shared::new(&device)), 0, 900);
    world.deferred = Some(device.clone());
    write_in_order(&mut world);
    (world, device)
}

pub(crate) fn write_in_order(world: &mut World) {
    (BASE..BASE + 512).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert!((BASE..BASE + 512).all(|number| on_device(world, number)));
}
