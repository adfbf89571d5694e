//! What is read ahead of faults, and what is not.

use crate::common::{Shared, manage, page, pages, prose};
use crate::small::{BASE, plain, written_behind_a_slow_device, written_in_order};
use crate::world::{Action, World};
use pagetide::fake::Setup;
use pagetide::regions::Access;
use pagetide_device::Device;
use pagetide_device::ram::Ram;
use pagetide_swap::{Config, Counter, Readahead, State};
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

#[test]
fn what_a_call_announces_comes_in_by_one_fault_and_nothing_behind_it() {
    for device in [None, Some(Shared::new(&Arc::new(Ram::new(4096))) as Box<dyn Device>)] {
        let pool_pages_max = if device.is_none() { 400 } else { 0 };
        let mut world = plain(device, pool_pages_max, 900);
        (BASE..BASE + 512).for_each(|number| world.put(number, prose(number)));
        world.push_out();
        let came = |world: &World| {
            let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
            (faults, ahead, world.counter(Counter::swap_ra_hit))
        };
        let call = world.engine.announce(pages(BASE + 32..BASE + 48)).expect("it is sixteen pages");
        (BASE + 32..BASE + 48).for_each(|number| world.read(number));
        assert_eq!(came(&world), (1, 15, 15));
        // What goes on behind it is a scan that has begun.
        (BASE + 48..BASE + 50).for_each(|number| world.read(number));
        assert_eq!(came(&world), (2, 16, 15));
        world.engine.retract(call);
        world.read(BASE + 100);
        assert_eq!(came(&world).1, 16);
        world.check_end();
    }
}

#[test]
fn calls_in_order_are_read_ahead_of_as_any_scan() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    for first in (BASE..BASE + 512).step_by(4) {
        let call = world.engine.announce(pages(first..first + 4)).expect("it is four pages");
        (first..first + 4).for_each(|number| world.read(number));
        world.engine.retract(call);
    }
    let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
    assert_eq!(faults + ahead, 512);
    assert!(faults < 20, "{faults} faults");
    world.check_end();
}

#[test]
fn the_rule_of_readahead_holds_for_calls_too() {
    // Pages from the device that come in with one that is there, in the buffer of a call on 64 pages or in none.
    let come = |readahead, page_cluster, announces: bool| {
        let config = Config { readahead, page_cluster, ..Config::for_cap(2000) };
        let device: Option<Box<dyn Device>> = Some(Shared::new(&Arc::new(Ram::new(4096))));
        let mut world = World::new(Setup { device, pool_pages_max: 0, config, ..Setup::default() }, 900);
        manage(&world.engine, BASE..BASE + 1024, Access::Write);
        (BASE..BASE + 512).for_each(|number| world.put(number, prose(number)));
        world.push_out();
        if announces {
            _ = world.engine.announce(pages(BASE + 100..BASE + 164));
        }
        world.read(BASE + 103);
        let ahead = world.counter(Counter::swap_ra);
        world.check_end();
        ahead
    };
    assert_eq!(come(Readahead::None, 6, true), 0);
    assert_eq!(come(Readahead::Object, 6, false), 0);
    assert_eq!([0, 3, 6].map(|page_cluster| come(Readahead::Object, page_cluster, true)), [0, 7, 60]);
    assert_eq!(come(Readahead::Cluster, 3, true), come(Readahead::Cluster, 3, false));
}

#[test]
fn a_call_ends_where_memory_may_not_be_touched() {
    let mut world = plain(None, 400, 900);
    (BASE..BASE + 512).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    manage(&world.engine, BASE + 40..BASE + 44, Access::None);
    world.engine.announce(pages(BASE + 32..BASE + 64)).expect("it is 32 pages");
    world.read(BASE + 32);
    assert_eq!(world.counter(Counter::swap_ra), 7);
    assert_eq!(world.word(page(BASE + 44)).state(), State::Swapped);
    world.check_books();
}

#[test]
fn a_long_call_comes_in_window_by_window_up_to_its_end() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    let call = world.engine.announce(pages(BASE..BASE + 300)).expect("it is more than a page");
    (BASE..BASE + 300).for_each(|number| world.read(number));
    let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
    assert_eq!(faults + ahead, 300);
    assert!(faults <= 6, "{faults} faults");
    world.engine.retract(call);
    world.check_end();
}
