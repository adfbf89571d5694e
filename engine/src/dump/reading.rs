//! Reading from the memory of a process, at addresses that its board tells.

use super::board::{Board, Root};
use pagetide_swap::ClusterNumber;
use pagetide_swap::table::outside::{Anatomy, Memory, Outside};

/// Slots that probation may have: more is no number of slots.
const SLOTS_MAX: u64 = 1 << 16;
/// Bytes that a slot may take.
const STRIDE_MAX: u64 = 4096;

/// Memory of a process, of which only the engine's heap is read: no other is sure to be unmanaged.
#[derive(Debug)]
pub struct Heap<M> {
    memory: M,
    start: u64,
    end: u64,
}

impl<M: Memory> Memory for Heap<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let end = address.checked_add(into.len() as u64);
        if address < self.start || end.is_none_or(|end| end > self.end) {
            return Err(format!("{address:#x} does not lie in the engine's heap"));
        }
        self.memory.read(address, into)
    }
}

/// A fork that has stopped the work of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The thread that forks, as the process sees it.
    pub tid: u32,
    /// The time of the kernel's clock at which it began, in nanoseconds.
    pub since: u64,
    /// Whether work is stopped by now.
    pub frozen: bool,
    /// Whether faults are served all the same.
    pub serving: bool,
}

/// A slot of staging with pages on probation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Its number.
    pub number: u16,
    /// References: one for each of its pages on probation, and one for the thread that processes it.
    pub references: u64,
    /// The cluster of its pages.
    pub cluster: ClusterNumber,
    /// Whether it waits to be processed.
    pub queued: bool,
    /// Whether the device was too busy for its pages.
    pub late: bool,
}

/// The counts of an engine, in pages, as they are at this instant.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Pages that may still be used.
    pub free: i64,
    /// Free pages below which reclaim begins.
    pub low: i64,
    /// Free pages above which reclaim ends.
    pub high: i64,
    /// Pages that frames take.
    pub frames: i64,
    /// Faults that wait for room or for the device.
    pub stalled: i64,
    /// Requests under way.
    pub requests: u64,
    /// Requests of those that write.
    pub writes: u64,
    /// Whether waiting faults are held back for a fork.
    pub held: bool,
    /// Whether a write has failed.
    pub device_failed: bool,
    /// Whether the device goes out of use.
    pub device_off: bool,
    /// Pages for which there was no place lately.
    pub refused: u64,
    /// The cluster of the take-out under way.
    pub taking: Option<ClusterNumber>,
    /// Mapping calls of the program under way.
    pub calls: u64,
    /// Pieces of work under way.
    pub working: u64,
    /// Completions under way.
    pub completing: u64,
    /// A fork, if one is under way.
    pub fork: Option<Fork>,
    /// The number of slots.
    pub slots: usize,
    /// The slots that are not empty.
    pub used: Vec<Slot>,
}

/// Returns the heap of the engine whose board this is.
pub fn heap<M: Memory>(board: Board, memory: M) -> Heap<M> {
    Heap { memory, start: board.root(Root::HeapStart), end: board.root(Root::HeapEnd) }
}

/// Returns where the table lies of the engine whose board this is.
///
/// # Errors
/// A text for people: the engine's memory cannot be read, or does not hold what it should.
pub fn table<M: Memory>(board: Board, heap: &Heap<M>) -> Result<Outside<'_, Heap<M>>, String> {
    let segments = [Root::Units, Root::Pages, Root::Flats].map(|root| board.root(root));
    Outside::open(heap, Anatomy { leaves: board.root(Root::Leaves), segments })
}

/// Reads the counts of an engine.
///
/// # Errors
/// A text for people: the engine's memory cannot be read, or does not hold what it should.
pub fn counts<M: Memory>(board: Board, heap: &Heap<M>) -> Result<Counts, String> {
    let word = |root| heap.words(board.root(root)).map(|[word]: [u64; 1]| word);
    let number = |root| word(root).map(|word| word as i64);
    let flag = |root| {
        let mut byte = [0];
        heap.read(board.root(root), &mut byte).map(|()| byte[0] != 0)
    };
    let closer = word(Root::Closer)? as u32;
    let fork = Fork {
        tid: closer,
        since: word(Root::ClosedAt)?,
        frozen: flag(Root::Frozen)?,
        serving: flag(Root::Serving)?,
    };
    let (slots, used) = used_slots(board, heap)?;
    Ok(Counts {
        free: number(Root::Free)?,
        low: number(Root::Low)?,
        high: number(Root::High)?,
        frames: number(Root::Frames)?,
        stalled: number(Root::Stalled)?,
        requests: word(Root::Requests)?,
        writes: word(Root::Writes)?,
        held: flag(Root::Held)?,
        device_failed: flag(Root::DeviceFailed)?,
        device_off: flag(Root::DeviceOff)?,
        refused: word(Root::Refused)?,
        taking: word(Root::Taking)?.checked_sub(1).map(ClusterNumber),
        calls: word(Root::Calls)?,
        working: word(Root::Working)?,
        completing: word(Root::Completing)?,
        fork: (closer != 0).then_some(fork),
        slots,
        used,
    })
}

