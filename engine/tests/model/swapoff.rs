//! A device that goes out of use.

use crate::common::{Shared, noise, prose};
use crate::small::{BASE, on_device, plain, written_in_order};
use crate::world::World;
use pagetide::engine::Swapoff;
use pagetide_device::Direction;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_swap::Counter;
use std::sync::Arc;

/// Calls swapoff until it has an end. What it reads comes at once.
fn swapoff(world: &mut World) -> Swapoff {
    for _ in 0..10_000 {
        match world.engine.swapoff() {
            Swapoff::Goes => world.drain_requests(),
            end => return end,
        }
    }
    panic!("swapoff has no end")
}

#[test]
fn swapoff_moves_to_the_pool_what_fits_there_in_the_devices_order() {
    let device = Arc::new(Ram::new(4096));
    let mut world = plain(Some(Shared::new(&device)), 0, 900);
    // In any order but that of their addresses.
    (0..512).for_each(|nth| world.put(BASE + nth * 77 % 512, prose(nth)));
    world.push_out();
    assert!((BASE..BASE + 512).all(|number| on_device(&world, number)));
    world.engine.swap().zswap().set_pages_max(4096);
    let present = world.engine.usage().resident;
    assert_eq!(swapoff(&mut world), Swapoff::Done);
    assert_eq!((world.engine.swap().blocks().used(), world.engine.usage().resident), (0, present));
    assert!((BASE..BASE + 512).all(|number| !on_device(&world, number)));
    // Nothing goes there any more, and again when it is in use.
    let written = world.counter(Counter::pswpout);
    world.engine.swap().zswap().set_pages_max(0);
    (BASE + 512..BASE + 600).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert_eq!(world.counter(Counter::pswpout), written);
    world.engine.swapon();
    world.push_out();
    assert!(world.counter(Counter::pswpout) > written);
    world.check_end();
}

#[test]
fn swapoff_brings_into_the_program_what_the_pool_refuses() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    assert_eq!(swapoff(&mut world), Swapoff::Done);
    assert_eq!((world.engine.swap().blocks().used(), world.engine.usage().resident), (0, 512));
    world.check_end();
}

#[test]
fn swapoff_without_room_leaves_the_device_in_use_and_loses_nothing() {
    let mut world = plain(Some(Shared::new(&Arc::new(Ram::new(4096)))), 0, 300);
    for number in BASE..BASE + 512 {
        world.put(number, noise(number));
        if number % 64 == 63 {
            world.push_out();
        }
    }
    let before = world.engine.swap().blocks().used();
    assert!(before > 300);
    assert_eq!(swapoff(&mut world), Swapoff::NoRoom);
    assert!(world.engine.swap().blocks().used() > 0 && world.engine.can_write());
    world.push_out();
    assert!(world.engine.swap().blocks().used() >= before);
    world.check_end();
}

#[test]
fn swapoff_leaves_the_page_that_cannot_be_read_where_it_is() {
    let device = Faulty::at(Box::new(Ram::new(4096)), Direction::Read, 100..101, Failure::Errno(5));
    let mut world = written_in_order(Some(Box::new(device)));
    world.may_lose = true;
    assert_eq!(swapoff(&mut world), Swapoff::NoRoom);
    assert_eq!((world.memory().poisoned().len(), world.engine.swap().blocks().used()), (0, 1));
    // Whoever touches it finds that it is lost.
    (BASE..BASE + 512).for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len(), 1);
    world.check_end();
}
