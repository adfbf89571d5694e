//! Arming: the start of a process's engine.

use super::{Generation, Process, lock};
use crate::runtime::{Runtime, StartArgs, StartMode};
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::task;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Process {
    /// Starts the engine, and waits until it runs. In a child of `vfork` it does nothing: threads that it started would
    /// be its own, and end with it. The parent starts the engine when it charges next.
    pub fn arm(&'static self) {
        self.arm_with(StartMode::None);
    }

    pub(super) fn arm_with(&'static self, mode: StartMode) {
        let _signals = SignalsBlocked::new();
        let generation = self.generation();
        if !self.is_current() || generation.has_started() {
            return;
        }
        if !generation.starting.swap(true, Relaxed) {
            self.start(generation, mode);
        }
        generation.wait_started();
    }

    pub(super) fn start(&'static self, generation: &'static Generation, mode: StartMode) {
        let args = StartArgs {
            group: self.group,
            slot: generation.slot,
            mode,
            source: self.source.clone(),
            pins: Arc::clone(&self.pins),
            has_family: Arc::clone(&self.has_family),
            layout: Arc::clone(&generation.layout),
            stop: Box::new(move || {
                // Mapping calls under way end first; new ones wait until the engine has the regions.
                generation.assembling.store(true, Relaxed);
                generation.phase.freeze(task::tid());
                std::mem::take(&mut *lock(&generation.early))
            }),
            ended: Box::new(move |started| {
                generation.note_start(started);
                if generation.assembling.load(Relaxed) {
                    generation.phase.thaw();
                }
            }),
        };
        if let Err(error) = Runtime::start(args) {
            generation.note_start(Err(error));
        }
    }
}