fn used_slots<M: Memory>(board: Board, heap: &Heap<M>) -> Result<(usize, Vec<Slot>), String> {
    let [first, count, stride] =
        [Root::Slots, Root::SlotCount, Root::SlotStride].map(|root| board.root(root));
    let offsets = [Root::SlotRefs, Root::SlotCluster, Root::SlotQueued, Root::SlotLate];
    let [references, cluster, queued, late] = offsets.map(|root| board.root(root));
    let fits = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= stride);
    let whole = fits(references, 8) && fits(cluster, 8) && fits(queued, 1) && fits(late, 1);
    if count > SLOTS_MAX || stride > STRIDE_MAX || !whole {
        return Err(format!("{count} slots of {stride} bytes cannot be"));
    }
    let mut bytes = vec![0; (count * stride) as usize];
    if bytes.is_empty() {
        return Ok((0, Vec::new()));
    }
    heap.read(first, &mut bytes)?;
    let word = |slot: &[u8], at: u64| {
        u64::from_ne_bytes(*slot[at as usize..].first_chunk().expect("it fits, as was checked"))
    };
    let slots = bytes.chunks_exact(stride as usize).enumerate().map(|(number, slot)| Slot {
        number: number as u16,
        references: word(slot, references),
        cluster: ClusterNumber(word(slot, cluster)),
        queued: slot[queued as usize] != 0,
        late: slot[late as usize] != 0,
    });
    Ok((count as usize, slots.filter(|slot| slot.references > 0).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::board::WORDS;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Bytes drawn at random, wherever they are read.
    struct Hostile(Cell<u64>);

    impl Hostile {
        fn draw(&self) -> u64 {
            let next =
                self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0.set(next);
            if next >> 62 == 0 { next >> 50 } else { next.rotate_left(29) }
        }
    }

    impl Memory for &Hostile {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), String> {
            into.chunks_mut(8)
                .for_each(|word| word.copy_from_slice(&self.draw().to_ne_bytes()[..word.len()]));
            Ok(())
        }
    }

    #[test]
    fn no_board_and_no_memory_ends_who_reads_it() {
        let words: &[AtomicU64] = (0..WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        let board = Board::of(words);
        let (mut read, mut refused) = (0, 0);
        for seed in 0..1000 {
            let memory = Hostile(Cell::new(seed));
            words.iter().for_each(|word| word.store(memory.draw(), Relaxed));
            let wide = seed % 2 == 0;
            if wide {
                // All of memory is a heap, and slots can be.
                let roots = [
                    (Root::HeapStart, 0),
                    (Root::HeapEnd, u64::MAX),
                    (Root::SlotStride, 64),
                    (Root::SlotCount, 9),
                ];
                roots.into_iter().for_each(|(root, number)| board.show_root(root, number));
                let slots = [Root::SlotRefs, Root::SlotCluster, Root::SlotQueued, Root::SlotLate];
                slots.into_iter().for_each(|root| board.show_root(root, seed % 60));
            }
            let heap = heap(board, &memory);
            match counts(board, &heap) {
                Ok(counts) => read += usize::from(counts.slots == 9),
                Err(_) => refused += 1,
            }
            if let Ok(table) = table(board, &heap) {
                let _ = (table.cluster(ClusterNumber(seed)), table.busy());
            }
        }
        assert!(read > 300 && refused > 300, "{read} {refused}");
    }

    #[test]
    fn nothing_is_read_outside_of_the_heap() {
        let heap = Heap { memory: &Hostile(Cell::new(1)), start: 4096, end: 8192 };
        let mut bytes = [0; 8];
        assert!(heap.read(4096, &mut bytes).is_ok() && heap.read(8184, &mut bytes).is_ok());
        for address in [0, 4095, 8185, u64::MAX] {
            assert!(heap.read(address, &mut bytes).is_err(), "{address}");
        }
    }
}
