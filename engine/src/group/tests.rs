//! Tests of the group page.

use super::GRANTED;
use super::layout::TierWord;
use super::*;
use pagetide_swap::{Counter, Switches};
use pagetide_sys::procfs::Identity;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

pub(super) fn process(pid: u32) -> Identity {
    Identity { pid, start_time: 1, namespace: 0 }
}

/// A swap file of so many blocks, and a remote tier.
fn tiers(file: u64, remote: u64) -> [TierSpec; TIERS] {
    let device = |kind, fd| DeviceSpec { kind, fd, identity: (3, fd) };
    [
        TierSpec { device: device(DeviceKind::File, 2), blocks: file },
        TierSpec { device: device(DeviceKind::Remote, 5), blocks: remote },
    ]
}

pub(super) fn setup(blocks: u64) -> Setup {
    Setup { tiers: tiers(blocks, 0), trace_fd: Some(0), ..Setup::new(1000, Identity::own()) }
}

/// Has the engine of a process run, with these figures, and listen to others.
fn arm<const FIELDS: usize>(slot: ProcessSlot, figures: [(Field, u64); FIELDS]) {
    slot.set(Field::Armed, 1);
    figures.into_iter().for_each(|(field, value)| slot.set(field, value));
    slot.listen();
}

#[test]
fn a_second_process_sees_what_the_first_set_up() {
    let (fd, group) = Group::create(setup(10_000)).unwrap();
    let other = Group::open(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd()))).unwrap();
    assert_eq!(other.setup(), group.setup());
    other.change_knobs(|knobs| {
        knobs.switches.enabled = false;
        knobs.max_pool_percent = 30;
    });
    let knobs = Knobs { switches: Switches { enabled: false, ..Switches::default() }, max_pool_percent: 30 };
    assert_eq!(group.knobs(), knobs);
    assert!(other.take(900, 50) && !other.take(60, 50));
    assert_eq!(group.free(), 100);
    assert_eq!(group.take_up_to(200), 100);
    group.give(1000);
    assert_eq!(other.free(), 1000);
}

#[test]
fn a_dead_process_leaves_its_counts_and_gives_back_the_rest() {
    let (_fd, group) = Group::create(setup(128)).unwrap();
    let slot = group.claim(process(7)).unwrap();
    assert!(group.take(300, 0));
    slot.set(Field::Grant, 300);
    slot.counters().add(Counter::pswpin, 5);
    slot.latency().record(Duration::from_micros(3));
    let blocks =
        pagetide_swap::blocks::Blocks::new(group.block_counts(), group.held(slot), group.frontiers());
    blocks.allocate(100).unwrap();
    assert_eq!(group.live().count(), 1);
    group.release([slot]);
    group.release([slot]);
    assert_eq!((group.live().count(), group.free()), (0, 1000));
    assert_eq!(group.dead().counters().get(Counter::pswpin), 5);
    let next = group.claim(process(9)).unwrap();
    assert_eq!(next.counters().get(Counter::pswpin), 0);
    let blocks =
        pagetide_swap::blocks::Blocks::new(group.block_counts(), group.held(next), group.frontiers());
    assert_eq!(blocks.allocate(200).unwrap().length, 128);
}

/// A process that has ended, for which nobody waits any more.
fn ended() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn who_is_short_takes_what_the_ended_had_before_the_launcher_looks() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let own = Identity::own();
    let [short, over, lives, forks, shares, far] = [own; 6].map(|process| group.claim(process).unwrap());
    let pid = ended();
    for slot in [short, over, lives, forks, shares, far] {
        assert!(group.take(100, 0));
        slot.set(Field::Grant, 100);
        slot.set(Field::Observed, 90);
        slot.set(Field::OwnPid, pid.into());
    }
    short.set(Field::OwnPid, own.pid.into());
    lives.set(Field::OwnPid, own.pid.into());
    // A child that has no name yet, one by which others share the pool, and one of which the pid says nothing here.
    forks.set(Field::StartTime, 0);
    shares.set(Field::PoolShared, 1);
    far.set(Field::Namespace, own.namespace + 1);
    let look = || {
        // At once it would be too soon.
        std::thread::sleep(Duration::from_millis(5));
        group.collect_from_ended(short);
    };
    // In a child of it that works in its memory.
    short.set(Field::OwnPid, u64::from(own.pid) + 1);
    look();
    assert_eq!(group.free(), 400);
    short.set(Field::OwnPid, own.pid.into());
    let taken = [90, 0, 90, 90, 90, 90];
    for _ in 0..2 {
        look();
        assert_eq!(group.free(), 500, "only of the one that is over");
        let slots = [short, over, lives, forks, shares, far];
        assert_eq!(slots.map(|slot| slot.get(Field::Observed)), taken);
        assert_eq!(group.live().count(), slots.len(), "slots are the launcher's to give back");
    }
    group.release([over]);
    assert_eq!(group.free(), 500);
}

