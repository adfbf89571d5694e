//! The table against flat arrays of words, alone and beside threads that change it.

use super::*;
use crate::place::Handle;
use crate::place::Place;
use crate::word::State;
use crate::workingset::Shadow;
use pagetide_page::PageIndex;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn words_are_found_again_and_counted() {
    let table = Table::default();
    let page = PageIndex(0x0007_f001_2345);
    assert_eq!(table.peek(page), Word::HOLE);
    assert!(table.lock(page.cluster()).is_none());
    {
        let mut cluster = table.lock_or_create(page.cluster());
        cluster.set(page.offset(), Word::present(None).locked());
        assert_eq!((cluster.present(), cluster.locked()), (1, 1));
        cluster.set(page.offset(), Word::swapped(Place::ZERO, Shadow(1)));
        assert_eq!((cluster.present(), cluster.locked(), cluster.swapped()), (0, 0, 1));
    }
    assert_eq!(table.peek(page), Word::swapped(Place::ZERO, Shadow(1)));
}

#[test]
fn the_walk_leaves_out_what_is_all_holes() {
    let table = Table::default();
    let numbers = [3, 4, 255, 256, 131_071, 131_072, 50_000_000];
    for number in numbers {
        table.lock_or_create(ClusterNumber(number)).set(7, Word::present(None));
    }
    let found = || table.touched(4..60_000_000).map(|n| n.0).collect::<Vec<_>>();
    assert_eq!(found(), numbers[1..]);
    table.lock_or_create(ClusterNumber(256)).set(7, Word::HOLE);
    table.lock_or_create(ClusterNumber(9)).set(7, Word::HOLE);
    assert_eq!(found(), [4, 255, 131_071, 131_072, 50_000_000]);
    assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (6, 6, 0));
}

/// What a run of pages may be set to: of each state, flags and places that follow from the first page's, or not.
fn any_word() -> impl Strategy<Value = Word> {
    let place = prop_oneof![
        Just(None),
        Just(Some(Place::ZERO)),
        (0..3u32).prop_map(|pattern| Some(Place::Same(pattern))),
        (0..4000u64).prop_map(|block| Some(Place::Device(block))),
        any::<u32>().prop_map(|number| Some(Place::Pool(Handle::page(number)))),
        (any::<u32>(), 0..16usize).prop_map(|(folio, piece)| Some(Place::Pool(Handle::piece(folio, piece)))),
    ];
    (0..5, place, 0..2u16, any::<bool>()).prop_map(|(state, place, top, locked)| {
        let word = match state {
            0 => Word::HOLE,
            1 => Word::present(place),
            2 => Word::cached(top, place),
            3 => Word::swapped(place.unwrap_or(Place::ZERO), Shadow(top)),
            _ => Word::POISONED,
        };
        if locked && state != 0 { word.locked() } else { word }
    })
}

fn any_range() -> impl Strategy<Value = Range<usize>> {
    prop_oneof![
        Just(0..CLUSTER_PAGES),
        (0..UNITS, 1..=4usize)
            .prop_map(|(at, count)| at * UNIT_PAGES..((at + count) * UNIT_PAGES).min(CLUSTER_PAGES)),
        (0..CLUSTER_PAGES, 1..40usize).prop_map(|(at, count)| at..(at + count).min(CLUSTER_PAGES)),
        (0..CLUSTER_PAGES).prop_map(|at| at..at + 1),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_order_of_words_is_a_flat_table(changes in vec((0..3u64, any_range(), any_word(), any::<bool>()), 1..60)) {
        let table = Table::default();
        let mut flat = [[Word::HOLE; CLUSTER_PAGES]; 3];
        for (number, range, word, by_page) in changes {
            let (cluster, flat) = (ClusterNumber(number), &mut flat[number as usize]);
            let mut guard = table.lock_or_create(cluster);
            for offset in range.clone() {
                flat[offset] = word.nth(offset - range.start);
                if by_page {
                    guard.set(offset, flat[offset]);
                }
            }
            if !by_page {
                guard.set_run(range, word);
            }
            let count = |is: &dyn Fn(&Word) -> bool| flat.iter().filter(|word| is(word)).count();
            prop_assert_eq!(guard.present(), count(&|word| word.state() == State::Present));
            prop_assert_eq!(guard.cached(), count(&|word| word.state() == State::Cached));
            prop_assert_eq!(guard.swapped(), count(&|word| word.state() == State::Swapped));
            prop_assert_eq!(guard.poisoned(), count(&|word| word.state() == State::Poisoned));
            prop_assert_eq!(guard.locked(), count(&|word| word.is_locked()));
            prop_assert_eq!(guard.copies(), count(&|word| word.has_pool_copy()));
            prop_assert_eq!(guard.is_empty(), count(&|&word| word == Word::HOLE) == CLUSTER_PAGES);
            prop_assert!((0..CLUSTER_PAGES).all(|offset| guard.get(offset) == flat[offset]));
            drop(guard);
            prop_assert!((0..CLUSTER_PAGES).all(|offset| table.peek(cluster.page(offset)) == flat[offset]));
            let holes = flat.iter().all(|&word| word == Word::HOLE);
            prop_assert_eq!(table.touched(number..number + 1).next().is_none(), holes);
        }
        for number in 0..3 {
            table.lock_or_create(ClusterNumber(number)).set_run(0..CLUSTER_PAGES, Word::HOLE);
        }
        prop_assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (0, 0, 0));
    }
}

