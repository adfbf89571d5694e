//! Runs that follow from a seed, one event after another.

use crate::common::Random;
use crate::events::world;
use crate::kept::kept_seeds;
use crate::world::{Stage, World};
use pagetide_swap::Counter;

const SEEDS_DEFAULT: u64 = 120;
const EVENTS: usize = 2000;

/// Runs one seed; says which if it panics.
fn run_seed(seed: u64) -> World {
    struct Replay<'a>(u64, usize, &'a str);
    impl Drop for Replay<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("event {} of seed {}: {}", self.1, self.0, self.2);
                eprintln!("replay it: PAGETIDE_SEED={} cargo test -p pagetide --test objects seeds", self.0);
            }
        }
    }
    let mut random = Random::new(seed);
    let (mut world, text) = world(&mut random);
    let mut replay = Replay(seed, 0, &text);
    let mut stuck = 0;
    for event in 0..EVENTS {
        replay.1 = event;
        world.event(&mut random);
        world.check_books();
        if event % 16 == 0 {
            world.check_present();
        }
        // A world in which everybody waits for room proves little: give some, and take it back later.
        let waits = |access: &Option<_>| {
            access
                .as_ref()
                .is_some_and(|access: &crate::world::UnderWay| matches!(access.stage, Stage::Heard(_)))
        };
        stuck = if world.accesses.iter().any(waits) { stuck + 1 } else { 0 };
        if stuck > 200 {
            world.give(64);
            stuck = 0;
        } else if world.granted > 600 && random.one_in(50) {
            world.give(-128);
        }
    }
    replay.1 = EVENTS;
    world.check_end();
    world
}

#[test]
fn every_page_that_a_process_reads_is_what_a_naive_model_says() {
    if let Ok(seed) = std::env::var("PAGETIDE_SEED") {
        run_seed(seed.parse().expect("PAGETIDE_SEED is a number"));
        return;
    }
    let seeds =
        std::env::var("PAGETIDE_MODEL_SEEDS").map_or(SEEDS_DEFAULT, |seeds| seeds.parse().expect("a number"));
    let mut sums = [0u64; Counter::ALL.len()];
    let (mut reads, mut late) = (0, 0);
    for seed in kept_seeds("objects").into_iter().chain(1..=seeds) {
        let world = run_seed(seed);
        reads += world.reads;
        late += world.late;
        for (sum, &counter) in sums.iter_mut().zip(Counter::ALL) {
            *sum += world.counter(counter);
        }
    }
    // The runs must have gone everywhere, or they prove nothing.
    for (sum, counter) in sums.iter().zip(Counter::ALL) {
        println!("{:28} {sum}", counter.name());
    }
    println!("{reads} accesses, {late} that began to wait for a page which had come");
    if seeds >= SEEDS_DEFAULT {
        assert!(late > 0);
        for counter in [
            Counter::pswpin,
            Counter::pswpout,
            Counter::zswpin,
            Counter::zswpout,
            Counter::zswpwb,
            Counter::swap_reuse,
            Counter::swap_cache_hit,
            Counter::pgactivate,
            Counter::pgsteal_direct,
            Counter::pgsteal_fail,
            Counter::read_error,
            Counter::write_error,
            Counter::allocstall,
        ] {
            assert!(sums[counter as usize] > 0, "no run has counted {}", counter.name());
        }
    }
}
