//! The board of a process: what its engine does, in words of the group page.
//!
//! ```text
//! ┌────────┬───────┬──────────────────┬───────────────────┬──────────────────────┐
//! │ header │ roots │ 16 threads       │ 64 parked faults  │ 64 requests          │   8 KiB
//! │        │       │ (a line each)    │ (half a line each)│ (a line each)        │
//! └────────┴───────┴──────────────────┴───────────────────┴──────────────────────┘
//! ```
//!
//! Times on it are nanoseconds of the kernel's monotonic clock. Every process of the run can write there, so a reader
//! takes any word for any number.

use pagetide_swap::PageIndex;
use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// The version of a board's form, and of all that its addresses lead to.
pub const VERSION: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"pt-board");

/// The number of threads that are shown: control, reclaim, requests, and readers of faults.
pub const THREADS: usize = 16;
/// The number of parked faults that are shown; more are only counted.
pub const PARKED: usize = 64;
/// The number of requests that are shown.
pub const REQUESTS: usize = 64;

const THREAD_WORDS: usize = 8;
const PARKED_WORDS: usize = 4;
const REQUEST_WORDS: usize = 8;
const ROOTS_AT: usize = 16;
const THREADS_AT: usize = 64;
const PARKED_AT: usize = THREADS_AT + THREADS * THREAD_WORDS;
const REQUESTS_AT: usize = 512;
/// The number of words of a board.
pub const WORDS: usize = REQUESTS_AT + REQUESTS * REQUEST_WORDS;
const _: () = assert!(ROOTS_AT + Root::ALL.len() <= THREADS_AT);
const _: () = assert!(PARKED_AT + PARKED * PARKED_WORDS <= REQUESTS_AT);

#[derive(Clone, Copy)]
#[repr(usize)]
enum Header {
    Magic,
    Version,
    /// The tenancy of the slot whose board it is: a slot serves one process after the other.
    Tenancy,
    /// The kernel's clock when the engine's clock began.
    Epoch,
    /// The places of parked faults that are taken, a bit each.
    ParkedMask,
    /// Faults that found no place here.
    ParkedMore,
}

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All variants, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the variant's name in a dump.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            #[allow(dead_code, reason = "roots are not read back from numbers")]
            fn from_number(number: u64) -> Option<Self> {
                Self::ALL.get(usize::try_from(number).ok()?).copied()
            }
        }
    };
}

numbered! {
    /// The kinds of engine threads.
    Kind {
        /// Runs what the program's threads ask for, and follows the run.
        Control => "control",
        /// Makes room.
        Reclaim => "reclaim",
        /// Ends requests to the device.
        Io => "io",
        /// Reads faults and answers them.
        Fault => "fault",
    }
}

numbered! {
    /// The activity of a thread: what it does, or waits for.
    Activity {
        /// The thread has not begun.
        Starts => "starts",
        /// A reader waits for the next fault.
        AwaitsFaults => "waits for faults",
        /// A reader waits until several threads fault.
        StandsBy => "stands by for more faults",
        /// A reader answers a fault, on the page that is told.
        Answers => "answers the fault on",
        /// Reclaim sleeps: there is room.
        Sleeps => "sleeps, there is room",
        /// Reclaim waits until it may work.
        AwaitsThaw => "waits to begin a step",
        /// Reclaim does a step.
        Reclaims => "makes room",
        /// All that could leave is on its way to the device.
        AwaitsDevice => "waits for the device to write",
        /// Reclaim finds nothing that could leave, and asks others.
        Starves => "finds nothing that can leave, asks others for room",
        /// Reclaim looks for other processes.
        AnswersInquiry => "looks for room that another process asked for",
        /// The thread waits for requests to end.
        AwaitsRequests => "waits for the device",
        /// The thread ends requests.
        EndsRequests => "ends requests",
        /// Control waits for its bell.
        AwaitsBell => "waits for something to do",
        /// Control runs what threads of the program wait for.
        RunsTasks => "works for a thread of the program",
        /// Control looks at memory and at the run.
        Looks => "looks at memory and the run",
    }
}