/// Page by page in any order: when all of a unit, and of a cluster, agree, one word is left.
#[test]
fn what_agrees_is_one_word_again() {
    let table = Table::default();
    let words = |offset: usize| Word::swapped(Place::Device(700), Shadow(3)).nth(offset);
    for step in [1, 511, 5, 77] {
        let mut cluster = table.lock_or_create(ClusterNumber(9));
        for nth in 0..CLUSTER_PAGES {
            let offset = nth * step % CLUSTER_PAGES;
            cluster.set(offset, words(offset));
        }
        assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (0, 0, 0), "step {step}");
        cluster.set(100, Word::present(None));
        assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (1, 1, 0));
        assert_eq!((cluster.present(), cluster.swapped()), (1, 511));
        cluster.set_run(0..CLUSTER_PAGES, Word::HOLE);
        assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (0, 0, 0));
    }
}

/// Without a lock a reader sees what some order of the changes left, though the levels come and go meanwhile.
#[test]
fn readers_see_whole_words_while_the_levels_change() {
    const ROUNDS: u64 = 3000;
    let table = Table::default();
    let (ours, others) = (ClusterNumber(3), ClusterNumber(4));
    let done = std::sync::atomic::AtomicBool::new(false);
    // The word of each page tells the page, and a round that only grows.
    let word = |offset: usize, round: u64| Word::swapped(Place::Device(round * 512), Shadow(1)).nth(offset);
    table.lock_or_create(ours).set_run(0..CLUSTER_PAGES, word(0, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let mut cluster = table.lock(ours).unwrap();
                if round % 2 == 0 {
                    cluster.set_run(0..CLUSTER_PAGES, word(0, round));
                } else {
                    (0..CLUSTER_PAGES).step_by(3).for_each(|offset| cluster.set(offset, word(offset, round)));
                }
            }
            done.store(true, Relaxed);
        });
        // Takes what the first gives back.
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let mut cluster = table.lock_or_create(others);
                (0..CLUSTER_PAGES).step_by(5).for_each(|offset| cluster.set(offset, Word::POISONED));
                cluster.set_run(0..CLUSTER_PAGES, Word::HOLE);
            }
        });
        scope.spawn(|| {
            let mut seen = [0; CLUSTER_PAGES];
            while !done.load(Relaxed) {
                for offset in [0, 3, 100, 511] {
                    let Some(Place::Device(block)) = table.peek(ours.page(offset)).place() else {
                        panic!("not a word of this cluster")
                    };
                    assert_eq!(block % 512, offset as u64);
                    assert!(block / 512 >= seen[offset]);
                    seen[offset] = block / 512;
                }
            }
        });
    });
}

/// The definition: one look-up a page.
fn has_page_by_page(table: &Table, page: PageIndex, max_before: usize, max_after: usize) -> Option<Run> {
    let place = table.peek(page).place()?;
    let Place::Device(block) = place else { return Some(Run::default()) };
    let is = |index: Option<u64>, block: Option<u64>| match (index, block) {
        (Some(index), Some(block)) => table.peek(PageIndex(index)).place() == Some(Place::Device(block)),
        _ => false,
    };
    let before = |&by: &u64| is(page.0.checked_sub(by), block.checked_sub(by));
    let after = |&by: &u64| is(page.0.checked_add(by), block.checked_add(by));
    Some(Run {
        before: (1..=max_before as u64).take_while(before).count(),
        after: (1..=max_after as u64).take_while(after).count(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn runs_are_those_of_the_loop_over_pages(
        base in prop_oneof![Just(0u64), Just(77), Just((1u64 << 26) - 3)],
        changes in vec((0..3u64, any_range(), prop_oneof![4 => (0..3000u64).prop_map(Some), 1 => Just(None)], 0..2u16), 1..40),
        looks in vec((0..3 * CLUSTER_PAGES as u64, 0..700usize, 0..700usize), 1..40),
    ) {
        let table = Table::default();
        for (number, range, block, shadow) in changes {
            // As a rule the blocks go on where those of the cluster before end.
            let block = block.map(|block| if block < 1000 { number * 512 + range.start as u64 } else { block });
            let word = block.map_or(Word::HOLE, |block| Word::swapped(Place::Device(block), Shadow(shadow)));
            table.lock_or_create(ClusterNumber(base + number)).set_run(range, word);
        }
        for (index, max_before, max_after) in looks {
            let page = PageIndex(ClusterNumber(base).page(0).0 + index);
            prop_assert_eq!(
                table.has_page(page, max_before, max_after),
                has_page_by_page(&table, page, max_before, max_after)
            );
        }
    }
}
