//! Tests: whatever a member of the run has written over the group page, no function on it panics, overflows or goes on
//! for ever.

use super::inquiry::{Ended, Responsiveness};
use super::layout::{Field, HEADER_WORDS, Header, PAGES_MAX, SLOT_WORDS, TierWord};
use super::tests::{process, setup};
use super::{Group, ProcessSlot, SLOTS};
use crate::census::Tally;
use crate::injection::Plan;
use crate::ticket::Ticket;
use pagetide_swap::Counter;
use pagetide_swap::config::PAGE_CLUSTER_MAX;
use std::sync::atomic::Ordering::Relaxed;

/// Numbers at which sums, differences and shifts go wrong, and any others.
fn harm(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let bits = *random >> 20;
    match *random >> 61 {
        0 => u64::MAX,
        1 => i64::MAX as u64,
        2 => i64::MIN as u64,
        3 => 1 << (bits % 64),
        4 => (bits % 1000).wrapping_neg(),
        5 => bits % 1000,
        6 => *random ^ bits,
        _ => bits % 3,
    }
}

fn call_all(group: &Group, slot: ProcessSlot, number: u64) {
    let pages = (number as i64).clamp(-PAGES_MAX, PAGES_MAX);
    let few = pages.unsigned_abs();
    let _ = (group.knobs(), group.is_swapped_off(), group.off_state(slot), group.is_launcher_dead());
    let _ = (group.own_pages(), group.shared_pages(), group.unmanaged_pages(), group.stuck(), group.ended());
    let _ = (group.free(), group.uncharged_left(), group.step(), group.demand(), group.frontiers().allowed());
    let _ = (group.take(pages, pages), group.take_up_to(pages), group.frontier(0).advance());
    group.give(pages);
    group.take_anyway(pages);
    group.charge_own(few, few);
    group.charge_shared(few);
    group.charge_unmanaged(few);
    group.reserve_for_starts(few);
    let _ = (group.ask(slot, pages), group.ask_resting(slot, few));
    group.ask_all(slot, few);
    group.level(slot, few, number);
    let inquiry = group.inquire(slot);
    let _ = (group.is_answered(slot, inquiry), group.has_launcher_answered(inquiry), slot.is_asked(group));
    slot.answer(inquiry, Some(&Tally::default()));
    slot.set_responsiveness(Responsiveness::Answers);
    let _ = group.may_end(slot);
    group.note_ended(&Ended { processes: 0, stuck: slot.stuck(), unmanaged: few });
    let _ = (slot.tenant(), slot.process(), slot.known_as(), slot.stack(), slot.granted(), slot.debt());
    let _ = (slot.pay_debt(pages), slot.is_resting(), slot.keeps_pool());
    slot.end_rest(number);
    slot.set_resting(number.is_multiple_of(2));
    Counter::ALL.iter().for_each(|&counter| slot.counters().add(counter, number));
    group.follow_swapoff(slot, |_, state| state);
    let _ = (group.cap_pages(), group.cap_changes());
    group.change_cap(few);
    group.change_knobs(|knobs| knobs.max_pool_percent = 30);
}

#[test]
fn no_number_in_the_group_page_ends_who_reads_it() {
    let (_fd, group) = Group::create(setup(1000)).unwrap();
    let words = group.shared.words(0, HEADER_WORDS + SLOT_WORDS * 8);
    for seed in 0..3000 {
        let caught = std::panic::catch_unwind(|| {
            let mut random = seed;
            for word in words {
                word.store(harm(&mut random), Relaxed);
            }
            // Some of them are looked at.
            for index in 0..4 {
                group.slot(index).set(Field::Taken, 1);
            }
            call_all(&group, group.slot(0), harm(&mut random));
            // Its process is not of this machine, as a rule, so nothing is waited for.
            group.release([group.slot(1)]);
            let _ = group.claim(process(7));
            let tenant = group.slot(2).tenant();
            group.evict(group.slot(2), tenant);
            assert_eq!(group.live().filter(|slot| slot.index() >= SLOTS).count(), 0);
        });
        assert!(caught.is_ok(), "seed {seed}");
    }
}

#[test]
fn a_setup_of_any_numbers_is_one_that_may_be_and_names_the_files_of_the_ticket() {
    let told = setup(1000);
    let (fd, group) = Group::create(told).unwrap();
    let words = group.shared.words(0, HEADER_WORDS);
    // With others there it is no group page of this version.
    let blocks = [0, 1].map(|tier| TierWord::Blocks.of(tier));
    let kept = [Header::Magic as usize, Header::Version as usize, blocks[0], blocks[1]];
    let ticket = Ticket::new(&told, 3, None);
    for seed in 0..200 {
        let mut random = seed;
        for (_, word) in words.iter().enumerate().filter(|(at, _)| !kept.contains(at)) {
            word.store(harm(&mut random), Relaxed);
        }
        let opened = Group::adopt(&fd).unwrap().corrected(|setup| ticket.correct(setup)).setup();
        assert!((1..=PAGES_MAX as u64).contains(&opened.cap_pages), "seed {seed}: {opened:?}");
        assert!(opened.knobs.max_pool_percent <= 100 && opened.page_cluster <= PAGE_CLUSTER_MAX);
        assert_eq!(Plan::from_bits(opened.injection.bits()), opened.injection);
        assert_eq!((opened.tiers, opened.launcher), (told.tiers, told.launcher));
        assert_eq!((opened.trace_fd, opened.encrypt), (told.trace_fd, told.encrypt));
    }
}