/// Its frames are theirs: nobody else is to have its grant first.
#[test]
fn who_borrows_takes_over_what_an_ended_parent_was_granted() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [parent, one, other, stranger] = [7, 8, 9, 10].map(|pid| group.claim(process(pid)).unwrap());
    let before = group.free();
    group.take_anyway(100);
    parent.set(Field::Grant, 100);
    parent.set(Field::Lent, 40);
    for (slot, borrowed) in [(one, 30), (other, 80), (stranger, 20)] {
        slot.set(Field::Borrowed, borrowed);
        slot.set(Field::Forker, parent.tenant() + 1);
    }
    stranger.set(Field::Forker, one.tenant() + 1);
    group.release([parent]);
    let added = [one, other, stranger].map(|slot| (slot.get(Field::Added), slot.get(Field::Settles)));
    assert_eq!(added, [(30, GRANTED), (70, GRANTED), (0, 0)]);
    assert_eq!(group.free(), before - 100, "the rest");
    assert!(group.has_lost_forker(one) && !group.has_lost_forker(stranger));
}

#[test]
fn a_slot_is_no_collectors_for_ever() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [ended, collector] = [7, 8].map(|pid| group.claim(process(pid)).unwrap());
    ended.word(Field::Taken).store(2, Relaxed);
    ended.set(Field::Collector, collector.tenant() + 1);
    group.free_from_collectors();
    assert_eq!(ended.get(Field::Taken), 2, "it is at work");
    group.release([collector]);
    group.free_from_collectors();
    assert_eq!((ended.get(Field::Taken), ended.get(Field::Collector)), (1, 0));
}

#[test]
fn tiers_have_frontiers_of_their_own_and_no_extent_lies_in_two() {
    let told = Setup { tiers: tiers(1024, 300), ..setup(0) };
    let (fd, group) = Group::create(told).unwrap();
    assert_eq!((told.blocks(), told.first_block(1), told.tier(DeviceKind::Remote)), (1324, 1024, Some(1)));
    let opened = Group::adopt(&fd).unwrap();
    assert_eq!(opened.setup(), told);
    // The disk of the file is full.
    group.frontier(0).allow(0);
    let slot = opened.claim(process(7)).unwrap();
    let blocks =
        pagetide_swap::blocks::Blocks::new(opened.block_counts(), opened.held(slot), opened.frontiers());
    assert_eq!(blocks.allocate(300).unwrap().start, 1024);
    assert_eq!((group.frontiers().open(), blocks.used_of(1), blocks.allocate(1)), (300, 300, None));
    group.release([slot]);
    assert!(group.block_counts().iter().all(|count| count.load(Relaxed) == 0));
    let split = TierWord::Blocks;
    for (first, second) in [(1023, 301), (1024, 90_000), (0, 1324), (u64::MAX, 1325)] {
        [first, second].iter().enumerate().for_each(|(tier, &blocks)| {
            group.header[split.of(tier)].store(blocks, Relaxed);
        });
        assert_eq!(Group::adopt(&fd).is_ok(), first == 0, "{first} {second}");
    }
}

#[test]
fn the_richest_is_asked_for_what_exceeds_its_share() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [rich, poor, deaf] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
    [rich, poor].iter().for_each(ProcessSlot::listen);
    deaf.set(Field::Grant, 950);
    rich.set(Field::Grant, 900);
    poor.set(Field::Grant, 100);
    for _ in 0..2 {
        group.ask(poor, 1000);
        assert_eq!(
            [rich, poor, deaf].map(|slot| slot.get(Field::Asked)),
            [567, 0, 0],
            "and once for the same"
        );
    }
}

#[test]
fn in_need_everybody_is_asked_who_has_something_in_memory() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [rich, poor, needy, asleep] = [1, 2, 3, 4].map(|pid| group.claim(process(pid)).unwrap());
    for (slot, spare) in [(rich, 20), (poor, 400), (needy, 400)] {
        arm(slot, [(Field::Spare, spare)]);
    }
    rich.set(Field::Grant, 900);
    asleep.set(Field::Grant, 150);
    asleep.listen();
    for _ in 0..2 {
        group.ask_all(needy, 200);
        assert_eq!([rich, poor, needy, asleep].map(|slot| slot.get(Field::Asked)), [20, 200, 0, 150]);
    }
}

