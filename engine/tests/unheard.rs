//! Calls that nobody tells the engine of: mappings that go, and pages that come, while it has theirs on probation. It
//! waits for nothing that cannot happen, and its books balance.

mod common;

use common::{balances, manage, noise, page, pages, prose};
use pagetide::engine::{Engine, Limits, Workspace};
use pagetide::fake::{self, Bytes, FakeMemory, Miss, Setup};
use pagetide::regions::Access;
use pagetide_swap::State;

const GRANTED: i64 = 500;
/// More rounds than anything here takes.
const ROUNDS: usize = 1000;

fn engine(pool_pages_max: usize) -> Engine<FakeMemory> {
    let engine = fake::engine(Setup {
        slots: 4,
        limits: Limits { low: 16, high: 32, probation: 2 },
        pool_pages_max,
        ..Setup::default()
    });
    engine.budget().give(GRANTED);
    manage(&engine, 512..2048, Access::Write);
    engine
}

fn write(engine: &Engine<FakeMemory>, number: u64, bytes: &Bytes) {
    while let Err(miss) = engine.memory().write(page(number), bytes) {
        assert!(matches!(miss, Miss::Fault(_)), "{number} is poisoned");
        engine.fault(page(number), true, 0, &mut Workspace::default());
    }
}

fn state(engine: &Engine<FakeMemory>, number: u64) -> State {
    engine.swap().table().peek(page(number)).state()
}

/// Has a page's cluster leave, until it is on probation.
fn take_out(engine: &Engine<FakeMemory>, number: u64) {
    for _ in 0..ROUNDS {
        if state(engine, number) == State::Cached {
            return;
        }
        engine.hasten(pages(number..number + 1), true);
        engine.reclaim(&mut Workspace::default());
    }
    panic!("{:?}", engine.swap().table().peek(page(number)));
}

/// What a fork waits for.
fn drain(engine: &Engine<FakeMemory>) {
    engine.hold_waiting(true);
    let mut work = Workspace::default();
    assert!((0..ROUNDS).any(|_| engine.drain(&mut work)), "it never ends: {engine:?}");
    balances(engine, GRANTED);
    assert_eq!((engine.usage().frames, engine.memory().frames()), (0, 0));
}

#[test]
fn what_is_to_move_does_not_wait_for_pages_of_a_mapping_that_is_gone() {
    let engine = engine(64);
    write(&engine, 600, &prose(1));
    write(&engine, 700, &prose(2));
    take_out(&engine, 600);
    engine.memory().unmap(pages(600..601));
    engine.recall(pages(512..1024));
    assert_eq!((state(&engine, 600), state(&engine, 700)), (State::Hole, State::Present));
    drain(&engine);
}

#[test]
fn a_fork_does_not_wait_for_pages_of_a_mapping_that_is_gone() {
    // Neither pool nor device takes them.
    let engine = engine(0);
    write(&engine, 600, &noise(1));
    take_out(&engine, 600);
    engine.memory().unmap(pages(600..601));
    drain(&engine);
    assert_eq!(state(&engine, 600), State::Hole);
}

#[test]
fn a_page_that_came_while_its_older_self_was_on_probation_leaves_by_itself() {
    for source in [Some(prose(9)), None] {
        let engine = engine(64);
        write(&engine, 600, &prose(1));
        take_out(&engine, 600);
        write(&engine, 700, &prose(2));
        engine.memory().put(page(600), source.as_deref());
        take_out(&engine, 700);
        drain(&engine);
    }
}

#[test]
fn a_page_that_came_before_its_fault_was_answered_counts_once() {
    let engine = engine(64);
    write(&engine, 600, &prose(1));
    write(&engine, 700, &prose(2));
    take_out(&engine, 600);
    assert!(matches!(engine.memory().read(page(600)), Err(Miss::Fault(_))));
    engine.memory().put(page(600), Some(&prose(9)));
    engine.fault(page(600), false, 0, &mut Workspace::default());
    assert_eq!(state(&engine, 600), State::Present);
    assert_eq!(engine.memory().read(page(600)).unwrap(), prose(9));
    engine.fault(page(700), false, 0, &mut Workspace::default());
    drain(&engine);
}
