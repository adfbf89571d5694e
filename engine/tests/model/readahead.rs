//! What is read ahead of faults, and what is not.

use crate::common::{Shared, page, prose};
use crate::small::{BASE, plain, written_behind_a_slow_device, written_in_order};
use crate::world::{Action, World};
use pagetide_device::ram::Ram;
use pagetide_swap::Counter;
use std::sync::Arc;

#[test]
fn a_scan_that_is_faster_than_the_device_always_leaves_it_something_to_do() {
    let (mut world, device) = written_behind_a_slow_device();
    for number in BASE..BASE + 512 {
        let mut access = world.access(page(number), Action::Read);
        while !world.step(&mut access) {
            if access.delivered && device.release(0) {
                let busy = device.held() > 0;
                world.complete();
                // Windows begin small, and there is an end.
                assert!(busy || !(BASE + 160..BASE + 384).contains(&number), "nothing is read at {number}");
            }
        }
    }
    let faults = world.counter(Counter::pgmajfault);
    assert!(faults < 20, "{faults} faults");
    world.check_end();
}

#[test]
fn a_scan_is_read_ahead_of_up_and_down() {
    for downwards in [false, true] {
        let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
        world.scan(BASE..BASE + 512, downwards);
        let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
        assert_eq!((world.counter(Counter::pswpin), faults + ahead), (512, 512));
        assert!(faults < 20, "{faults} faults");
        let hits = world.counter(Counter::swap_ra_hit);
        assert!(hits > 200 && hits <= ahead, "{hits} of {ahead} were passed");
        world.check_end();
    }
}

#[test]
fn eight_faults_at_one_entry_are_answered_by_one_read() {
    let (mut world, device) = written_behind_a_slow_device();
    let number = BASE + 300;
    let mut readers: Vec<_> = (0..8).map(|_| world.access(page(number), Action::Read)).collect();
    let mut ended = [false; 8];
    let mut step = |world: &mut World| {
        for (reader, ended) in readers.iter_mut().zip(&mut ended) {
            *ended = *ended || world.step(reader);
        }
        ended.iter().filter(|&&ended| ended).count()
    };
    // All fault, and all faults are told.
    (0..3).for_each(|_| assert_eq!(step(&mut world), 0));
    assert_eq!(device.held(), 1);
    assert!(device.release(0));
    world.complete();
    // The end of the read wakes all of them: nobody looks again.
    assert_eq!(step(&mut world), 8);
    assert_eq!((world.counter(Counter::pgmajfault), world.counter(Counter::pswpin)), (1, 1));
    world.check_end();
}

#[test]
fn random_reads_bring_in_single_pages() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    // Each lies far from those before.
    (0..64).for_each(|nth| world.read(BASE + nth * 203 % 512));
    // But for the first, which is near where the last page was written.
    let ahead = world.counter(Counter::swap_ra);
    assert!(ahead < 8, "{ahead} pages came ahead");
    world.check_end();
}

#[test]
fn a_scan_that_waits_for_room_keeps_its_window_and_takes_what_room_there_is() {
    const ROOM: i64 = 12;
    let mut world = plain(None, 900, 1700);
    (BASE..BASE + 512).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    let free = world.engine.budget().free();
    world.engine.budget().take(free);
    world.granted -= free;
    for number in BASE..BASE + 512 {
        let mut access = world.access(page(number), Action::Read);
        while !world.step(&mut access) {
            if world.engine.waiting() > 0 {
                world.engine.budget().give(ROOM);
                world.granted += ROOM;
                world.engine.retry_waiting(&mut world.work);
            }
        }
    }
    world.check_books();
    let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
    assert_eq!(faults + ahead, 512);
    assert!(faults < 2 * 512 / ROOM as u64, "{faults} faults");
    world.check_end();
}