#[test]
fn memory_goes_to_those_under_pressure() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [calm, busy, needy, deaf, asleep] = [1, 2, 3, 4, 5].map(|pid| group.claim(process(pid)).unwrap());
    for (slot, pressure) in [(calm, 5_000), (busy, 90_000), (needy, 100_000)] {
        arm(
            slot,
            [(Field::Spare, 100), (Field::Resident, RESIDENT_MIN as u64 + 100), (Field::Pressure, pressure)],
        );
    }
    deaf.set(Field::Grant, 100);
    asleep.set(Field::Grant, 100);
    let asked = || [calm, busy, needy, deaf, asleep].map(|slot| slot.get(Field::Asked));
    group.level(needy, 200, 0);
    assert_eq!(asked(), [100, 0, 0, 0, 0]);
    group.level(needy, 200, 0);
    assert_eq!(asked(), [100, 0, 0, 0, 0], "asked once, and the next is under pressure itself");
    asleep.listen();
    group.level(needy, 200, 0);
    assert_eq!(asked(), [100, 0, 0, 0, 100], "who has no engine yet loses nothing");
    [calm, asleep].iter().for_each(|slot| slot.set(Field::Asked, 0));
    needy.set(Field::Pressure, 9_000);
    calm.set(Field::Pressure, 0);
    group.level(needy, 200, 0);
    assert_eq!(asked(), [0; 5], "too little is lost");
}

#[test]
fn a_page_is_worth_most_to_who_has_few_for_what_it_loses() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [small, large] = [1, 2].map(|pid| group.claim(process(pid)).unwrap());
    for (slot, resident, pressure) in [(small, 100, 400_000), (large, 30_000, 800_000)] {
        arm(slot, [(Field::Spare, 100), (Field::Resident, resident), (Field::Pressure, pressure)]);
    }
    let asked = || [small, large].map(|slot| slot.get(Field::Asked));
    group.level(large, 40, 0);
    assert_eq!(asked(), [0, 0], "a client that thrashes beside a large server keeps what it has");
    group.level(small, 40, 0);
    assert_eq!(asked(), [0, 40]);
    large.set(Field::Asked, 0);
    small.set(Field::Frames, 8_900);
    group.level(small, 40, 0);
    assert_eq!(
        asked(),
        [0, 0],
        "what is on probation is in memory too: pages are worth less than twice as much"
    );
}

#[test]
fn who_idles_is_asked_for_more_and_more_of_its_program_and_much_later_for_its_pool() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [busy, idle] = [1, 2].map(|pid| group.claim(process(pid)).unwrap());
    for (slot, resident) in [(busy, 1_000), (idle, 4_000)] {
        arm(slot, [(Field::Grant, 8_000), (Field::Resident, resident), (Field::Spare, resident + 2_000)]);
    }
    busy.set(Field::Pressure, 100_000);
    let ask_after = |pages, time| {
        group.level(busy, pages, time);
        let asked = idle.word(Field::Asked).swap(0, Relaxed);
        idle.word(Field::Given).fetch_add(asked, Relaxed);
        asked
    };
    let ask = |pages| ask_after(pages, 0);
    assert_eq!([10, 10, 10, 10].map(ask), [10, 10, 20, 40]);
    assert_eq!([10; 6].map(ask)[2..], [250; 4], "a quarter of what the other has");
    busy.set(Field::Resident, 10_000);
    busy.set(Field::Pressure, 1_000_000);
    assert_eq!([10; 3].map(ask)[1..], [500; 2], "an eighth of what it has");
    idle.set(Field::Given, 0);
    assert_eq!(ask(10), 10, "it has missed some");
    idle.set(Field::Resident, 1_004);
    assert_eq!(ask(10), 4, "an eighth of what it was granted stays");
    idle.set(Field::Resident, 1_000);
    idle.set(Field::Given, 0);
    // For want of a page the other loses 100 µs a second.
    assert_eq!([1_000_000_000; 4].map(|time| ask_after(10, time)), [0, 0, 10, 10]);
    idle.set(Field::Rent, 0);
    assert_eq!(ask(10), 0);
    idle.set(Field::Stalled, 1);
    assert_eq!(ask(10), 10, "who waits does not idle");
}

#[test]
fn of_idle_processes_the_one_with_most_to_spare_gives_first() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [busy, client, server] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
    for (slot, resident, pressure) in [(busy, 1_000, 100_000), (client, 500, 0), (server, 4_000, 9_000)] {
        arm(slot, [(Field::Resident, resident), (Field::Spare, resident), (Field::Pressure, pressure)]);
    }
    let asked = || [client, server].map(|slot| slot.get(Field::Asked));
    group.level(busy, 10, 0);
    assert_eq!(asked(), [0, 10], "what little it loses is nothing");
    group.level(busy, 10, 0);
    assert_eq!(asked(), [10, 10]);
}

