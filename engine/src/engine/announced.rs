//! What a call of the program is about to touch comes in with its first fault.

use super::{Engine, Workspace};
use crate::memory::Memory;
use crate::regions::Access;
use pagetide_swap::announced::Call;
use pagetide_swap::{Counter, PageIndex, Source, State, Swapin, Transfer, Window};
use std::ops::Range;

impl<M: Memory> Engine<M> {
    /// Notes that a call of the program is about to touch `pages`. `None` if nothing comes in for that.
    pub fn announce(&self, pages: Range<PageIndex>) -> Option<Call> {
        if self.swap.takes_windows() { self.streams.announced.announce(pages) } else { None }
    }

    /// Notes that an announced call has ended.
    pub fn retract(&self, call: Call) {
        self.streams.announced.retract(call);
    }

    /// Forgets calls that have not said that they have ended. To be called a few times a second.
    pub fn forget_ended_calls(&self) {
        self.streams.announced.forget_ended();
    }

    /// Brings in those of `pages` that are out, wherever they are, as long as there is room and nobody waits: a call is about to
    /// touch them. They are to come before its thread wakes, which would ask for them itself. `demanded` is the transfer that the
    /// thread waits for: under way, or, unless it is from the device, not yet paid for.
    pub(super) fn bring_announced(
        &self,
        pages: Range<PageIndex>,
        demanded: Option<&Transfer>,
        write: bool,
        work: &mut Workspace,
    ) {
        let mut next = pages.start;
        let (reserved, asked) = match demanded {
            None => (0, 0),
            Some(Transfer { source: Source::Device { .. }, length, .. }) => (0, length - 1),
            Some(transfer) => (transfer.length, 0),
        };
        // By the rule of readahead.
        let reach = self.swap.reach_ahead(Window::ahead((pages.end.0 - next.0) as usize + 1));
        let mut from_device = reach.saturating_sub(asked);
        while next < pages.end && self.may_read_ahead() {
            let word = self.swap.table().peek(next);
            if word.is_locked() || word.state() == State::Present {
                next = next.plus(1);
                continue;
            }
            // The page of the fault is claimed: nothing is waited for.
            let Ok(regions) = self.regions.try_read() else { return };
            let Some((around, attributes)) = regions.around(next) else { return };
            let writable = attributes.access == Access::Write;
            if attributes.access == Access::None || (write && !writable) {
                // The call ends there.
                return;
            }
            let window = Window::ahead((pages.end.0 - next.0) as usize);
            let found = self.swap.swapin(next, next..around.end, window);
            drop(regions);
            match found {
                Swapin::Present | Swapin::Pending => next = next.plus(1),
                Swapin::Poisoned => return,
                Swapin::Inserted(mut transfer) => {
                    transfer.ahead = true;
                    let room = (self.budget.free() - reserved as i64).max(0) as usize;
                    let is_device = matches!(transfer.source, Source::Device { .. });
                    let most = if is_device { room.min(from_device) } else { room };
                    if most == 0 {
                        self.release(&transfer);
                        return;
                    }
                    self.narrow(&mut transfer, most);
                    from_device -= if is_device { transfer.length } else { 0 };
                    next = transfer.pages().end;
                    let (source, length) = (transfer.source, transfer.length);
                    if !self.bring_ahead(transfer, write, writable, work) {
                        return;
                    }
                    if !matches!(source, Source::Hole | Source::Frames { .. }) {
                        self.count(Counter::swap_ra_hit, length);
                    }
                }
            }
        }
    }

    /// Brings in a transfer that nobody has asked for. Returns false if there is no room, or the device has too much to do: then
    /// it has been let go.
    fn bring_ahead(&self, transfer: Transfer, write: bool, writable: bool, work: &mut Workspace) -> bool {
        if let Source::Frames { slot } = transfer.source {
            self.bring_from_frames(&transfer, slot, writable);
            return true;
        }
        if self.bring_long_run(&transfer, write, writable, work) {
            return true;
        }
        if !self.budget.try_take(transfer.length) {
            self.release(&transfer);
            return false;
        }
        match transfer.source {
            Source::Device { block } => return self.read(transfer, block, false, 0),
            Source::Memory => self.bring_loaded(transfer, work),
            _ => self.bring_zeroes(&transfer, write),
        }
        true
    }
}
