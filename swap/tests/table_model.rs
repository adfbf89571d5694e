//! The table against a flat array, compared after every operation.
//!
//! `PAGETIDE_TABLE_OPS=n` sets how many operations there are (`100000000` takes a few minutes with `--release`),
//! `PAGETIDE_SEED=n` where the draw begins.
#![cfg(not(feature = "shuttle"))]

use pagetide_swap::place::Place;
use pagetide_swap::table::{Run, Table};
use pagetide_swap::workingset::Shadow;
use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, Handle, PageIndex, State, Word};
use std::ops::Range;

#[path = "../../tests/seeds/kept.rs"]
mod kept;

const CLUSTERS: usize = 6;
const PAGES: usize = CLUSTERS * CLUSTER_PAGES;
/// Not at the beginning of a leaf of the directory, and across the end of one.
const FIRST: u64 = 256 - 3;
const OPS_DEFAULT: u64 = 300_000;
/// Operations after which everything is compared.
const WHOLE: u64 = 4096;

struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * limit as u128) >> 64) as usize
    }

    fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }
}

struct World {
    table: Table,
    flat: Vec<Word>,
}

fn page(index: usize) -> PageIndex {
    ClusterNumber(FIRST).page(0).plus(index as u64)
}

/// Words that pages may have, of few kinds and values: many agree with their neighbours.
fn word(draw: &mut Draw, index: usize) -> Word {
    let place = match draw.below(8) {
        0 | 1 => Some(Place::ZERO),
        2 => Some(Place::Same(draw.below(2) as u32)),
        // As a rule where the neighbours' blocks, or pieces, would lead.
        3 | 4 => Some(Place::Device((index + 7000 * draw.below(2)) as u64)),
        5 => Some(Place::Pool(Handle::piece((index / 16 + draw.below(2)) as u32, index % 16))),
        6 => Some(Place::Pool(Handle::page(draw.below(1 << 20) as u32))),
        _ => None,
    };
    let word = match draw.below(5) {
        0 => return Word::HOLE,
        1 => Word::present(place),
        2 => Word::cached(draw.below(3) as u16, place),
        3 => Word::swapped(place.unwrap_or(Place::ZERO), Shadow(draw.below(2) as u16)),
        _ => return if draw.one_in(20) { Word::POISONED } else { Word::HOLE },
    };
    if draw.one_in(8) { word.locked() } else { word }
}

impl World {
    fn check(&self, range: Range<usize>) {
        for index in range {
            assert_eq!(self.table.peek(page(index)), self.flat[index], "page {index}");
        }
    }

    fn check_counts(&self, cluster: usize) {
        let flat = &self.flat[cluster * CLUSTER_PAGES..][..CLUSTER_PAGES];
        let count = |is: &dyn Fn(&Word) -> bool| flat.iter().filter(|word| is(word)).count();
        let guard = self.table.lock_or_create(ClusterNumber(FIRST + cluster as u64));
        let found = [
            guard.present(),
            guard.cached(),
            guard.swapped(),
            guard.poisoned(),
            guard.locked(),
            guard.copies(),
        ];
        let state = |state: State| count(&|word| word.state() == state);
        let expected = [
            state(State::Present),
            state(State::Cached),
            state(State::Swapped),
            state(State::Poisoned),
            count(&|word| word.is_locked()),
            count(&|word| word.has_pool_copy()),
        ];
        assert_eq!(found, expected, "the counts of cluster {cluster}");
    }

    /// The definition of the run look-up, a look-up a page.
    fn run(&self, index: usize, max_before: usize, max_after: usize) -> Option<Run> {
        let place = self.flat[index].place()?;
        let Place::Device(block) = place else { return Some(Run::default()) };
        let follows = |other: Option<usize>, block: Option<u64>| {
            block.is_some()
                && other.and_then(|other| self.flat.get(other)).and_then(|word| word.place())
                    == block.map(Place::Device)
        };
        Some(Run {
            before: (1..=max_before)
                .take_while(|&by| follows(index.checked_sub(by), block.checked_sub(by as u64)))
                .count(),
            after: (1..=max_after)
                .take_while(|&by| follows(Some(index + by), Some(block + by as u64)))
                .count(),
        })
    }

    fn operation(&mut self, draw: &mut Draw) {
        let cluster = draw.below(CLUSTERS);
        let offset = draw.below(CLUSTER_PAGES);
        let first = cluster * CLUSTER_PAGES;
        match draw.below(10) {
            // A page.
            0..=4 => {
                let word = word(draw, first + offset);
                self.table.lock_or_create(page(first).cluster()).set(offset, word);
                self.flat[first + offset] = word;
                self.check((first + offset).saturating_sub(1)..(first + offset + 2).min(PAGES));
            }
            // A run: of any pages, of units, of all.
            5..=7 => {
                let range = match draw.below(4) {
                    0 => 0..CLUSTER_PAGES,
                    1 => offset / 16 * 16..(offset / 16 + 1 + draw.below(4)).min(32) * 16,
                    _ => offset..(offset + 1 + draw.below(40)).min(CLUSTER_PAGES),
                };
                let word = word(draw, first + range.start);
                if word.spreads() {
                    self.table.lock_or_create(page(first).cluster()).set_run(range.clone(), word);
                    range.clone().for_each(|at| self.flat[first + at] = word.nth(at - range.start));
                    self.check(first + range.start..first + range.end);
                }
            }
            8 => {
                let most = [draw.below(20), draw.below(700)];
                let found = self.table.has_page(page(first + offset), most[0], most[1]);
                assert_eq!(
                    found,
                    self.run(first + offset, most[0], most[1]),
                    "the run at {}",
                    first + offset
                );
            }
            _ => {
                let guard = self.table.lock_or_create(page(first).cluster());
                let (word, count) = guard.stretch(offset, 1 + draw.below(CLUSTER_PAGES - offset));
                for nth in 0..count {
                    assert_eq!(
                        self.flat[first + offset + nth],
                        word.nth(nth),
                        "the stretch at {}",
                        first + offset
                    );
                }
            }
        }
        self.check_counts_sometimes(draw, cluster);
    }

    fn check_counts_sometimes(&self, draw: &mut Draw, cluster: usize) {
        if draw.one_in(64) {
            self.check_counts(cluster);
        }
    }
}

#[test]
fn after_every_operation_the_table_is_a_flat_one() {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let ops = number("PAGETIDE_TABLE_OPS", OPS_DEFAULT);
    let first = number("PAGETIDE_SEED", 1);
    kept::kept_seeds("table").into_iter().chain([first]).for_each(|seed| compare(seed, ops));
}

fn compare(seed: u64, ops: u64) {
    let mut draw = Draw(seed);
    let mut world = World { table: Table::default(), flat: vec![Word::HOLE; PAGES] };
    for op in 0..ops {
        let before = draw.0;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.operation(&mut draw)));
        if let Err(panic) = outcome {
            eprintln!("operation {op} of seed {seed}, where the draw is {before}");
            eprintln!("replay it: PAGETIDE_SEED={seed} cargo test -p pagetide-swap --test table_model");
            std::panic::resume_unwind(panic);
        }
        if op.is_multiple_of(WHOLE) {
            world.check(0..PAGES);
            (0..CLUSTERS).for_each(|cluster| world.check_counts(cluster));
        }
    }
    world.check(0..PAGES);
}
