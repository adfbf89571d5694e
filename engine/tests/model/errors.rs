//! Devices that fail, and damage: no page comes back wrong.

use crate::common::{Shared, noise, page, prose};
use crate::drawn::{EIO, ENOSPC};
use crate::small::{BASE, deferred, faulty, on_device, plain, scattered, written_in_order};
use crate::world::Action;
use pagetide::engine::Progress;
use pagetide_device::Direction;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_swap::Counter;
use std::sync::Arc;

#[test]
fn a_read_error_poisons_that_page_only() {
    let mut world = plain(faulty(Direction::Read, 5, Failure::Errno(5)), 0, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert!(scattered().all(|number| on_device(&world, number)));
    scattered().for_each(|number| world.read(number));
    // One read in five. Five of them were of pages that nobody had asked for yet, which were read again then.
    let (errors, poisoned) = (world.counter(Counter::read_error), world.memory().poisoned());
    assert_eq!((errors, poisoned.len()), (7, 2));
    // Those stay lost, the others stay right.
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned(), poisoned);
    world.check_books();
    // A poisoned page that is discarded is a page again.
    world.discard(BASE..BASE + 64);
    assert!(world.memory().poisoned().is_empty());
    world.may_lose = false;
    world.put(BASE, noise(1));
    world.read(BASE);
    world.check_end();
}

#[test]
fn a_block_that_cannot_be_read_loses_its_page_and_none_that_is_read_with_it() {
    for failure in [Failure::Errno(5), Failure::Corrupt, Failure::Short] {
        for downwards in [false, true] {
            let device = Faulty::at(Box::new(Ram::new(4096)), Direction::Read, 100..101, failure);
            let mut world = written_in_order(Some(Box::new(device)));
            world.may_lose = true;
            world.scan(BASE..BASE + 512, downwards);
            let lost = world.memory().poisoned();
            // Bytes are damaged at the start of the request, wherever the block is in it.
            assert!(lost.len() == 1, "{failure:?}: {lost:?}");
            world.check_end();
        }
    }
}

#[test]
fn damage_on_the_device_poisons_and_never_gives_wrong_bytes() {
    let mut world = plain(faulty(Direction::Read, 3, Failure::Corrupt), 0, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    // Each that is read is compared.
    scattered().for_each(|number| world.read(number));
    let (lost, damaged) = (world.memory().poisoned().len() as u64, world.counter(Counter::decompress_fail));
    // One read in three of 32, and of those that were read ahead again, when they were asked for.
    assert_eq!((lost, damaged), (7, 12));
    world.check_end();
}

#[test]
fn damage_in_a_window_poisons_no_page_that_was_not_asked_for_wrongly() {
    let mut world = plain(faulty(Direction::Read, 2, Failure::Corrupt), 0, 600);
    world.may_lose = true;
    (BASE..BASE + 256).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    (BASE..BASE + 256).for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len() as u64, world.counter(Counter::decompress_fail));
    world.check_end();
}

#[test]
fn damage_in_the_pool_poisons_and_never_gives_wrong_bytes() {
    let mut world = plain(None, 200, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, prose(number)));
    world.push_out();
    for number in scattered().take(4) {
        match world.word(page(number)).place() {
            Some(pagetide_swap::Place::Pool(handle)) => world.engine.swap().zswap().damage(handle),
            other => panic!("{number} is not in the pool but {other:?}"),
        }
    }
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len(), 4);
    world.check_end();
}

#[test]
fn a_write_error_keeps_the_pages() {
    for (errno, counter) in [(EIO, Counter::write_error), (ENOSPC, Counter::write_full)] {
        let mut world = plain(faulty(Direction::Write, 1, Failure::Errno(errno)), 0, 300);
        scattered().for_each(|number| world.put(number, noise(number)));
        world.push_out();
        assert_eq!(world.counter(Counter::pswpout), 0);
        assert!(world.counter(counter) > 0);
        assert_eq!(
            (world.engine.has_failed_writes(0), world.engine.can_write()),
            (errno == EIO, errno != EIO)
        );
        scattered().for_each(|number| assert!(!on_device(&world, number)));
        scattered().for_each(|number| world.read(number));
        assert_eq!(world.engine.swap().blocks().used(), 0);
        world.check_books();
        world.check_end();
    }
}

#[test]
fn a_disk_that_was_full_is_written_to_again() {
    let mut world = plain(faulty(Direction::Write, 2, Failure::Errno(ENOSPC)), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    // What was refused is due again some time, by a clock that counts how often it is read.
    // Each round has other bytes: pages that are as they were are not written again.
    for round in 1.. {
        world.push_out();
        assert!(world.engine.can_write());
        if world.counter(Counter::write_full) >= 3 && world.counter(Counter::pswpout) > 0 {
            break;
        }
        scattered().for_each(|number| world.put(number, noise(number + 1000 * round)));
    }
    scattered().for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn on_a_full_device_pages_stay() {
    let mut world = plain(Some(Box::new(Ram::new(10))), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert_eq!(scattered().filter(|&number| on_device(&world, number)).count(), 10);
    assert!(world.engine.take_refused() > 0);
    scattered().for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_fault_on_a_page_whose_store_fails_is_answered_with_the_page() {
    let device = Arc::new(Faulty::new(Box::new(Ram::new(64)), Direction::Write, 1, Failure::Errno(5)));
    let mut world = plain(Some(Shared::new(&device)), 0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    // The write fails at once, but its end is not seen yet.
    world.push_out_undrained();
    assert_eq!(world.engine.requests(), 1);
    let mut access = world.access(page(BASE + 3), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access) && !world.step(&mut access));
    world.complete();
    assert!(world.step(&mut access));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_page_that_a_fault_waits_for_outlives_a_moment_without_memory() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    let mut access = world.access(page(BASE + 3), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert!(world.word(page(BASE + 3)).is_wanted());
    // The store ends, and the kernel has no page for the mapping (a cgroup at its limit).
    world.memory().set_no_memory_every(1);
    device.release(0);
    world.complete();
    world.memory().set_no_memory_every(0);
    world.threads[0] = Some(access);
    world.check_end();
}

#[test]
fn drain_ends_although_the_kernel_had_no_memory_for_a_moment() {
    let mut world = plain(None, 0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved);
    // No place for the pages, and no memory to put them back.
    world.memory().set_no_memory_every(1);
    world.engine.drain(&mut world.work);
    world.memory().set_no_memory_every(0);
    world.drain();
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}
