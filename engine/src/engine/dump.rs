//! The state that an engine shows on its board.

use super::Engine;
use crate::dump::board::{Board, Root};
use crate::memory::Memory;

impl<M: Memory> Engine<M> {
    /// Shows parked faults and requests on `board` from now on, and tells where counts, slots and the table lie. The
    /// engine must stay where it is.
    pub fn show_on(&self, board: Board) {
        self.parked.show_on(board);
        self.meters.waits.show_on(board);
        self.requests.show_on(board);
        board.show(Root::Free, &self.budget);
        board.show(Root::Low, &self.watermarks.low);
        board.show(Root::High, &self.watermarks.high);
        board.show(Root::Frames, &self.staging.frames);
        board.show(Root::Stalled, &self.meters.stalled);
        board.show(Root::Held, &self.parked.held);
        board.show(Root::DeviceFailed, &self.outage.failed);
        board.show(Root::DeviceOff, &self.outage.off);
        board.show(Root::Refused, &self.outage.refused);
        board.show(Root::Taking, &self.protection.taking[0]);
        let table = self.swap.table().anatomy();
        board.show_root(Root::Leaves, table.leaves);
        let finer = [Root::Units, Root::Pages, Root::Flats];
        finer.into_iter().zip(table.segments).for_each(|(root, address)| board.show_root(root, address));
        let slots = self.probation().anatomy();
        let roots = [
            (Root::Slots, slots.first),
            (Root::SlotCount, slots.count),
            (Root::SlotStride, slots.stride),
            (Root::SlotRefs, slots.refs),
            (Root::SlotCluster, slots.cluster),
            (Root::SlotQueued, slots.queued),
            (Root::SlotLate, slots.late),
        ];
        roots.into_iter().for_each(|(root, number)| board.show_root(root, number as u64));
    }
}
