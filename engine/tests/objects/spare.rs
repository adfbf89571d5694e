//! Spare frames: pages of objects leave by copies into frames that served before.

use crate::common::{balances, manage, page, pages, prose};
use pagetide::census::{Reason, Step};
use pagetide::engine::{Engine, Limits, Progress, Round, Workspace};
use pagetide::fake::{self, FakeObjects, Setup};
use pagetide::regions::Access;
use pagetide_swap::{Counter, PageIndex};
use std::ops::Range;

/// The object's pages: four clusters.
const PAGES: Range<u64> = FIRST..FIRST + 4 * 512;
const FIRST: u64 = 1000 * 512;
/// Two clusters are in memory.
const GRANTED: i64 = 2 * 512 + 64;

struct World {
    engine: Engine<FakeObjects>,
    work: Workspace,
    process: usize,
}

impl World {
    /// An object whose pages are all written, of which about half is in memory.
    fn new() -> Self {
        let mut world = Self::with_pool(4096);
        world.write(PAGES);
        world
    }

    /// An object of which nothing is written.
    fn with_pool(pool_pages_max: usize) -> Self {
        let engine = fake::keeper(Setup {
            slots: 6,
            limits: Limits { low: 32, high: 600, probation: 1 },
            pool_pages_max,
            ..Setup::default()
        });
        engine.budget().give(GRANTED);
        engine.memory().create(pages(PAGES));
        manage(&engine, PAGES, Access::Write);
        let process = engine.memory().start();
        engine.memory().attach(process, pages(PAGES));
        Self { engine, work: Workspace::default(), process }
    }

    fn write(&mut self, range: Range<u64>) {
        for number in range {
            for tries in 0.. {
                assert!(tries < 100, "page {number:#x} never comes");
                if self.touch(page(number)) {
                    break;
                }
                self.engine.reclaim(&mut self.work);
                self.engine.retry_waiting(&mut self.work);
            }
            let written = self.engine.memory().update(self.process, page(number), |bytes| {
                bytes.copy_from_slice(&prose(number)[..]);
            });
            assert_eq!(written, Ok(Some(())));
        }
    }

    /// Returns whether the page is there after a fault, if it needs one.
    fn touch(&mut self, page: PageIndex) -> bool {
        let memory = self.engine.memory();
        if memory.is_missing(self.process, page) == Ok(true)
            && let Some(token) = memory.begin_to_wait(self.process, page)
        {
            assert!(memory.hear(token));
            self.engine.fault(page, true, fake::clock(), &mut self.work);
        }
        self.engine.memory().is_missing(self.process, page) == Ok(false)
    }

    /// A page that is not in the object.
    fn missing(&self) -> u64 {
        let is_missing = |&at: &u64| self.engine.memory().peek(page(at)).is_none();
        PAGES.into_iter().find(is_missing).expect("not all fits")
    }

    fn frames(&self) -> i64 {
        assert_eq!(self.engine.usage().frames, self.engine.memory().frames());
        self.engine.usage().frames
    }

    fn get(&self, counter: Counter) -> u64 {
        self.engine.swap().counters().get(counter)
    }

    /// Has all pages on probation stored, whose frames are spare from then on.
    fn store(&mut self) {
        for steps in 0.. {
            assert!(steps < 100, "{} pages stay on probation", self.engine.swap().cached());
            if self.engine.swap().cached() == 0 {
                break;
            }
            assert_ne!(self.engine.reclaim(&mut self.work), Progress::Nothing);
        }
    }

    fn check(&self) {
        balances(&self.engine, GRANTED);
        for number in PAGES {
            if let Some(bytes) = self.engine.memory().peek(page(number)) {
                assert!(*bytes == *prose(number), "page {number:#x} is another");
            }
        }
    }
}

#[test]
fn a_cluster_that_leaves_into_spare_frames_makes_room_before_it_is_stored() {
    let mut world = World::new();
    while world.engine.budget().free() > 0 {
        let missing = world.missing();
        world.write(missing..missing + 1);
    }
    world.check();
    let spare = world.frames() - world.engine.swap().cached();
    assert!(spare > 256, "{spare} frames are spare");
    // A fault for which there is no room.
    let missing = page(world.missing());
    assert!(!world.touch(missing) && world.engine.waiting() == 1);
    let before = (world.get(Counter::zswpout), world.frames());
    world.engine.reclaim_directly(&mut world.work);
    assert!(world.engine.waiting() == 0 && world.touch(missing), "there is room for it");
    assert_eq!((world.get(Counter::zswpout), world.frames()), before, "nothing was stored, no frame is new");
    world.check();
}

#[test]
fn spare_frames_are_given_back_when_no_page_leaves_or_nothing_else_is_left() {
    let mut world = World::new();
    world.store();
    let spare = world.frames();
    assert!(spare > 0);
    // Some were used since the last look.
    world.engine.drop_idle_frames();
    assert_eq!(world.frames(), spare);
    let free = world.engine.budget().free();
    world.engine.drop_idle_frames();
    assert_eq!((world.frames(), world.engine.budget().free()), (0, free + spare));
    world.check();
    // Whatever is tried for room begins with them.
    world.write(PAGES);
    world.store();
    assert!(world.frames() > 0);
    let mut round = Round::default();
    world.engine.census_step(&mut round, &mut world.work);
    assert_eq!(world.frames(), 0);
    world.check();
}

#[test]
fn nothing_is_spare_where_nothing_finds_a_place_and_that_is_proved() {
    let mut world = World::with_pool(0);
    world.write(FIRST..FIRST + GRANTED as u64);
    let missing = page(FIRST + GRANTED as u64);
    assert!(!world.touch(missing) && world.engine.waiting() == 1);
    for _ in 0..100 {
        // A step that says that it has made room would keep reclaim from asking others for it.
        assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved);
        world.engine.reclaim_directly(&mut world.work);
        assert!(world.frames() == world.engine.swap().cached() && world.engine.waiting() == 1);
    }
    let mut round = Round::default();
    let stuck = (0..1000).find_map(|_| match world.engine.census_step(&mut round, &mut world.work) {
        Step::Stuck(tally) => Some(tally),
        step => {
            assert_eq!(step, Step::Goes);
            // Whoever reads faults finds nothing to begin.
            world.engine.reclaim_directly(&mut world.work);
            None
        }
    });
    assert_eq!(
        stuck.map(|tally| (tally.total(), tally.get(Reason::NoPlace))),
        Some((GRANTED as u64, GRANTED as u64))
    );
    assert_eq!(world.frames(), 0);
}
