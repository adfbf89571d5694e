//! Tests of device space.

use super::*;

pub(crate) fn space(blocks: usize) -> Blocks {
    Blocks::private(blocks)
}
fn counts(blocks: usize) -> &'static [AtomicU8] {
    Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect())
}
fn bits(blocks: usize) -> Held {
    Held::new(Vec::leak((0..Held::words(blocks)).map(|_| AtomicU64::new(0)).collect()), blocks)
}

fn frontiers(blocks: usize) -> Frontiers {
    Frontiers::new([Frontier::private(blocks as u64)])
}

#[test]
fn what_others_have_written_over_the_books_ends_nobody() {
    let (counts, words) =
        (counts(100), Vec::leak((0..Held::words(100)).map(|_| AtomicU64::new(u64::MAX)).collect()));
    let held = Held::new(words, 100);
    let blocks = Blocks::new(counts, held, frontiers(100));
    assert_eq!(blocks.allocate(10).unwrap().length, 10);
    blocks.share_with(&bits(100));
    counts.iter().for_each(|count| count.store(0, Relaxed));
    assert_eq!(sweep(counts, &held, &blocks.frontiers), 0);
    assert!(counts.iter().all(|count| count.load(Relaxed) == 0), "none has fewer holders than none");
    blocks.free(3);
    assert!(held.is_empty());
}

#[test]
fn a_block_in_use_is_not_taken_again_whatever_the_shared_books_say() {
    let blocks = space(128);
    let run = blocks.allocate(64).unwrap();
    // Somebody who should not writes that all is free.
    blocks.books.counts.iter().for_each(|count| count.store(0, Relaxed));
    let next = blocks.allocate(128).unwrap();
    assert!(next.start >= run.start + 64 || next.start + next.length as u64 <= run.start);
    blocks.free(run.start);
    blocks.books.counts[run.start as usize].store(0, Relaxed);
    assert!(std::iter::from_fn(|| blocks.allocate(1)).any(|one| one.start == run.start));
}

#[test]
fn runs_are_contiguous_and_the_device_fills_up() {
    let blocks = space(100);
    assert_eq!(blocks.allocate(32), Some(BlockRun { start: 0, length: 32 }));
    assert_eq!(blocks.allocate(64), Some(BlockRun { start: 32, length: 64 }));
    assert_eq!(blocks.allocate(64), Some(BlockRun { start: 96, length: 4 }));
    assert_eq!(blocks.allocate(1), None);
    blocks.free(50);
    blocks.free(50);
    assert_eq!(blocks.used(), 99, "a block is freed once");
    assert_eq!(blocks.allocate(8), Some(BlockRun { start: 50, length: 1 }));
}

#[test]
fn a_process_fills_extents_of_its_own_while_there_are_any() {
    let counts = counts(6 * EXTENT_BLOCKS);
    let frontiers = frontiers(counts.len());
    let [first, second] = [(); 2].map(|()| Blocks::new(counts, bits(counts.len()), frontiers));
    let extent = EXTENT;
    let fill = |start: u64| {
        for run in 0..extent / 32 {
            assert_eq!(first.allocate(32).unwrap().start, start + run * 32);
        }
    };
    fill(0);
    assert_eq!(second.allocate(32).unwrap().start, extent);
    fill(2 * extent);
    assert_eq!(first.allocate(32).unwrap().start, 3 * extent);
    (0..extent).for_each(|block| first.free(block));
    assert_eq!(first.allocate(32).unwrap().start, 3 * extent + 32, "what leaves together lies together");
    (2..extent / 32).for_each(|run| assert_eq!(first.allocate(32).unwrap().start, 3 * extent + run * 32));
    fill(0);
    (0..4 * extent).filter(|block| block % 2 == 0).for_each(|block| first.free(block));
    assert_eq!(first.allocate(32).unwrap().start, 4 * extent, "a new extent before single blocks");
    let child = first.for_child(bits(counts.len()));
    assert_eq!(child.allocate(8).unwrap().start, 5 * extent);
    let lengths: Vec<_> = std::iter::from_fn(|| child.allocate(32)).map(|run| run.length).collect();
    assert!(lengths.contains(&1), "in the end any block serves");
    assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
}

/// Three processes, and what a naive model says that they hold and have set aside.
struct Model {
    random: u64,
    /// Blocks of each tier.
    sizes: Vec<u64>,
    tiers: Vec<Frontier>,
    processes: [Blocks; 3],
    held: [Vec<u64>; 3],
    parked: [Vec<u64>; 3],
    preferred: [usize; 3],
}

impl Model {
    fn new(mut random: u64, two: bool) -> Self {
        let first = if two { (1 + below(&mut random, 4)) * EXTENT } else { 0 };
        let sizes = [first, 1 + below(&mut random, 8 * EXTENT)];
        let sizes: Vec<u64> = sizes.into_iter().filter(|&size| size > 0).collect();
        let tiers: Vec<_> = sizes.iter().map(|&size| Frontier::private(size)).collect();
        let frontiers = Frontiers::new(tiers.iter().copied());
        let total = frontiers.total() as usize;
        let counts = counts(total);
        let processes = [(); 3].map(|()| Blocks::new(counts, bits(total), frontiers));
        let (held, parked, preferred) = Default::default();
        Self { random, sizes, tiers, processes, held, parked, preferred }
    }

    fn next(&mut self, limit: u64) -> u64 {
        below(&mut self.random, limit)
    }

    fn tier_of(&self, block: u64) -> usize {
        usize::from(self.sizes.len() > 1 && block >= self.sizes[0])
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.held.iter().chain(&self.parked).flatten().copied()
    }