#[test]
fn who_rests_is_asked_first_and_keeps_its_pool_for_a_while() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [needy, rests, works] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
    for slot in [rests, works] {
        arm(slot, [(Field::Resident, RESIDENT_MIN as u64 + 30), (Field::Spare, 100)]);
    }
    let asked = || [rests, works].map(|slot| slot.get(Field::Asked));
    assert!(!group.ask_resting(needy, 50));
    rests.set_resting(true);
    assert!(rests.is_resting() && rests.keeps_pool());
    assert!(group.ask_resting(needy, 50) && !group.ask_resting(needy, 50));
    assert_eq!(asked(), [30, 0], "what it has in the program");
    rests.set_resting(true);
    assert!(rests.is_resting() && !rests.keeps_pool(), "it was told again");
    assert!(group.ask_resting(needy, 50) && group.ask_resting(needy, 50) && !group.ask_resting(needy, 50));
    assert_eq!(asked(), [100, 0]);
    rests.set_resting(false);
    rests.set_resting(false);
    assert!(!rests.is_resting());
    rests.set_resting(true);
    assert!(rests.keeps_pool());
    group.ask_all(needy, 10);
    assert!(!rests.is_resting(), "where nothing is left nobody rests");
    assert_eq!(asked(), [100, 10]);
}

#[test]
fn the_group_page_the_launcher_and_shared_memory_are_charged_once_and_as_they_change() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    group.charge_own(50, 20);
    assert_eq!(group.free(), 930);
    group.charge_own(30, 25);
    assert_eq!(group.free(), 945);
    group.charge_shared(25);
    group.charge_shared(15);
    assert_eq!((group.shared_pages(), group.free()), (15, 930));
    let memory = pagetide_sys::procfs::Memory { anonymous: 100, shared: 45, tables: 5 };
    assert_eq!(memory.charged(), 105, "shared memory is not charged to each process");
}

#[test]
fn what_nobody_is_charged_for_is_an_eighth_of_the_cap_at_most() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let [spared, trimmed, armed] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
    assert_eq!(group.uncharged_left(), 125);
    spared.set(Field::Spared, 50);
    trimmed.set(Field::Grant, 100);
    trimmed.set(Field::Added, -40i64 as u64);
    for field in [Field::Armed, Field::Spared] {
        armed.set(field, 1);
    }
    assert_eq!(group.uncharged_left(), 125 - 50 - 40 / 2, "what long nobody touched counts half");
    assert_eq!((trimmed.debt(), trimmed.granted()), (40, 60));
    assert_eq!(trimmed.pay_debt(30), 30);
    assert_eq!(trimmed.pay_debt(30), 10, "no more than it owes");
    assert_eq!((trimmed.debt(), trimmed.pay_debt(30), trimmed.granted()), (0, 0, 100));
    trimmed.set(Field::Added, 7);
    assert_eq!((trimmed.debt(), trimmed.pay_debt(30), trimmed.granted()), (0, 0, 107), "seen to hold more");
    assert_eq!(group.uncharged_left(), 125 - 50);
    spared.set(Field::Added, 20);
    assert_eq!(group.uncharged_left(), 125 - 30, "touched, and charged since");
    spared.set(Field::Added, 1000);
    assert_eq!(group.uncharged_left(), 125 - 25, "of which most is something else");
}

#[test]
fn what_was_taken_for_one_that_was_just_gone_comes_back() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let slot = group.claim(process(1)).unwrap();
    group.release([slot]);
    // The launcher had looked just before.
    group.take_anyway(30);
    slot.word(Field::Added).fetch_add(30, AcqRel);
    let next = group.claim(process(2)).unwrap();
    assert_eq!((next.index(), next.granted(), group.free()), (slot.index(), 0, 1000));
    // And a debt is no gain.
    next.set(Field::Grant, 100);
    next.set(Field::Added, -60i64 as u64);
    group.take_anyway(40);
    group.release([next]);
    assert_eq!(group.free(), 1000);
}

#[test]
fn who_finds_no_slot_waits_until_the_launcher_has_looked_for_the_dead() {
    let (_fd, group) = Group::create(setup(0)).unwrap();
    let slots: Vec<_> = std::iter::from_fn(|| group.claim(process(7))).collect();
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| group.claim_after_the_dead(process(8)).map(|slot| slot.index()));
        // It may have begun before, and have seen nobody dead.
        group.note_look();
        group.release([slots[3]]);
        assert_eq!(claims.join().unwrap(), Some(3));
        let claims = scope.spawn(|| group.claim_after_the_dead(process(9)).map(|slot| slot.index()));
        while !claims.is_finished() {
            group.note_look();
            std::thread::yield_now();
        }
        assert_eq!(claims.join().unwrap(), None, "all of them live");
    });
}
