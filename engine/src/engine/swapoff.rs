//! Swapoff: pages on the device come back, in the device's order, while the program runs.
//!
//! Runs are found by the table, not by the program's memory. A page goes to the pool, as if it had just left the
//! program; into the program itself where the pool refuses it. Nothing is written to the device any more. If all does
//! not fit, the device is used as before.

use super::requests::Pending;
use super::{Engine, Workspace, lock};
use crate::memory::Memory;
use pagetide_swap::streams::AHEAD_MAX;
use pagetide_swap::{DeviceRun, PAGE_SIZE, PageIndex, Source, Stored, Swapin, Transfer, WINDOW_MAX};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Runs that are looked up at a time.
const RUNS: usize = 4096;
/// The number of calls without a request under way or a page that came back, after which there is no room for the rest:
/// some seconds, in which reclaim has looked for memory in vain.
const IDLE_MAX: u32 = 300;

/// The progress of swapoff.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    runs: VecDeque<DeviceRun>,
    /// The block from which runs are looked for next.
    cursor: u64,
    /// How often all of the device was gone through.
    pass: u32,
    /// Blocks held at the last call, and calls since there were fewer.
    held: u64,
    idle: u32,
    /// Whether reclaim has found that there is no room.
    hopeless: bool,
}

/// The state of swapoff after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swapoff {
    /// No page is on the device any more.
    Done,
    /// More pages are to come.
    Goes,
    /// There is no room for the rest. The device is in use again.
    NoRoom,
}

impl<M: Memory> Engine<M> {
    /// Takes the device out of use, one step for each call: to be called by one thread at a time until it returns
    /// something else than [`Swapoff::Goes`].
    pub fn swapoff(&self) -> Swapoff {
        let mut leaving = lock(&self.outage.leaving);
        let leaving = &mut *leaving;
        self.outage.off.store(true, Relaxed);
        // As in `Engine::allocate`.
        fence(SeqCst);
        let held = self.swap.blocks().used();
        if held == 0 && self.requests() == 0 {
            return Swapoff::Done;
        }
        if held < leaving.held {
            leaving.idle = 0;
        } else if self.requests() == 0 {
            leaving.idle += 1;
        }
        leaving.held = held;
        if leaving.idle > IDLE_MAX || leaving.hopeless {
            *leaving = Leaving::default();
            self.outage.off.store(false, Relaxed);
            return Swapoff::NoRoom;
        }
        // With less than that reclaim makes room, and borrows.
        while self.requests() < AHEAD_MAX && self.budget.free() >= self.watermarks.low() {
            if let Some(run) = leaving.runs.pop_front() {
                self.fetch(run, leaving.pass);
                continue;
            }
            leaving.runs = self.swap.device_runs(leaving.cursor, RUNS).into();
            if let Some(last) = leaving.runs.back() {
                leaving.cursor = last.block + last.length as u64;
            } else {
                (leaving.cursor, leaving.pass) = (0, leaving.pass + 1);
                break;
            }
        }
        Swapoff::Goes
    }

    /// Gives swapoff up, since the program needs all the memory that there is, and puts the device into use again.
    pub fn cancel_swapoff(&self) {
        let mut leaving = lock(&self.outage.leaving);
        // Unless somebody was quicker.
        leaving.hopeless = self.is_swapped_off();
        self.outage.off.store(false, Relaxed);
    }

    /// Puts the device into use again.
    pub fn swapon(&self) {
        let mut leaving = lock(&self.outage.leaving);
        *leaving = Leaving::default();
        self.outage.off.store(false, Relaxed);
    }

    /// Returns whether the device is out of use, or going: no page is written to it.
    pub fn is_swapped_off(&self) -> bool {
        self.outage.off.load(Relaxed)
    }

    /// Starts to read a run: at first to put it into the pool, then what is left for the program, in the end each page
    /// alone.
    fn fetch(&self, run: DeviceRun, pass: u32) {
        let most = if pass < 2 { WINDOW_MAX } else { 1 };
        let mut pages = run.pages();
        while pages.start < pages.end {
            let Some(mut transfer) = self.claim_run(&pages, most) else {
                pages.start = pages.start.plus(1);
                continue;
            };
            pages.start = transfer.pages().end;
            let Source::Device { block } = transfer.source else {
                self.release(&transfer);
                continue;
            };
            transfer.ahead = true;
            if !self.budget.try_take(transfer.length) {
                self.release(&transfer);
            } else if pass == 0 {
                drop(self.submit_read(Pending::Move { transfer }, &transfer, block));
            } else {
                self.read(transfer, block, false, 0);
            }
        }
    }

    fn claim_run(&self, pages: &Range<PageIndex>, most: usize) -> Option<Transfer> {
        // As a fault does: a mapping that is about to move has no region.
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let (around, _) = regions.around(pages.start)?;
        let end = around.end.min(pages.end).min(pages.start.plus(most as u64));
        match self.swap.swapin_run(pages.start..end) {
            Swapin::Inserted(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// A run was read that is to go to the pool.
    pub(super) fn move_ended(
        &self,
        transfer: &Transfer,
        bytes: &mut [u8],
        result: &std::io::Result<()>,
        work: &mut Workspace,
    ) {
        let mut places = [None; WINDOW_MAX];
        if result.is_ok() {
            for (nth, page) in bytes.chunks_exact_mut(PAGE_SIZE).take(transfer.length).enumerate() {
                // What cannot be read is looked at again when it is brought into the program.
                if self.swap.open(transfer, nth, page).is_ok()
                    && let Stored::New(place) = self.swap.store(page, None, false, &mut work.scratch)
                {
                    places[nth] = Some(place);
                }
            }
        }
        let wanted = self.swap.finish_move(transfer, &places[..transfer.length]);
        // Paid for while it was in a buffer.
        self.budget.give(transfer.length as i64);
        self.charge_pool();
        self.wake_wanted(transfer, wanted);
    }
}