    fn step(&mut self) {
        let who = self.next(3) as usize;
        match self.next(8) {
            0 => {
                let tier = self.next(self.tiers.len() as u64) as usize;
                let allowed = self.next(self.sizes[tier] + 1);
                self.tiers[tier].allow(allowed);
                self.preferred[who] = self.next(self.tiers.len() as u64) as usize;
                self.processes[who].prefer(self.preferred[who]);
            }
            1 => {
                (0..self.tiers.len()).for_each(|tier| self.processes[who].unpark(tier));
                self.parked[who].clear();
            }
            2..5 if !self.held[who].is_empty() => {
                for _ in 0..self.next(64).min(self.held[who].len() as u64) {
                    let at = self.next(self.held[who].len() as u64) as usize;
                    self.processes[who].free(self.held[who].swap_remove(at));
                }
            }
            _ => self.allocate(who),
        }
        self.check();
    }

    fn allocate(&mut self, who: usize) {
        let open: Vec<u64> = self.tiers.iter().map(Frontier::open).collect();
        let wanted = 1 + self.next(64) as usize;
        let run = self.processes[who].allocate(wanted);
        let has_parked = |tier| self.parked[who].iter().any(|&block| self.tier_of(block) == tier);
        for (tier, (frontier, &open)) in self.tiers.iter().zip(&open).enumerate() {
            let grown = frontier.open();
            assert!(grown <= open.max(frontier.allowed()) && grown <= open + EXTENT);
            assert!(grown == open || !has_parked(tier), "it grows where the disk has no room");
        }
        let in_use = |tier| self.all().filter(|&block| self.tier_of(block) == tier).count() as u64;
        let is_full = |tier: usize| in_use(tier) == open[tier];
        let Some(BlockRun { start, length }) = run else {
            assert!((0..self.tiers.len()).all(is_full), "a block is free, and not found");
            return;
        };
        let (taken, tier, preferred) =
            (start..start + length as u64, self.tier_of(start), self.preferred[who]);
        assert!(self.tier_of(taken.end - 1) == tier && length <= wanted);
        let first: u64 = self.sizes[..tier].iter().sum();
        assert!(taken.end - first <= self.tiers[tier].open());
        let passed = tier != preferred && !has_parked(preferred) && !is_full(preferred);
        assert!(!passed, "the tier that is preferred has room");
        assert!(!self.all().any(|block| taken.contains(&block)));
        if self.next(10) == 0 {
            self.processes[who].park(run.expect("taken above"));
            self.parked[who].extend(taken);
        } else {
            self.held[who].extend(taken);
        }
    }

    fn check(&self) {
        for (blocks, held) in self.processes.iter().zip(&self.held) {
            let of = |tier| held.iter().filter(|&&block| self.tier_of(block) == tier).count() as u64;
            assert!((0..2).all(|tier| blocks.used_of(tier) == of(tier)));
            assert_eq!(blocks.used(), held.len() as u64);
        }
        assert_eq!(self.processes[0].taken(), self.all().count() as u64);
    }
}

fn below(random: &mut u64, limit: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*random >> 33) % limit
}

#[test]
fn processes_take_what_a_naive_model_has_free_and_grow_no_further_than_is_allowed() {
    for seed in 1..=30 {
        let mut model = Model::new(seed, seed % 2 == 0);
        (0..2000).for_each(|_| model.step());
    }
}

#[test]
fn a_tier_that_is_closed_gives_no_more_and_the_next_does() {
    let blocks = Blocks::private_tiers(&[EXTENT_BLOCKS, 100]);
    assert_eq!((blocks.tiers(), blocks.limit(), blocks.first_of(1)), (2, EXTENT + 100, EXTENT));
    assert_eq!([0, EXTENT - 1, EXTENT, u64::MAX].map(|block| blocks.tier_of(block)), [0, 0, 1, 1]);
    let run = blocks.allocate(32).unwrap();
    blocks.close(0);
    assert_eq!(blocks.allocate(32), Some(BlockRun { start: EXTENT, length: 32 }));
    assert_eq!((blocks.used_of(0), blocks.used_of(1), blocks.limit()), (32, 32, 100));
    blocks.free(run.start);
    assert_eq!((blocks.taken_of(0), blocks.taken_of(1)), (31, 32));
    blocks.park(blocks.allocate(68).unwrap());
    assert_eq!(blocks.allocate(1), None);
    blocks.unpark(1);
    assert_eq!(blocks.allocate(100).map(|run| run.length), Some(68));
}

#[test]
fn a_child_gives_up_what_its_parent_could_not_write_to() {
    let counts = counts(64);
    let parent = Blocks::new(counts, bits(64), frontiers(64));
    parent.park(parent.allocate(32).unwrap());
    let child_bits = bits(64);
    parent.share_with(&child_bits);
    let child = parent.for_child(child_bits);
    assert_eq!((parent.used(), child.used(), child_bits.is_empty()), (0, 0, true));
    parent.unpark(0);
    assert_eq!(child.allocate(64).map(|run| run.length), Some(64));
}

#[test]
fn a_shared_block_is_freed_by_its_last_user() {
    let counts = counts(64);
    let (parent_bits, child_bits) = (bits(64), bits(64));
    let parent = Blocks::new(counts, parent_bits, frontiers(64));
    parent.allocate(64).unwrap();
    parent.share_with(&child_bits);
    parent.free(7);
    assert_eq!(parent.allocate(1), None, "the child still holds it");
    assert_eq!(sweep(counts, &child_bits, &parent.frontiers), 64);
    assert_eq!(parent.allocate(1), Some(BlockRun { start: 7, length: 1 }));
    assert_eq!(sweep(counts, &child_bits, &parent.frontiers), 0, "sweeping twice frees nothing twice");
}
