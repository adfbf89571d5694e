//! Events that are drawn at random, and worlds to begin with.

use crate::common::{Random, Shared, page};
use crate::world::{Action, OBJECTS, PROCESSES, STRIDE, Stage, UnderWay, World};
use pagetide::engine::{Limits, Workspace};
use pagetide::fake::{self, Setup};
use pagetide_device::deferred::Deferred;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Device, Direction};
use pagetide_swap::{Config, Readahead, Reclaim};
use std::collections::HashMap;
use std::sync::Arc;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const LONGEST: u64 = STRIDE - 512;

/// A world that follows from a seed.
pub(crate) fn world(random: &mut Random) -> (World, String) {
    let blocks = 64 + random.below(3000);
    let faulty = |direction, nth, errno| {
        Shared::new(&Arc::new(Faulty::new(Box::new(Ram::new(blocks)), direction, nth, Failure::Errno(errno))))
    };
    let (kind, nth) = (random.below(6), 2 + random.below(20));
    let deferred = (kind > 3).then(|| Arc::new(Deferred::new(blocks)));
    let device: Option<Box<dyn Device>> = match kind {
        0 => None,
        1 => Some(Shared::refusing(&Arc::new(Ram::new(blocks)), [0, 5][random.below(2) as usize])),
        2 => Some(faulty(Direction::Read, nth, EIO)),
        3 => Some(faulty(Direction::Write, nth, [EIO, ENOSPC][random.below(2) as usize])),
        _ => deferred.as_ref().map(|device| Shared::refusing(device, 0) as Box<dyn Device>),
    };
    let granted = 64 + random.below(536) as i64;
    let setup = Setup {
        slots: 3 + random.below(6) as usize,
        limits: Limits { low: 8 + granted / 16, high: 16 + granted / 8, probation: random.below(3) as usize },
        pool_pages_max: [0, 8, 40, 200][random.below(4) as usize],
        config: Config {
            reclaim: if random.one_in(4) { Reclaim::Fifo } else { Reclaim::SecondChance },
            readahead: [Readahead::Object, Readahead::Cluster, Readahead::None][random.below(3) as usize],
            page_cluster: random.below(10) as u32,
            ..Config::for_cap(4096)
        },
        device,
        ..Setup::default()
    };
    let text = format!("device {kind} of {blocks}, budget {granted}, {setup:?}");
    let engine = fake::keeper(setup);
    engine.budget().give(granted);
    let numbers = [(); PROCESSES].map(|()| engine.memory().start());
    let mut world = World {
        engine,
        work: Workspace::default(),
        deferred,
        model: HashMap::new(),
        objects: [const { None }; OBJECTS],
        accesses: [None; PROCESSES],
        numbers,
        granted,
        may_lose: kind == 2,
        swaps_off: random.one_in(3),
        stamp: 0,
        reads: 0,
        late: 0,
    };
    for nth in 0..OBJECTS {
        world.create(nth, 1 + random.below(LONGEST), random.below(PROCESSES as u64) as usize);
        world.attach(nth, random.below(PROCESSES as u64) as usize);
    }
    (world, text)
}

impl World {
    pub(crate) fn event(&mut self, random: &mut Random) {
        let process = random.below(PROCESSES as u64) as usize;
        match random.below(1000) {
            0..640 => self.run(process, random),
            640..780 => drop(self.engine.reclaim(&mut self.work)),
            780..784 if self.swaps_off => drop(self.engine.swapoff()),
            784 if self.swaps_off => self.engine.swapon(),
            780..910 => {
                if let Some(deferred) = &self.deferred
                    && let held @ 1.. = deferred.held() as u64
                {
                    deferred.release(random.below(held) as usize);
                }
                self.complete();
            }
            910..930 => self.engine.retry_waiting(&mut self.work),
            930..940 => self.engine.reclaim_directly(&mut self.work),
            drawn => self.call(drawn, process, random),
        }
    }

    /// A call of a process, or what comes from elsewhere.
    fn call(&mut self, drawn: u64, process: usize, random: &mut Random) {
        let nth = random.below(OBJECTS as u64) as usize;
        match drawn {
            940..950 => self.attach(nth, process),
            950..955 => self.detach(nth, process),
            // A fork: the child maps all that its parent does.
            955..960 => {
                let child = random.below(PROCESSES as u64) as usize;
                for nth in 0..OBJECTS {
                    if self.objects[nth].as_ref().is_some_and(|object| object.mapped_by[process]) {
                        self.attach(nth, child);
                    }
                }
            }
            960..963 => self.kill(process),
            963..966 => self.end_object(nth),
            966..972 => self.create(nth, 1 + random.below(LONGEST), process),
            972..974 => self.retire(nth),
            974..982 => {
                let Some(object) = self.objects[nth].clone() else { return };
                let length = object.pages.end - object.pages.start;
                let start = object.pages.start + random.below(length);
                self.punch(start..(start + 1 + random.below(200)).min(object.pages.end));
            }
            982..988 => {
                let pieces = [None, None, Some(0), Some(random.below(40))][random.below(4) as usize];
                self.memory().pin_after(pieces);
            }
            988..992 => self.memory().set_no_memory_every([0, 0, 7][random.below(3) as usize]),
            992..996 => self.engine.swap().zswap().set_pages_max(random.below(120) as usize),
            996..998 => self.engine.drop_idle_frames(),
            _ => self.push_out(),
        }
    }

    /// A step of what a process does: it reads and writes pages of one object after another, most of them in order.
    fn run(&mut self, process: usize, random: &mut Random) {
        let mut access = match self.accesses[process].take() {
            Some(access) => access,
            None => {
                let nth = random.below(OBJECTS as u64) as usize;
                let Some(object) = self.objects[nth].as_ref().filter(|object| object.mapped_by[process])
                else {
                    return;
                };
                let length = object.pages.end - object.pages.start;
                // Processes meet: most look at a few pages, which move on.
                let base = if random.one_in(4) {
                    random.below(length)
                } else {
                    self.stamp / 64 * 7 + random.below(24)
                };
                let action = if random.one_in(2) { Action::Read } else { Action::Write };
                UnderWay { page: page(object.pages.start + base % length), action, stage: Stage::Looks }
            }
        };
        if !self.step(process, &mut access) {
            self.accesses[process] = Some(access);
        }
    }
}
