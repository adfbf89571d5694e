//! A ring of requests in shared memory, by which the engines of a run reach the one process that has a connection to
//! the remote tier.
//!
//! An engine that wants blocks read or written takes a *place* of the ring, copies what is to be written into it, and
//! rings the server's bell. The server takes what was asked, and rings the bell of whoever asked when it has ended.
//! There are no locks: a process may be killed at any instant, and its places are free again once the run knows that it
//! is gone.
//!
//! ```text
//! header │ a bell for each member │ places: state, number, block, … │ a buffer for each place
//!
//!         member             member              server              server           member
//! free ─────────▶ claimed ─────────▶ submitted ─────────▶ taken ─────────▶ ended ─────────▶ free
//! ```
//!
//! All processes of a run can write to it, and they need not be the same user's. Pages in it are encrypted by then, and
//! whoever reads one proves it by its hash: a member that writes where it should not can lose pages, and read none.

use crate::{BLOCK, Direction};
use pagetide_sys::shared::{Shared, futex_wait, futex_wake, futex_wake_one};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

/// The number of requests under way at most.
pub const PLACES: usize = 24;
/// The number of blocks in a request at most: 128 KiB, as many as an engine writes at once. All places take 3 MiB.
pub const PLACE_BLOCKS: usize = 32;
/// The number of members at most, which are the slots of the group page.
pub const MEMBERS: usize = 256;
/// Writes take these places only: a fault finds one of the others when all of these wait for the network.
const WRITE_PLACES: usize = 16;

/// Words of the bitmap of members that found no place.
const REFUSED_WORDS: usize = MEMBERS / u64::BITS as usize;

const MAGIC: u64 = u64::from_le_bytes(*b"tidering");
const VERSION: u64 = 1;
const HEADER_WORDS: usize = 16;
const PLACE_WORDS: usize = 8;
const PLACES_AT: usize = HEADER_WORDS + MEMBERS;
const WORDS: usize = PLACES_AT + PLACES * PLACE_WORDS;
const BUFFERS_AT: usize = (WORDS * 8).next_multiple_of(BLOCK);
const _: () = assert!(Header::Refused as usize + REFUSED_WORDS <= HEADER_WORDS);
const BYTES: usize = BUFFERS_AT + PLACES * PLACE_BLOCKS * BLOCK;

/// Words of the header.
#[derive(Clone, Copy)]
enum Header {
    Magic,
    Version,
    /// The futex at which the server waits.
    Bell,
    /// The number of the last request.
    Number,
    /// Whether the server has gone.
    Gone,
    /// The time from a request to its answer, of late, in nanoseconds.
    RoundTrip,
    /// The first word of the members that found no place, a bit each.
    Refused,
}

/// The words of a place.
#[derive(Clone, Copy)]
enum Word {
    /// State and owner, see [`State`].
    State,
    /// The request's number: later requests have larger ones.
    Number,
    Direction,
    Block,
    Count,
    /// The error's number; 0 where there is none.
    Error,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum State {
    Free,
    Claimed,
    Submitted,
    Taken,
    Ended,
}

/// A process that asks: a slot of the group page, and its tenancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The slot's number, below [`MEMBERS`].
    pub index: usize,
    /// How often the slot was given away before.
    pub tenancy: u64,
}

const STATE_BITS: u32 = 8;
const INDEX_BITS: u32 = 16;
const TENANCY_BITS: u32 = 64 - STATE_BITS - INDEX_BITS;

/// The word of a place in this state, and with this owner.
fn word(state: State, owner: Member) -> u64 {
    let tenancy = owner.tenancy & ((1 << TENANCY_BITS) - 1);
    state as u64 | (owner.index as u64) << STATE_BITS | tenancy << (STATE_BITS + INDEX_BITS)
}

fn state_of(word: u64) -> u8 {
    word as u8
}

fn owner_of(word: u64) -> Member {
    let index = (word >> STATE_BITS) as usize & ((1 << INDEX_BITS) - 1);
    Member { index, tenancy: word >> (STATE_BITS + INDEX_BITS) }
}