impl Activity {
    /// Returns whether a thread that does this has nothing to do.
    pub fn is_idle(self) -> bool {
        matches!(
            self,
            Self::AwaitsFaults | Self::StandsBy | Self::Sleeps | Self::AwaitsRequests | Self::AwaitsBell
        )
    }
}

numbered! {
    /// The condition that a parked fault waits for.
    Why {
        /// Memory.
        Room => "room",
        /// The end of a rest of its process.
        Rest => "the end of the rest of its process",
        /// The page, which another brings in or stores.
        Page => "its page, which is on its way",
        /// The device, which had too much to do.
        Device => "the device, which has too much to do",
    }
}

numbered! {
    /// The purpose of a request.
    Purpose {
        /// A fault waits for what is read.
        Read => "read",
        /// Pages come to the pool.
        Move => "move",
        /// Pages leave a slot of staging.
        Store => "store",
        /// Entries leave the pool.
        Writeback => "writeback",
    }
}

numbered! {
    /// Addresses of what is read from the memory of the process, and a few numbers that lead on from there.
    Root {
        /// The start of the engine's heap, in which all other addresses lie.
        HeapStart => "heap start",
        /// The end of the engine's heap.
        HeapEnd => "heap end",
        /// The leaves of the table.
        Leaves => "leaves",
        /// The units of the table.
        Units => "units",
        /// The pages of the table.
        Pages => "pages",
        /// The flat clusters of the table.
        Flats => "flats",
        /// The first slot of staging.
        Slots => "slots",
        /// The number of slots.
        SlotCount => "slot count",
        /// Bytes from one slot to the next.
        SlotStride => "slot stride",
        /// The offset of the references in a slot.
        SlotRefs => "slot references",
        /// The offset of the cluster in a slot.
        SlotCluster => "slot cluster",
        /// The offset of whether a slot is queued.
        SlotQueued => "slot queued",
        /// The offset of whether a slot is late.
        SlotLate => "slot late",
        /// Pages that may be used still.
        Free => "free",
        /// Reclaim begins below.
        Low => "low",
        /// Reclaim ends above.
        High => "high",
        /// Pages that frames take.
        Frames => "frames",
        /// Faults that are parked or read.
        Stalled => "stalled",
        /// Requests under way.
        Requests => "requests",
        /// Writes under way.
        Writes => "writes",
        /// Whether waiting faults are held back, for a fork.
        Held => "held",
        /// Whether a write has failed.
        DeviceFailed => "device failed",
        /// Whether the device goes out of use.
        DeviceOff => "device off",
        /// Pages for which there was no place lately.
        Refused => "refused",
        /// One more than the cluster of the take-out under way.
        Taking => "taking",
        /// Mapping calls of the program under way.
        Calls => "calls",
        /// Pieces of work under way.
        Working => "working",
        /// Completions under way.
        Completing => "completing",
        /// Whether work is stopped.
        Frozen => "frozen",
        /// Whether faults are served all the same.
        Serving => "serving",
        /// The thread that forks.
        Closer => "closer",
        /// Since when.
        ClosedAt => "closed at",
    }
}

/// A handle on a board. That of an engine which has none takes all that is written and keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Board {
    words: &'static [AtomicU64],
    epoch: u64,
}

/// A fault that is parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkedFault {
    /// Its page.
    pub page: PageIndex,
    /// Whether it is a write.
    pub write: bool,
    /// The condition that it waits for.
    pub why: Why,
    /// The time at which it came, in nanoseconds of the kernel's clock.
    pub since: u64,
    /// The time at which it was parked last.
    pub parked: u64,
}

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestShown {
    /// Its purpose.
    pub purpose: Purpose,
    /// Its first page.
    pub first: PageIndex,
    /// The number of pages.
    pub pages: u64,
    /// The first block.
    pub block: u64,
    /// The time at which it was handed to the device, in nanoseconds of the kernel's clock.
    pub since: u64,
    /// The page that a fault waits for, and since when.
    pub demand: Option<(PageIndex, u64)>,
}

