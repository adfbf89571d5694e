//! Events that are drawn at random.

use crate::common::{Random, compose, page, pages};
use crate::drawn::any_switches;
use crate::world::{AREA, Action, THREADS, World};
use pagetide::memory::Memory;
use pagetide::regions::Access;
use pagetide_swap::{CLUSTER_PAGES, Word};
use std::ops::Range;

impl World {
    pub(crate) fn some_range(random: &mut Random, longest: u64) -> Range<u64> {
        let length = 1 + random.below(longest);
        let start = AREA.start + random.below(AREA.end - AREA.start - length);
        start..start + length
    }

    pub(crate) fn event(&mut self, random: &mut Random) {
        match random.below(1000) {
            0..600 => self.run_thread(random),
            600..752 => {
                self.engine.reclaim(&mut self.work);
            }
            752..757 => _ = self.engine.count_zero_pages(1),
            757 => self.engine.drop_dead_frames(),
            758 => self.rests = true,
            759 => self.end_rest(),
            760..764 if self.swaps_off => drop(self.engine.swapoff()),
            764 if self.swaps_off => self.engine.swapon(),
            760..900 => {
                if let Some(deferred) = &self.deferred {
                    let held = deferred.held() as u64;
                    if held > 0 {
                        deferred.release(random.below(held) as usize);
                    }
                }
                self.complete();
            }
            900..915 => self.engine.retry_waiting(&mut self.work),
            915..925 => self.engine.reclaim_directly(&mut self.work),
            drawn @ 925..968 => self.call(drawn, random),
            drawn => self.happening(drawn, random),
        }
    }

    /// A call of the program's.
    fn call(&mut self, drawn: u64, random: &mut Random) {
        match drawn {
            925..940 => {
                let range = Self::some_range(random, 700);
                self.discard(range);
            }
            940..950 => {
                let length = 1 + random.below(700);
                let from = Self::some_range(random, 1).start.min(AREA.end - length);
                let to = Self::some_range(random, 1).start.min(AREA.end - length);
                let mapped = (from..from + length)
                    .all(|number| self.engine.regions.read().unwrap().find(page(number)).is_some());
                if mapped && from.abs_diff(to) >= length {
                    self.remap(from, to, length, random.one_in(2));
                }
            }
            950..955 => {
                let range = Self::some_range(random, 300);
                self.unmap(range);
            }
            955..962 => {
                let range = Self::some_range(random, 900);
                self.map(range);
            }
            _ => {
                let range = Self::some_range(random, 300);
                let access =
                    [Access::None, Access::Read, Access::Write, Access::Write][random.below(4) as usize];
                self.protect(range, access);
            }
        }
    }

    /// What comes from elsewhere: other settings, the kernel, a fork.
    fn happening(&mut self, drawn: u64, random: &mut Random) {
        match drawn {
            968..970 => {
                let zswap = self.engine.swap().zswap();
                zswap.set_pages_max(random.below(120) as usize);
                zswap.set_recompress_max([0, 60, usize::MAX][random.below(3) as usize]);
            }
            970..971 => self.engine.swap().zswap().switch(any_switches(random)),
            971..972 => self.engine.set_pool_pressure(random.below(3) as f64),
            972..976 => {
                // The kernel drops pages that nobody tells us of.
                let range = Self::some_range(random, 40);
                for number in range {
                    if self.memory().peek(page(number)).is_some() {
                        self.memory().drop_pages(pages(number..number + 1));
                        self.model.remove(&number);
                    }
                }
            }
            976..980 => self.sneak_in(random),
            980..984 => {
                let memory = self.memory();
                memory.set_can_move(!random.one_in(3));
                memory.set_can_remap(!random.one_in(3));
                memory.set_may_pin(random.one_in(3));
                memory.set_no_memory_every([0, 0, 7][random.below(3) as usize]);
            }
            984..985 => self.memory().share(),
            985..988 => {
                for number in Self::some_range(random, 60) {
                    self.memory().pin(page(number), random.one_in(4));
                }
            }
            988..992 => self.protect_a_cluster(random),
            992..996 => {
                self.engine.hold_waiting(true);
                self.drain();
                if self.stamp.is_multiple_of(2) {
                    self.borrow();
                }
                self.engine.hold_waiting(false);
            }
            _ => {
                let range = Self::some_range(random, 200);
                self.drain_requests();
                self.engine.recall(pages(range));
            }
        }
    }

    pub(crate) fn run_thread(&mut self, random: &mut Random) {
        let nth = random.below(THREADS as u64) as usize;
        let mut access = self.threads[nth].take().unwrap_or_else(|| {
            // Each thread prefers a region of its own and scans it, with jumps.
            let jump = random.one_in(3);
            let spread = if jump { AREA.end - AREA.start } else { 64 };
            let base = if jump {
                0
            } else {
                (self.stamp / 256 * 97 + nth as u64 * 300) % (AREA.end - AREA.start - 64)
            };
            let number = AREA.start + base + random.below(spread);
            self.stamp += 1;
            self.announce(number);
            let action = if random.one_in(2) { Action::Read } else { Action::Write(random.next() >> 8) };
            self.access(page(number), action)
        });
        if !self.step(&mut access) {
            self.threads[nth] = Some(access);
        } else if random.one_in(6) {
            // A scan goes on at the next page.
            let next = access.page.plus(1);
            if AREA.contains(&next.0) {
                self.threads[nth] = Some(self.access(next, Action::Read));
            }
        } else if let Action::Read = access.action
            && random.one_in(2)
            && AREA.contains(&(access.page.0 + 1))
        {
            self.threads[nth] = Some(self.access(access.page.plus(1), Action::Read));
        }
    }

    /// Now and then a call announces what it touches, from `number` on, or says that it has ended. Some never do.
    fn announce(&mut self, number: u64) {
        match self.stamp % 8 {
            0 | 4 => {
                let end = (number + self.stamp / 4 * 7 % 100).min(AREA.end);
                self.announced = self.engine.announce(pages(number..end));
            }
            2 => self.announced.take().into_iter().for_each(|call| self.engine.retract(call)),
            _ => {}
        }
    }

    /// A page comes into the program that the table takes for a hole.
    pub(crate) fn sneak_in(&mut self, random: &mut Random) {
        let number = Self::some_range(random, 1).start;
        let region = self.engine.regions.read().unwrap().find(page(number));
        if self.word(page(number)) != Word::HOLE
            || region.is_none_or(|region| region.attributes.access != Access::Write)
            || self.memory().peek(page(number)).is_some()
            || self.memory().poisoned().contains(&page(number))
        {
            return;
        }
        let bytes = (!random.one_in(3)).then(|| compose(random.next() >> 8));
        self.memory().put(page(number), bytes.as_deref());
        self.model.remove(&number);
        self.model.extend(bytes.map(|bytes| (number, bytes)));
        if random.one_in(2) {
            self.engine.adopt(pages(number..number + 1));
        }
    }

    /// While a cluster is protected no page of it leaves.
    pub(crate) fn protect_a_cluster(&mut self, random: &mut Random) {
        let cluster = page(Self::some_range(random, 1).start).cluster();
        let token = self.engine.protect(cluster).expect("there is a place");
        let range = cluster.page(0)..cluster.page(0).plus(CLUSTER_PAGES as u64);
        let before = self.memory().presence(range.clone()).present;
        for _ in 0..6 {
            self.engine.reclaim(&mut self.work);
        }
        let after = self.memory().presence(range).present;
        assert!(before.iter().all(|offset| after.contains(offset)), "a page of a protected cluster left");
        self.engine.unprotect(token);
    }
}