/// A request that the server has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    place: usize,
    word: u64,
    /// Its number: later requests have larger ones.
    pub number: u64,
    /// Whether blocks are read or written.
    pub direction: Direction,
    /// The first block.
    pub block: u64,
    /// The number of blocks.
    pub count: usize,
}

impl Taken {
    /// Returns who asks.
    pub fn member(&self) -> Member {
        owner_of(self.word)
    }
}

/// A request of a member's that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The place in which it was.
    pub place: usize,
    /// How it ended.
    pub result: io::Result<()>,
}

/// The ring.
///
/// ```
/// use pagetide_device::ring::{Member, Ring};
/// use pagetide_device::{BLOCK, Direction};
///
/// let (_fd, ring) = Ring::create()?;
/// let member = Member { index: 3, tenancy: 1 };
/// ring.submit(member, Direction::Write, 7, &[1; BLOCK]).expect("all places are free");
/// // The server's side.
/// let taken = ring.take(8, true).remove(0);
/// assert_eq!((taken.block, taken.count, ring.bytes(&taken)), (7, 1, vec![1; BLOCK]));
/// ring.end(&taken, Ok(()));
/// // And the member's again.
/// let ended = ring.ended(member).remove(0);
/// assert!(ended.result.is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    shared: Shared,
    words: &'static [AtomicU64],
}

