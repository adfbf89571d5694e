//! Runs that follow from a seed, one event after another.

use crate::common::Random;
use crate::drawn::world;
use crate::kept::kept_seeds;
use crate::world::World;
use pagetide_swap::Counter;

const SEEDS_DEFAULT: u64 = 120;
const EVENTS: usize = 1500;

/// Runs one seed; says which if it panics.
fn run_seed(seed: u64) -> World {
    struct Replay<'a>(u64, usize, &'a str);
    impl Drop for Replay<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("event {} of seed {}: {}", self.1, self.0, self.2);
                eprintln!("replay it: PAGETIDE_SEED={} cargo test -p pagetide --test model seeds", self.0);
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
        stuck = if world.threads.iter().all(|access| access.is_some_and(|access| access.delivered)) {
            stuck + 1
        } else {
            0
        };
        if stuck > 60 {
            world.engine.budget().give(64);
            (world.granted, stuck) = (world.granted + 64, 0);
        } else if world.granted > 600 && random.one_in(50) {
            world.engine.budget().take(128);
            world.granted -= 128;
        }
    }
    replay.1 = EVENTS;
    world.check_end();
    world
}

#[test]
fn every_page_read_is_what_a_naive_model_says() {
    if let Ok(seed) = std::env::var("PAGETIDE_SEED") {
        run_seed(seed.parse().expect("PAGETIDE_SEED is a number"));
        return;
    }
    let seeds =
        std::env::var("PAGETIDE_MODEL_SEEDS").map_or(SEEDS_DEFAULT, |seeds| seeds.parse().expect("a number"));
    let mut sums = [0u64; Counter::ALL.len()];
    let mut reads = 0;
    for seed in kept_seeds("model").into_iter().chain(1..=seeds) {
        let world = run_seed(seed);
        reads += world.reads;
        for (sum, &counter) in sums.iter_mut().zip(Counter::ALL) {
            *sum += world.counter(counter);
        }
    }
    // The runs must have gone everywhere, or they prove nothing.
    for (sum, counter) in sums.iter().zip(Counter::ALL) {
        println!("{:28} {sum}", counter.name());
    }
    println!("{reads} reads");
    if seeds >= SEEDS_DEFAULT {
        for counter in [
            Counter::pswpin,
            Counter::pswpout,
            Counter::zswpin,
            Counter::zswpout,
            Counter::zswpwb,
            Counter::swpin_zero,
            Counter::swap_reuse,
            Counter::swap_cache_hit,
            Counter::swap_copy_dropped,
            Counter::pgactivate,
            Counter::pgsteal_direct,
            Counter::pgsteal_fail,
            Counter::wp_fault,
            Counter::read_error,
            Counter::write_error,
            Counter::decompress_fail,
            Counter::allocstall,
        ] {
            assert!(sums[counter as usize] > 0, "no run has counted {}", counter.name());
        }
    }
}
