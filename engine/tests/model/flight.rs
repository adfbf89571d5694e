//! Faults and discards of pages that are on their way, and the end of all that is under way.

use crate::common::{noise, page, pages, prose};
use crate::small::{BASE, deferred, on_device};
use crate::world::Action;
use pagetide_swap::{Counter, State, Word};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_fault_on_a_page_whose_store_is_in_flight_is_answered_by_its_end() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    assert_eq!(device.held(), 1, "one write of 16 pages");
    let mut access = world.access(page(BASE + 3), Action::Write(99));
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert!(world.word(page(BASE + 3)).is_wanted());
    assert!(!world.step(&mut access), "it is parked");
    world.check_books();
    device.release(0);
    world.complete();
    assert!(world.step(&mut access), "the end of the store has mapped it");
    assert_eq!(world.word(page(BASE + 3)).state(), State::Present);
    assert!((BASE..BASE + 16).filter(|&number| number != BASE + 3).all(|number| on_device(&world, number)));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_fault_during_writeback_reads_the_copy_in_the_pool() {
    let (mut world, device) = deferred(100, 600);
    (BASE..BASE + 64).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    assert_eq!((device.held(), world.engine.requests()), (0, 0), "all in the pool");
    // A limit that the pool is above: its entries are written back.
    world.engine.swap().zswap().set_pages_max(1);
    world.engine.reclaim(&mut world.work);
    let flying: Vec<u64> =
        (BASE..BASE + 64).filter(|&number| world.word(page(number)).is_writeback()).collect();
    assert!(flying.len() > 8 && device.held() > 0, "{flying:?}");
    // Read one and write one while their copies are on their way, and discard one.
    let (read, written, gone) = (flying[0], flying[2], flying[4]);
    let mut access = world.access(page(read), Action::Read);
    assert!(
        !world.step(&mut access) && !world.step(&mut access) && world.step(&mut access),
        "no wait for I/O"
    );
    let mut access = world.access(page(written), Action::Write(12_345));
    assert!(
        !world.step(&mut access) && !world.step(&mut access) && world.step(&mut access),
        "no wait for I/O"
    );
    let memory = world.engine.memory();
    world.engine.discard(pages(gone..gone + 1), |part| memory.drop_pages(part));
    world.model.remove(&gone);
    world.check_books();
    world.drain_requests();
    assert!(world.counter(Counter::zswpwb) > 0);
    assert_eq!(world.word(page(gone)), Word::HOLE);
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_discard_waits_for_the_store_and_then_forgets_it() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    assert_eq!(device.held(), 1);
    let engine = Arc::clone(&world.engine);
    let (report, told) = std::sync::mpsc::channel();
    let discard = std::thread::spawn(move || {
        let memory = engine.memory();
        engine.discard(pages(BASE..BASE + 8), |part| memory.drop_pages(part));
        report.send(()).unwrap();
    });
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the pages are on their way");
    device.release(0);
    world.complete();
    told.recv_timeout(Duration::from_secs(20)).expect("the end of the store lets it go on");
    discard.join().unwrap();
    (BASE..BASE + 8).for_each(|number| _ = world.model.remove(&number));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_discard_waits_for_the_read_and_then_forgets_it() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    let mut access = world.access(page(BASE + 1), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert_eq!(device.held(), 1);
    let engine = Arc::clone(&world.engine);
    let discard = std::thread::spawn(move || {
        let memory = engine.memory();
        engine.discard(pages(BASE..BASE + 16), |part| memory.drop_pages(part));
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!discard.is_finished());
    device.release(0);
    world.complete();
    discard.join().unwrap();
    world.model.clear();
    // The access looks again: zeroes.
    world.threads[0] = Some(access);
    world.check_end();
}

#[test]
fn drain_ends_once_requests_are_released() {
    let (mut world, device) = deferred(0, 400);
    (BASE..BASE + 200).for_each(|number| world.put(number, noise(number)));
    world.engine.reclaim(&mut world.work);
    assert!(!world.engine.drain(&mut world.work), "writes are under way");
    assert!(device.held() > 0);
    for _ in 0..100 {
        device.release(0);
        world.complete();
        if world.engine.drain(&mut world.work) {
            break;
        }
    }
    world.drain();
    world.check_books();
    world.check_end();
}