impl Ring {
    /// Creates a ring.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn create() -> io::Result<(OwnedFd, Self)> {
        let (fd, shared) = Shared::create("pagetide-ring", BYTES)?;
        // All at once: it would be taken within the first milliseconds in which memory is short.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, BYTES as u64)?;
        let this = Self { shared, words: shared.words(0, WORDS) };
        this.header(Header::Version).store(VERSION, Relaxed);
        this.header(Header::Magic).store(MAGIC, Release);
        Ok((fd, this))
    }

    /// Maps the ring of which this is the file.
    ///
    /// # Errors
    /// It cannot be mapped; `EINVAL` if the file is no ring, or that of another version of Pagetide.
    pub fn adopt(file: &OwnedFd) -> io::Result<Self> {
        let shared = Shared::adopt(file)?;
        if shared.len() != BYTES {
            return Err(Errno::INVAL.into());
        }
        let this = Self { shared, words: shared.words(0, WORDS) };
        let is_ring = this.header(Header::Magic).load(Acquire) == MAGIC
            && this.header(Header::Version).load(Relaxed) == VERSION;
        if is_ring { Ok(this) } else { Err(Errno::INVAL.into()) }
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.words[word as usize]
    }

    fn bell_of(&self, member: Member) -> &'static AtomicU64 {
        &self.words[HEADER_WORDS + member.index % MEMBERS]
    }

    fn place(&self, place: usize, word: Word) -> &'static AtomicU64 {
        &self.words[PLACES_AT + place * PLACE_WORDS + word as usize]
    }

    fn buffer(&self, place: usize, bytes: usize) -> &'static [AtomicU64] {
        self.shared.words(BUFFERS_AT + place * PLACE_BLOCKS * BLOCK, bytes / 8)
    }

    /// Returns the time from a request to its answer, of late, in nanoseconds; 0 if there was none yet.
    pub fn round_trip_ns(&self) -> u64 {
        self.header(Header::RoundTrip).load(Relaxed)
    }

    /// Notes the time from a request to its answer.
    pub fn note_round_trip(&self, nanos: u64) {
        let word = self.header(Header::RoundTrip);
        let before = word.load(Relaxed);
        // An eighth of each: of late.
        word.store(if before == 0 { nanos } else { before - before / 8 + nanos / 8 }, Relaxed);
    }

    /// Notes that the server has gone: no request is answered any more.
    pub fn set_gone(&self) {
        self.header(Header::Gone).store(1, Release);
        for bell in &self.words[HEADER_WORDS..PLACES_AT] {
            ring(bell);
        }
    }

    /// Returns whether the server has gone.
    pub fn is_gone(&self) -> bool {
        self.header(Header::Gone).load(Acquire) != 0
    }

    // --- The members' side -------------------------------------------------------------------------------------------

    /// Asks for the blocks from `block` on: as many as `bytes` has. What is to be written is copied. Returns the place
    /// of the request, or `None` if all places are taken.
    ///
    /// # Panics
    /// If `bytes` has more than [`PLACE_BLOCKS`] blocks, or a part of one.
    pub fn submit(&self, member: Member, direction: Direction, block: u64, bytes: &[u8]) -> Option<usize> {
        assert!(bytes.len().is_multiple_of(BLOCK) && bytes.len() <= PLACE_BLOCKS * BLOCK);
        let places = match direction {
            // Those that writes may not take first.
            Direction::Read => (0..PLACES).rev().collect::<Vec<_>>(),
            Direction::Write => (0..WRITE_PLACES).collect(),
        };
        let claimed = word(State::Claimed, member);
        let claim = |&place: &usize| {
            let state = self.place(place, Word::State);
            state_of(state.load(Relaxed)) == State::Free as u8
                && state
                    .fetch_update(AcqRel, Relaxed, |word| {
                        (state_of(word) == State::Free as u8).then_some(claimed)
                    })
                    .is_ok()
        };
        let place = places.iter().copied().find(&claim).or_else(|| {
            // One that became free before this was noted rang nobody.
            self.refused(member.index / 64).fetch_or(1 << (member.index % 64), AcqRel);
            places.iter().copied().find(&claim)
        })?;
        if direction == Direction::Write {
            for (cell, bytes) in self.buffer(place, bytes.len()).iter().zip(bytes.chunks_exact(8)) {
                cell.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Relaxed);
            }
        }
        let set = |word: Word, value: u64| self.place(place, word).store(value, Relaxed);
        set(Word::Direction, u64::from(direction == Direction::Write));
        set(Word::Block, block);
        set(Word::Count, (bytes.len() / BLOCK) as u64);
        set(Word::Number, self.header(Header::Number).fetch_add(1, AcqRel) + 1);
        self.place(place, Word::State).store(word(State::Submitted, member), Release);
        // Threads of the server that are awake look before they wait: one more is enough for this request.
        let bell = self.header(Header::Bell);
        bell.fetch_add(1, AcqRel);
        futex_wake_one(bell);
        Some(place)
    }

    /// Returns the requests of a member that have ended. Their places are free again with [`Ring::release`].
    pub fn ended(&self, member: Member) -> Vec<Ended> {
        let ended =
            |&place: &usize| self.place(place, Word::State).load(Acquire) == word(State::Ended, member);
        let read = |place| {
            let get = |word| self.place(place, word).load(Relaxed);
            let result = match get(Word::Error) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error as i32)),
            };
            Ended { place, result }
        };
        (0..PLACES).filter(ended).map(read).collect()
    }

    /// Copies what was read into a place.
    pub fn copy_from(&self, place: usize, into: &mut [u8]) {
        for (cell, bytes) in self.buffer(place, into.len()).iter().zip(into.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&cell.load(Relaxed).to_le_bytes());
        }
    }

    /// Frees the place of a request that has ended, and rings the bells of members that found no place.
    pub fn release(&self, member: Member, place: usize) {
        let state = self.place(place, Word::State);
        if state.compare_exchange(word(State::Ended, member), State::Free as u64, AcqRel, Relaxed).is_ok() {
            self.call_refused();
        }
    }

    fn refused(&self, word: usize) -> &'static AtomicU64 {
        &self.words[Header::Refused as usize + word]
    }

    fn call_refused(&self) {
        for word in 0..REFUSED_WORDS {
            if self.refused(word).load(Acquire) == 0 {
                continue;
            }
            let members = self.refused(word).swap(0, AcqRel);
            for bit in (0..u64::BITS as usize).filter(|bit| members >> bit & 1 != 0) {
                self.call(Member { index: word * 64 + bit, tenancy: 0 });
            }
        }
    }

    /// Returns the state of a member's bell, to wait for its next ring.
    pub fn bell(&self, member: Member) -> u32 {
        self.bell_of(member).load(Acquire) as u32
    }

    /// Waits until a member's bell has rung since it was `seen`, or `timeout` has passed.
    pub fn wait(&self, member: Member, seen: u32, timeout: Duration) {
        futex_wait(self.bell_of(member), seen, timeout);
    }

    /// Rings a member's bell.
    pub fn call(&self, member: Member) {
        ring(self.bell_of(member));
    }

    // --- The server's side -------------------------------------------------------------------------------------------

    /// Returns the state of the server's bell.
    pub fn server_bell(&self) -> u32 {
        self.header(Header::Bell).load(Acquire) as u32
    }

    /// Waits until the server's bell has rung since it was `seen`, or `timeout` has passed.
    pub fn wait_as_server(&self, seen: u32, timeout: Duration) {
        futex_wait(self.header(Header::Bell), seen, timeout);
    }

    /// Wakes one more thread of the server if a request waits that whoever was woken does not take.
    pub fn pass_on(&self) {
        let waits = |place| {
            let state = self.place(place, Word::State).load(Acquire);
            state_of(state) == State::Submitted as u8
        };
        if (0..PLACES).any(waits) {
            futex_wake_one(self.header(Header::Bell));
        }
    }

    /// Rings the server's bell, for all its threads.
    pub fn call_server(&self) {
        ring(self.header(Header::Bell));
    }

    /// Takes requests until they are of so many blocks: reads only, if there are any, for threads wait for them, else
    /// `writes`, if they are wanted.
    pub fn take(&self, blocks: usize, writes: bool) -> Vec<Taken> {
        let directions = if writes { &[Direction::Read, Direction::Write][..] } else { &[Direction::Read] };
        for &direction in directions {
            let (mut taken, mut count) = (Vec::new(), 0);
            for place in (0..PLACES).rev() {
                if let Some(request) = self.take_from(place, direction) {
                    count += request.count;
                    taken.push(request);
                }
                if count >= blocks {
                    break;
                }
            }
            if !taken.is_empty() {
                return taken;
            }
        }
        Vec::new()
    }

    fn take_from(&self, place: usize, wanted: Direction) -> Option<Taken> {
        let get = |word| self.place(place, word).load(Relaxed);
        let state = self.place(place, Word::State);
        let submitted = state.load(Acquire);
        if state_of(submitted) != State::Submitted as u8 {
            return None;
        }
        let direction = || if get(Word::Direction) == 0 { Direction::Read } else { Direction::Write };
        let owner = owner_of(submitted);
        let taken = word(State::Taken, owner);
        if direction() != wanted || state.compare_exchange(submitted, taken, AcqRel, Relaxed).is_err() {
            return None;
        }
        // Meanwhile the place may have had another request of the same member.
        let direction = direction();
        let (number, block, count) = (get(Word::Number), get(Word::Block), get(Word::Count) as usize);
        let request = Taken { place, word: taken, number, direction, block, count };
        // What a member may write, and not what it may have us do.
        if (1..=PLACE_BLOCKS).contains(&count) && block.checked_add(count as u64).is_some() {
            return Some(request);
        }
        self.end(&request, Err(Errno::INVAL));
        None
    }

    /// Returns the bytes that a write brings.
    pub fn bytes(&self, taken: &Taken) -> Vec<u8> {
        let mut bytes = vec![0; taken.count * BLOCK];
        self.copy_from(taken.place, &mut bytes);
        bytes
    }

    /// Puts the bytes from block `at` of a read into its buffer.
    ///
    /// # Panics
    /// If they are not whole blocks of the request.
    pub fn fill(&self, taken: &Taken, at: usize, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK) && at + bytes.len() / BLOCK <= taken.count);
        let cells = self.buffer(taken.place, taken.count * BLOCK).iter().skip(at * BLOCK / 8);
        for (cell, bytes) in cells.zip(bytes.chunks_exact(8)) {
            cell.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Relaxed);
        }
    }

    /// Ends a request.
    pub fn end(&self, taken: &Taken, result: Result<(), Errno>) {
        let error = result.err().map_or(0, |error| error.raw_os_error() as u64);
        self.place(taken.place, Word::Error).store(error, Relaxed);
        let owner = owner_of(taken.word);
        let state = self.place(taken.place, Word::State);
        if state.compare_exchange(taken.word, word(State::Ended, owner), AcqRel, Relaxed).is_ok() {
            self.call(owner);
        }
    }

    /// Frees the places of members that have gone. What the server has taken it ends first.
    pub fn release_dead(&self, is_gone: impl Fn(Member) -> bool) {
        for place in 0..PLACES {
            let state = self.place(place, Word::State);
            let seen = state.load(Acquire);
            let idle = ![State::Free as u8, State::Taken as u8].contains(&state_of(seen));
            let free = State::Free as u64;
            if idle && is_gone(owner_of(seen)) && state.compare_exchange(seen, free, AcqRel, Relaxed).is_ok()
            {
                self.call_refused();
            }
        }
    }
}

