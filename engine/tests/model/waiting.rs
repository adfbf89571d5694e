//! Faults that wait for room, or for the end of a rest.

use crate::common::{manage, noise, page, prose};
use crate::small::{BASE, on_device, plain};
use crate::world::{AREA, Action, World};
use pagetide::engine::{Limits, Progress};
use pagetide::fake::{self, Setup};
use pagetide::regions::Access;
use pagetide_device::ram::Ram;
use pagetide_device::{Completion, Cost, Device, Request};
use pagetide_swap::{Counter, State};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn a_fault_without_room_is_answered_when_there_is_some() {
    let mut world = plain(None, 0, 2);
    world.put(BASE, noise(1));
    world.put(BASE + 1, noise(2));
    let mut access = world.access(page(BASE + 2), Action::Write(7));
    assert!(!world.step(&mut access) && !world.step(&mut access) && !world.step(&mut access));
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (1, 1));
    assert!(world.engine.is_short());
    // Nothing can leave: there is no pool and no device.
    world.push_out();
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    world.engine.budget().give(1);
    world.granted += 1;
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_books();
    world.check_end();
}

#[test]
fn for_a_fault_that_waits_a_part_of_the_oldest_slot_is_stored_and_no_more() {
    let limits = Limits { low: 16, high: 32, probation: 4 };
    let mut world = World::new(Setup { pool_pages_max: 400, limits, ..Setup::default() }, 2600);
    manage(&world.engine, BASE..AREA.end, Access::Write);
    // The two that leave first are small, or the first would be stored when the second leaves.
    let pages = [0..32, 512..544, 1024..2200].map(|part| BASE + part.start..BASE + part.end);
    pages.iter().cloned().flatten().for_each(|number| world.put(number, prose(number)));
    // What came in ahead of them.
    for part in [32..512, 544..1024] {
        world.discard(BASE + part.start..BASE + part.end);
    }
    let take_out = |world: &mut World| {
        assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "on probation");
    };
    let stored = |world: &World| {
        let of = |part: &Range<u64>| {
            part.clone().filter(|&number| world.word(page(number)).state() == State::Swapped).count()
        };
        [of(&pages[0]), of(&pages[1])]
    };
    let wait = |world: &mut World, nth: u64| {
        let free = world.engine.budget().free();
        world.engine.budget().take(free);
        world.granted -= free;
        let mut access = world.access(page(BASE + 4 * 512 + 300 + 9 * nth), Action::Write(7));
        assert!(!world.step(&mut access) && !world.step(&mut access));
        assert_eq!(world.engine.waiting(), 1);
        access
    };
    take_out(&mut world);
    let mut access = wait(&mut world, 0);
    // The only slot on probation is left alone: its pages left just now.
    world.engine.reclaim_directly(&mut world.work);
    assert_eq!((stored(&world), world.counter(Counter::pgsteal_direct)), ([0, 0], 0));
    take_out(&mut world);
    for folios in 1..3 {
        world.engine.reclaim_directly(&mut world.work);
        assert_eq!((world.engine.waiting(), stored(&world)), (0, [16 * folios, 0]));
        assert!(world.step(&mut access));
        world.check_books();
        if folios < 2 {
            access = wait(&mut world, folios as u64);
        }
    }
    assert_eq!(world.counter(Counter::pgsteal_direct), 32);
    world.check_end();
}

/// A device that takes no request while it is shut.
#[derive(Debug)]
struct Door {
    inner: Ram,
    shut: Arc<AtomicBool>,
}

impl Device for Door {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn cost(&self, block: u64) -> Cost {
        self.inner.cost(block)
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        if self.shut.load(SeqCst) { Err(request) } else { self.inner.submit(request) }
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.inner.wait(into);
    }
    fn nudge(&self) {
        self.inner.nudge();
    }
}

#[test]
fn a_fault_that_the_device_refused_is_answered_when_that_takes_more_also_during_a_fork() {
    for forks in [false, true] {
        let shut = Arc::new(AtomicBool::new(false));
        let mut world = plain(Some(Box::new(Door { inner: Ram::new(64), shut: Arc::clone(&shut) })), 0, 300);
        world.put(BASE, noise(1));
        world.push_out();
        assert!(on_device(&world, BASE));
        shut.store(true, SeqCst);
        world.engine.hold_waiting(forks);
        let mut access = world.access(page(BASE), Action::Read);
        assert!(!world.step(&mut access) && !world.step(&mut access));
        // It wants for no memory.
        let engine = &world.engine;
        assert_eq!((engine.waiting(), engine.waiting_for_device(), engine.stalled()), (0, 1, 1));
        assert!(!engine.is_short());
        engine.complete(&mut Vec::new(), &mut world.work);
        assert_eq!((world.engine.waiting_for_device(), world.engine.stalled()), (1, 1));
        shut.store(false, SeqCst);
        world.engine.complete(&mut Vec::new(), &mut world.work);
        world.drain_requests();
        assert!(world.step(&mut access));
        world.engine.hold_waiting(false);
        world.check_end();
    }
}

#[test]
fn faults_of_a_process_that_rests_wait_whatever_room_there_is() {
    let mut world = plain(None, 0, 10);
    world.rests = true;
    let mut access = world.access(page(BASE), Action::Write(7));
    assert!(!world.step(&mut access) && !world.step(&mut access));
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    // It wants nothing meanwhile: others may have what there is.
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (0, 0));
    assert!(world.engine.end_rest() && !world.engine.end_rest());
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (1, 1));
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_end();
}

#[test]
fn a_fork_answers_what_rests_or_waits_also_without_room() {
    let mut world = plain(None, 0, 1);
    world.put(BASE, noise(1));
    let mut waits = world.access(page(BASE + 1), Action::Write(7));
    assert!(!world.step(&mut waits) && !world.step(&mut waits));
    world.rests = true;
    let mut rests = world.access(page(BASE + 2), Action::Write(8));
    assert!(!world.step(&mut rests) && !world.step(&mut rests));
    world.engine.hold_waiting(true);
    world.end_rest();
    assert_eq!(world.engine.waiting(), 2);
    world.engine.answer_waiting(&mut world.work);
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (0, 0));
    assert!(world.step(&mut waits) && world.step(&mut rests));
    world.engine.hold_waiting(false);
    world.check_books();
    world.check_end();
}

#[test]
fn faults_that_are_held_back_wait() {
    let mut world = plain(None, 0, 10);
    let mut access = world.access(page(BASE), Action::Write(7));
    assert!(!world.step(&mut access));
    world.engine.hold_waiting(true);
    access.delivered = true;
    world.engine.park(page(BASE), true, fake::clock());
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    world.engine.hold_waiting(false);
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_end();
}
