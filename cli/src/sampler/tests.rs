//! Tests of the sampler with processes that only sleep.

use super::watch::{DEAF_SAMPLES, FORK_SAMPLES};
use super::*;
use crate::testing::group;
use pagetide_sys::procfs::Identity;
use rustix::process::Pid;
use std::process::{Child, Command};

fn identity(pid: u32) -> Identity {
    Identity { pid, start_time: procfs::start_time(pid).unwrap(), ..Identity::own() }
}

/// Of a run whose launcher has no children: those of this process are other tests'.
fn sampler(group: Group, fd: &OwnedFd) -> Sampler {
    Sampler { launcher: u32::MAX, ..Sampler::new(group, fd, None, true) }
}

fn sleeper() -> Child {
    Command::new("sleep").arg("100").spawn().unwrap()
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_is_charged_while_it_lives_and_released_when_it_dies() {
    let (fd, group) = group(100_000);
    let mut sampler = sampler(group, &fd);
    let child = sleeper();
    let slot = group.claim(identity(child.id())).unwrap();
    slot.counters().add(Counter::pswpin, 3);
    sampler.sample();
    let observed = slot.get(Field::Observed);
    assert!(observed > 0 && slot.granted() >= observed as i64 && group.free() < 100_000);
    // A zombie is gone already.
    rustix::process::kill_process(Pid::from_raw(child.id() as i32).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    while procfs::start_time(child.id()).is_some() {
        std::thread::yield_now();
    }
    sampler.sample();
    assert_eq!((group.live().count(), group.free()), (0, 100_000));
    assert_eq!((sampler.now().pages, sampler.now().counter(Counter::pswpin)), (Pages::default(), 3));
    assert!(sampler.peak().total >= observed);
    end(child);
}

#[test]
fn a_slot_of_an_earlier_owner_of_the_pid_is_released() {
    let (fd, group) = group(1000);
    let slot = group.claim(Identity { start_time: 1, ..Identity::own() }).unwrap();
    slot.set(Field::Armed, 1);
    sampler(group, &fd).sample();
    assert_eq!(group.live().count(), 0);
}

#[test]
fn a_program_after_exec_is_watched_anew() {
    let (fd, group) = group(1000);
    let mut sampler = sampler(group, &fd);
    let before = group.claim(Identity::own()).unwrap();
    before.set(Field::Armed, 1);
    sampler.sample();
    group.release([before]);
    let after = group.claim(Identity::own()).unwrap();
    after.set(Field::Armed, 1);
    assert_eq!(after.index(), before.index());
    sampler.watch(&[after]);
    let watch = &sampler.watches[&after.index()];
    assert_eq!((watch.tenant, watch.memory), (after.tenant(), procfs::Watched::default()));
}

#[test]
fn a_fork_under_way_is_given_time() {
    let (fd, group) = group(1000);
    let mut sampler = sampler(group, &fd);
    let child = sleeper();
    group.claim(identity(child.id())).unwrap();
    group.claim(Identity::UNKNOWN).unwrap();
    sampler.sample();
    assert_eq!(group.live().count(), 2);
    end(child);
    // The first of these finds the child dead.
    for _ in 0..=FORK_SAMPLES {
        sampler.sample();
        assert_eq!(group.live().count(), 1);
    }
    sampler.sample();
    assert_eq!(group.live().count(), 0);
}

#[test]
fn a_slot_for_the_child_of_a_forker_that_was_killed_is_given_back_while_others_live() {
    let (fd, group) = group(1000);
    let mut sampler = sampler(group, &fd);
    let [forker, other] = [sleeper(), sleeper()];
    let [parent, _] = [&forker, &other].map(|child| group.claim(identity(child.id())).unwrap());
    let child = group.claim_for_child(parent).unwrap();
    let taken = || child.get(Field::Taken) == 1;
    end(forker);
    // The first of these finds the forker dead.
    for _ in 0..=FORK_SAMPLES {
        sampler.sample();
        assert!(taken());
    }
    sampler.sample();
    assert!(!taken() && group.live().count() == 1);
    end(other);
}

/// Kept free for programs that start, where there are two.
const RESERVED: i64 = 256;

#[test]
fn of_what_a_small_process_does_not_touch_it_keeps_little() {
    let (fd, group) = group(100_000);
    let mut sampler = sampler(group, &fd);
    let [child, large] = [sleeper(), sleeper()];
    let [slot, rich] = [(&child, 1500), (&large, 4000)].map(|(child, grant)| {
        let slot = group.claim(identity(child.id())).unwrap();
        assert!(group.take(grant, 0));
        slot.set(Field::Grant, grant as u64);
        slot
    });
    // A shell that has just become the sleeper may still grow.
    let ready = |slot: ProcessSlot| slot.granted() < 1500;
    while !ready(slot) {
        sampler.sample();
        std::thread::sleep(INTERVAL);
    }
    let observed = slot.get(Field::Observed) as i64;
    let uncounted = slot.granted() - observed - group.step() / IDLE_SPARE;
    assert!((0..=sampler.inexact).contains(&uncounted), "{uncounted}");
    assert_eq!((rich.granted(), group.free()), (4000, 100_000 - RESERVED - 4000 - slot.granted()));
    // It takes more: nothing is lost.
    assert!(group.take(700, 0));
    slot.word(Field::Grant).fetch_add(700, AcqRel);
    group.release([slot, rich]);
    assert_eq!(group.free(), 100_000 - RESERVED);
    [child, large].into_iter().for_each(end);
}

#[test]
fn who_does_not_answer_is_not_counted_on() {
    let (fd, group) = group(1000);
    let child = sleeper();
    let [deaf, other] = [900, 500].map(|grant| {
        let slot = group.claim(identity(child.id())).unwrap();
        slot.set(Field::Armed, 1);
        slot.set(Field::Grant, grant);
        slot.listen();
        slot
    });
    // A sixteenth of the cap is kept free for programs that start.
    group.take_anyway(900 + 500 - 1000 / 16);
    let mut sampler = sampler(group, &fd);
    let asked = || [deaf, other].map(|slot| slot.get(Field::Asked));
    sampler.sample();
    assert_eq!(asked(), [400, 0]);
    for _ in 0..DEAF_SAMPLES {
        assert_eq!((asked(), deaf.get(Field::Listens)), ([400, 0], 1));
        sampler.sample();
    }
    (0..2).for_each(|_| _ = sampler.sample());
    assert_eq!((asked(), deaf.get(Field::Listens)), ([400, 400], 0));
    end(child);
}

#[test]
fn an_overdrawn_cap_is_asked_back_once_even_of_a_single_process() {
    let (fd, group) = group(1000);
    let child = sleeper();
    let slot = group.claim(identity(child.id())).unwrap();
    slot.set(Field::Armed, 1);
    slot.listen();
    slot.set(Field::Grant, 900);
    group.take_anyway(900 + 150);
    let mut sampler = sampler(group, &fd);
    sampler.sample();
    assert_eq!(slot.get(Field::Asked), 50);
    sampler.sample();
    assert_eq!(slot.get(Field::Asked), 50);
    end(child);
}