/// Changes a bell, and wakes whoever waits at it.
fn ring(bell: &AtomicU64) {
    bell.fetch_add(1, AcqRel);
    futex_wake(bell);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(index: usize) -> Member {
        Member { index, tenancy: 9 }
    }

    #[test]
    fn writes_leave_places_to_reads_and_reads_are_taken_first() {
        let (_fd, ring) = Ring::create().unwrap();
        let page = [7; BLOCK];
        let submit = |direction, block| ring.submit(member(1), direction, block, &page);
        let written = (0..).take_while(|&block| submit(Direction::Write, block).is_some()).count();
        assert_eq!(written, WRITE_PLACES);
        let read = (0..).take_while(|&block| submit(Direction::Read, block).is_some()).count();
        assert_eq!(written + read, PLACES);
        let taken = ring.take(PLACES * PLACE_BLOCKS, true);
        assert!(taken.len() == read && taken.iter().all(|taken| taken.direction == Direction::Read));
        assert!(
            ring.take(PLACES * PLACE_BLOCKS, true).iter().all(|taken| taken.direction == Direction::Write)
        );
        for taken in taken {
            ring.fill(&taken, 0, &[3; BLOCK]);
            ring.end(&taken, Err(Errno::IO));
        }
        assert!(ring.ended(member(2)).is_empty());
        let ended = ring.ended(member(1));
        assert!(ended.len() == read && ended.iter().all(|ended| ended.result.is_err()));
        let mut bytes = [0; BLOCK];
        ring.copy_from(ended[0].place, &mut bytes);
        assert_eq!(bytes, [3; BLOCK]);
        ended.iter().for_each(|ended| ring.release(member(1), ended.place));
        assert!(submit(Direction::Read, 0).is_some());
    }

    #[test]
    fn places_of_members_that_have_gone_are_free_again() {
        let (_fd, ring) = Ring::create().unwrap();
        for index in [1, 2] {
            ring.submit(member(index), Direction::Write, 5, &[1; BLOCK]).unwrap();
        }
        let taken = ring.take(1, true).remove(0);
        ring.release_dead(|gone| gone.index == owner_of(taken.word).index);
        // It is the server's until it has ended.
        assert_eq!(ring.take(8, true).len(), 1);
        ring.end(&taken, Ok(()));
        ring.release_dead(|_| true);
        assert!([1, 2].iter().all(|&index| ring.ended(member(index)).is_empty()));
    }

    #[test]
    fn a_request_that_no_engine_makes_is_refused() {
        let (_fd, ring) = Ring::create().unwrap();
        let place = ring.submit(member(1), Direction::Read, 5, &[0; BLOCK]).unwrap();
        for count in [0, PLACE_BLOCKS as u64 + 1, u64::MAX] {
            ring.place(place, Word::Count).store(count, Relaxed);
            ring.place(place, Word::State).store(word(State::Submitted, member(1)), Relaxed);
            assert!(ring.take(8, true).is_empty());
            assert!(ring.ended(member(1)).remove(0).result.is_err());
        }
    }

    #[test]
    fn owners_fit_into_the_word_of_a_place() {
        for owner in [member(0), Member { index: MEMBERS - 1, tenancy: (1 << TENANCY_BITS) - 1 }] {
            let word = word(State::Taken, owner);
            assert_eq!((state_of(word), owner_of(word)), (State::Taken as u8, owner));
        }
    }

    #[test]
    fn another_file_is_no_ring() {
        let (fd, _) = Shared::create("other", BYTES).unwrap();
        assert!(Ring::adopt(&fd).is_err());
        let (fd, _) = Shared::create("other", 4096).unwrap();
        assert!(Ring::adopt(&fd).is_err());
        let (fd, _) = Ring::create().unwrap();
        assert!(Ring::adopt(&fd).is_ok());
    }
}
