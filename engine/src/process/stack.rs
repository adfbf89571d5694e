//! The stack of a thread of the program that takes locks of the engine. It may be managed memory (of fibers, say), and its
//! pages must not leave meanwhile: the thread would wait for a fault that takes the same lock.

use crate::runtime::Runtime;
use pagetide_swap::{PageIndex, State};
use pagetide_sys::task;

/// The number of pages that the calls under way may use.
const DEPTH: u64 = 16;

/// Keeps the part of a thread's stack in the program that its calls use.
#[derive(Debug)]
pub(super) struct StackInPlace {
    runtime: &'static Runtime,
    /// Of one cluster, or two.
    tokens: [Option<usize>; 2],
}

impl StackInPlace {
    /// Of the calling thread, before it takes a lock.
    pub(super) fn new(runtime: &'static Runtime) -> Self {
        let mut this = Self { runtime, tokens: [None, None] };
        let here = PageIndex::of_address((&raw const this).addr());
        let deeper = PageIndex(here.0.saturating_sub(DEPTH));
        let engine = runtime.engine();
        let protect = |page: PageIndex| loop {
            match engine.protect(page.cluster()) {
                Some(token) => break token,
                // More threads than places: each holds one for microseconds, while another forks, or while it copies from a process.
                None => std::thread::yield_now(),
            }
        };
        this.tokens[0] = Some(protect(here));
        if deeper.cluster() != here.cluster() {
            this.tokens[1] = Some(protect(deeper));
        }
        if engine.swap().table().peek(here).state() == State::Present {
            task::populate(deeper.address(), here.address() - deeper.address());
        }
        this
    }
}

impl Drop for StackInPlace {
    fn drop(&mut self) {
        for token in self.tokens.into_iter().flatten() {
            self.runtime.engine().unprotect(token);
        }
    }
}