/// A thread, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadShown {
    /// Its number, as the process sees it.
    pub tid: u32,
    /// The kind of the thread.
    pub kind: Kind,
    /// What the thread does.
    pub activity: Activity,
    /// On which page, or with what else.
    pub what: u64,
    /// Since when.
    pub since: u64,
}

/// The seat of a thread: the place on a board where it shows what it does.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    board: Board,
    at: usize,
}

impl Seat {
    /// Shows what the calling thread does from now on, in time of the engine's clock. `what` is a page, or a count.
    #[inline]
    pub fn now(&self, activity: Activity, what: u64, since: u64) {
        // The activity last: whoever sees it sees the rest.
        self.board.set(self.at + 3, what);
        self.board.set(self.at + 2, self.board.epoch.wrapping_add(since));
        self.board.set(self.at + 1, activity as u64 + 1);
    }

    /// Shows an activity without a new time: the wait for the next piece of work begins where the last one was read.
    #[inline]
    pub fn idles(&self, activity: Activity) {
        self.board.set(self.at + 1, activity as u64 + 1);
    }
}

impl Board {
    /// Returns the board in these words.
    pub(crate) fn of(words: &'static [AtomicU64]) -> Self {
        let epoch = words.get(Header::Epoch as usize).map_or(0, |word| word.load(Acquire));
        Self { words, epoch }
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Release);
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Acquire))
    }

    /// Clears a board for the process of that tenancy, whose engine's clock says `clock` now.
    pub fn begin(words: &'static [AtomicU64], tenancy: u64, clock: u64) -> Self {
        words.iter().for_each(|word| word.store(0, Relaxed));
        let this = Self { words, epoch: pagetide_sys::log::now().wrapping_sub(clock) };
        this.set(Header::Epoch as usize, this.epoch);
        this.set(Header::Tenancy as usize, tenancy);
        this
    }

    /// Shows an address, or a number.
    pub fn show_root(&self, root: Root, value: u64) {
        self.set(ROOTS_AT + root as usize, value);
    }

    /// Shows where a value lies.
    pub fn show<T>(&self, root: Root, value: &T) {
        self.show_root(root, std::ptr::from_ref(value).addr() as u64);
    }

    /// Opens the board: it may be read from now on.
    pub fn open(&self) {
        let (start, end) = pagetide_sys::heap::range();
        self.show_root(Root::HeapStart, start as u64);
        self.show_root(Root::HeapEnd, end as u64);
        self.set(Header::Version as usize, VERSION);
        self.set(Header::Magic as usize, MAGIC);
    }

    /// Gives the calling thread its seat: number `nth` of its kind.
    pub fn sit(&self, kind: Kind, nth: usize) -> Seat {
        let at = THREADS_AT + (kind as usize + nth).min(THREADS - 1) * THREAD_WORDS;
        let seat = Seat { board: *self, at };
        seat.now(Activity::Starts, 0, crate::clock::clock());
        self.set(at, u64::from(pagetide_sys::task::tid()) << 8 | (kind as u64 + 1));
        seat
    }

    /// Shows a fault that is parked, in time of the engine's clock. Returns its place, if there is one.
    pub fn park(&self, page: PageIndex, write: bool, why: Why, [since, parked]: [u64; 2]) -> Option<u8> {
        let mask = self.words.get(Header::ParkedMask as usize)?;
        let taken = mask.fetch_update(AcqRel, Relaxed, |mask| (mask != u64::MAX).then(|| mask | (mask + 1)));
        let Ok(mask) = taken else {
            self.words[Header::ParkedMore as usize].fetch_add(1, Relaxed);
            return None;
        };
        let place = mask.trailing_ones() as u8;
        let at = PARKED_AT + usize::from(place) * PARKED_WORDS;
        self.set(at + 1, self.epoch.wrapping_add(since));
        self.set(at + 2, self.epoch.wrapping_add(parked));
        self.set(at, page.0 << 8 | u64::from(write) << 7 | (why as u64 + 1));
        Some(place)
    }

    /// Shows a parked fault no more. `place` is the place that [`Board::park`] returned.
    pub fn unpark(&self, place: Option<u8>) {
        let Some(mask) = self.words.get(Header::ParkedMask as usize) else { return };
        match place {
            Some(place) => {
                self.set(PARKED_AT + usize::from(place) * PARKED_WORDS, 0);
                mask.fetch_and(!(1 << place), AcqRel);
            }
            None => _ = self.words[Header::ParkedMore as usize].fetch_sub(1, Relaxed),
        }
    }

    /// Shows a request that is handed to the device now. `demand` is in time of the engine's clock.
    pub fn begin_request(&self, token: u64, request: RequestShown) {
        if token >= REQUESTS as u64 || self.words.is_empty() {
            return;
        }
        let at = REQUESTS_AT + token as usize * REQUEST_WORDS;
        let RequestShown { purpose, first, pages, block, demand, .. } = request;
        self.set(at + 1, first.0);
        self.set(at + 2, block);
        self.set(at + 3, pagetide_sys::log::now());
        self.set(at + 4, demand.map_or(0, |(page, _)| page.0 + 1));
        self.set(at + 5, demand.map_or(0, |(_, since)| self.epoch.wrapping_add(since)));
        self.set(at, pages << 8 | (purpose as u64 + 1));
    }

    /// Shows a request no more, since it has ended.
    pub fn end_request(&self, token: u64) {
        if token < REQUESTS as u64 {
            self.set(REQUESTS_AT + token as usize * REQUEST_WORDS, 0);
        }
    }

    /// Returns whether the board is that of the process with this tenancy, and of the form that this build reads.
    ///
    /// # Errors
    /// It is of another form, which the text names.
    pub fn check(&self, tenancy: u64) -> Result<bool, String> {
        let [magic, version, tenant] =
            [Header::Magic, Header::Version, Header::Tenancy].map(|word| self.get(word as usize));
        if magic == 0 || tenant != tenancy {
            return Ok(false);
        }
        if magic != MAGIC || version != VERSION {
            return Err(format!(
                "the engine writes its board in form {version}, and this pagetide reads form {VERSION}: use the pagetide \
                 that started the run"
            ));
        }
        Ok(true)
    }

    /// Returns an address, or a number.
    pub fn root(&self, root: Root) -> u64 {
        self.get(ROOTS_AT + root as usize)
    }

    /// Returns what threads do. Those of which a number cannot be are left out.
    pub fn threads(&self) -> Vec<ThreadShown> {
        let thread = |nth: usize| {
            let at = THREADS_AT + nth * THREAD_WORDS;
            let who = self.get(at);
            // A thread may change these meanwhile: what was read between two equal looks belongs together.
            let mut last = [0; 3];
            for _ in 0..8 {
                let before = [self.get(at + 1), self.get(at + 2), self.get(at + 3)];
                last = [self.get(at + 1), self.get(at + 2), self.get(at + 3)];
                if last == before {
                    break;
                }
            }
            Some(ThreadShown {
                tid: u32::try_from(who >> 8).ok()?,
                kind: Kind::from_number((who & 0xff).checked_sub(1)?)?,
                activity: Activity::from_number(last[0].checked_sub(1)?)?,
                what: last[2],
                since: last[1],
            })
        };
        (0..THREADS).filter_map(thread).collect()
    }

    /// Returns parked faults, and how many more there are.
    pub fn parked(&self) -> (Vec<ParkedFault>, u64) {
        let fault = |nth: usize| {
            let at = PARKED_AT + nth * PARKED_WORDS;
            let word = self.get(at);
            Some(ParkedFault {
                page: PageIndex(word >> 8),
                write: word >> 7 & 1 == 1,
                why: Why::from_number((word & 0x7f).checked_sub(1)?)?,
                since: self.get(at + 1),
                parked: self.get(at + 2),
            })
        };
        let more = self.get(Header::ParkedMore as usize);
        ((0..PARKED).filter_map(fault).collect(), if more > 1 << 32 { 0 } else { more })
    }

    /// Returns requests under way.
    pub fn requests(&self) -> Vec<RequestShown> {
        let request = |nth: usize| {
            let at = REQUESTS_AT + nth * REQUEST_WORDS;
            let word = self.get(at);
            let demand = self.get(at + 4).checked_sub(1).map(|page| (PageIndex(page), self.get(at + 5)));
            Some(RequestShown {
                purpose: Purpose::from_number((word & 0xff).checked_sub(1)?)?,
                first: PageIndex(self.get(at + 1)),
                pages: word >> 8,
                block: self.get(at + 2),
                since: self.get(at + 3),
                demand,
            })
        };
        (0..REQUESTS).filter_map(request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> &'static [AtomicU64] {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
    }

    fn fault(page: u64, since: u64) -> (PageIndex, bool, Why, [u64; 2]) {
        (PageIndex(page), true, Why::Room, [since, since + 1])
    }

    #[test]
    fn what_is_written_is_read() {
        let board = Board::begin(words(), 7, 1000);
        assert_eq!(board.check(7), Ok(false), "it is not open yet");
        board.open();
        assert_eq!((board.check(7), board.check(8)), (Ok(true), Ok(false)));
        let reader = Board::of(board.words);
        let seat = board.sit(Kind::Fault, 1);
        seat.now(Activity::Answers, 99, 5000);
        let [shown] = reader.threads()[..] else { panic!("one thread") };
        assert_eq!((shown.tid, shown.kind), (pagetide_sys::task::tid(), Kind::Fault));
        assert_eq!((shown.activity, shown.what, shown.since), (Activity::Answers, 99, board.epoch + 5000));
        let places: Vec<_> = (0..PARKED as u64 + 3)
            .map(|page| {
                let (page, write, why, times) = fault(page, 2000);
                board.park(page, write, why, times)
            })
            .collect();
        let (parked, more) = reader.parked();
        assert_eq!((parked.len(), more), (PARKED, 3));
        assert_eq!(
            (parked[9].page, parked[9].since, parked[9].parked),
            (PageIndex(9), board.epoch + 2000, board.epoch + 2001)
        );
        places[20..].iter().for_each(|&place| board.unpark(place));
        assert_eq!((reader.parked().0.len(), reader.parked().1), (20, 0));
        let (page, write, why, times) = fault(500, 1);
        assert_eq!(board.park(page, write, why, times), Some(20), "places are used again");
        let request = RequestShown {
            purpose: Purpose::Store,
            first: PageIndex(3),
            pages: 9,
            block: 77,
            since: 0,
            demand: Some((PageIndex(4), 10)),
        };
        board.begin_request(5, request);
        board.begin_request(REQUESTS as u64, request);
        let [seen] = reader.requests()[..] else { panic!("one request") };
        assert_eq!(
            RequestShown { since: 0, ..seen },
            RequestShown { demand: Some((PageIndex(4), board.epoch + 10)), ..request }
        );
        board.end_request(5);
        board.end_request(u64::MAX);
        assert!(reader.requests().is_empty());
        let other = Board::default();
        assert_eq!(other.park(page, write, why, times), None);
        other.unpark(None);
    }

    #[test]
    fn a_board_of_another_form_is_refused_by_the_numbers_of_both() {
        let board = Board::begin(words(), 7, 0);
        board.open();
        board.set(Header::Version as usize, VERSION + 4);
        let error = board.check(7).unwrap_err();
        let forms = [VERSION + 4, VERSION].map(|form| format!("form {form}"));
        assert!(forms.iter().all(|form| error.contains(form)), "{error}");
    }

    #[test]
    fn any_words_are_read() {
        let words = words();
        let board = Board::of(words);
        let mut random = 1u64;
        for _ in 0..1000 {
            for word in words {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.store(if random >> 63 == 0 { random >> 20 } else { random % 300 }, Relaxed);
            }
            let _ = (board.check(7), board.threads(), board.parked(), board.requests());
            Root::ALL.iter().for_each(|&root| _ = board.root(root));
        }
        words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let _ = (board.check(7), board.threads(), board.parked(), board.requests());
    }
}
