//! Memory whose faults the program answers itself, by a userfaultfd of its own.
//!
//! The kernel knows one userfaultfd for a mapping. So what a program registers with its own is handed over: all of it
//! comes in, it is registered with ours no more, and it is not managed until something else is mapped there. Its pages
//! count as any that cannot leave.

use super::{Entered, lock};
use crate::clock::clock;
use crate::engine::Workspace;
use crate::regions::Access;
use pagetide_swap::{PageIndex, State};
use pagetide_sys::task;
use std::ops::Range;
use std::time::Duration;

/// Between two looks at a page that waits for room.
const LOOK: Duration = Duration::from_micros(200);
/// Looks until such a page is asked for once more.
const LOOKS: u32 = 500;

impl Entered<'_> {
    /// Hands the managed pages of `range` over to the program's own userfaultfd.
    pub fn hand_over(&self, range: Range<PageIndex>) {
        self.keep(range.clone());
        self.fetch(range.clone());
        let _layout = lock(&self.generation.layout);
        let removed = self.regions().remove(range);
        // Before there is an engine, what was charged stays so: the memory is there, and nobody counts it otherwise.
        if let Some(runtime) = self.runtime {
            for (part, _) in &removed {
                // An error means that it is not registered: it was unmapped by a call that nobody told us of.
                let _ = runtime.release(part.clone());
            }
            self.forget(&removed);
        }
    }

    /// Runs `call`, which takes pages away from `range`, while all of it is in memory.
    pub fn lending<T>(&self, range: Range<PageIndex>, call: impl FnOnce() -> T) -> T {
        let kept: Vec<_> = {
            let regions = self.regions();
            let parts = regions.pieces(range.clone()).filter(|(_, region)| !region.attributes.kept);
            parts.map(|(part, _)| part).collect()
        };
        self.keep(range.clone());
        self.fetch(range.clone());
        let result = call();
        for part in kept {
            self.regions().change(part, |attributes| attributes.kept = false);
        }
        if let Some(runtime) = self.runtime {
            runtime.run_control_task(move |runtime| {
                let (engine, mut work) = (runtime.engine(), Workspace::default());
                let there = super::words(runtime, range).filter(|(_, word)| word.state() == State::Present);
                // Whoever faults on a page that is not there learns that it has gone, and so does the table.
                there.for_each(|(page, _)| engine.fault(page, false, clock(), &mut work));
            });
        }
        result
    }

    /// Brings in the pages of `range` that are out, which do not leave any more, whatever the program's access to them.
    fn fetch(&self, range: Range<PageIndex>) {
        let Some(runtime) = self.runtime else { return };
        let is_shared = runtime.engine().memory().is_shared();
        loop {
            let out = self.out(range.clone());
            if out.is_empty() {
                return;
            }
            for run in out {
                let access = self.regions().find(run.start).map(|region| region.attributes.access);
                // Pages of objects have no addresses here.
                let access = access.filter(|_| !is_shared);
                let (start, length) = (run.start.address(), run.end.address() - run.start.address());
                match access {
                    Some(Access::Write) => task::populate(start, length),
                    Some(Access::Read) => task::bring_in(start, length),
                    Some(Access::None) | None => {}
                }
                if is_shared {
                    let pages = (run.start.0..run.end.0).map(PageIndex);
                    runtime.run_control_task(move |runtime| {
                        let mut work = Workspace::default();
                        pages.for_each(|page| runtime.engine().fault(page, false, clock(), &mut work));
                    });
                }
                // What may not be touched, or a kernel that populates nothing (before 5.14).
                for page in (run.start.0..run.end.0).map(PageIndex) {
                    let mut looks = 0;
                    while !self.out(page..page.plus(1)).is_empty() {
                        if looks % LOOKS == 0 {
                            let ask = move |work: &mut Workspace| {
                                runtime.engine().fault(page, false, clock(), work)
                            };
                            runtime.run_control_task(move |_| ask(&mut Workspace::default()));
                        } else {
                            std::thread::sleep(LOOK);
                        }
                        looks += 1;
                    }
                }
            }
        }
    }
}
