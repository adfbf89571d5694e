//! The remote tier as an engine sees it: a device whose requests go through a [`Ring`] to the process of the run that
//! has the connection.

use crate::ring::{Ended, Member, PLACE_BLOCKS, Ring};
use crate::{BLOCK, Buffer, Completion, Cost, Device, Direction, OpenError, Request, Told, lock};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of a place.
const PLACE_BYTES: usize = PLACE_BLOCKS * BLOCK;
/// The cost of a read before there is one to measure: 300 µs, a round trip in a data centre.
const EXPECTED: Cost = Cost { read_ns: 300_000 };
/// After so long without an answer it is asked whether there is still a server. Nothing is given up for being late.
const LOOK: Duration = Duration::from_secs(1);

/// The remote tier.
#[derive(Debug)]
pub struct Remote {
    ring: Ring,
    /// The ring's file, opened by this process: a lock of the server's on it says that there is a server.
    file: OwnedFd,
    member: Member,
    blocks: u64,
    state: Mutex<Requests>,
    nudged: AtomicBool,
}

/// Requests under way. One of more blocks than a place has is asked for in parts.
#[derive(Debug, Default)]
struct Requests {
    /// By their numbers.
    open: HashMap<u64, Open>,
    /// The number of the next.
    next: u64,
    /// Parts that were asked for, by place.
    asked: HashMap<usize, Part>,
    /// Parts for which there was no place.
    waiting: VecDeque<Part>,
    /// What has ended without a server.
    failed: Vec<Completion>,
    /// Where the caller got a request back, the state of the bell before: when it has rung there may be a place.
    refused: Option<u32>,
}

/// A request of which not all parts have ended.
#[derive(Debug)]
struct Open {
    token: u64,
    direction: Direction,
    block: u64,
    buffer: Buffer,
    left: usize,
    result: io::Result<()>,
}

/// A part of a request: bytes of its buffer.
#[derive(Clone, Debug)]
struct Part {
    request: u64,
    bytes: Range<usize>,
}

impl Remote {
    /// Opens the ring at `path`, whose file has this `identity`, as a device of so many blocks for `member`.
    ///
    /// # Errors
    /// - [`OpenError::Another`]: the path is that of another file, or the file is no ring.
    /// - [`OpenError::System`]: the path cannot be opened.
    pub fn open(
        path: &Path,
        identity: crate::file::Identity,
        blocks: u64,
        member: Member,
    ) -> Result<Self, OpenError> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(OpenError::System)?;
        Self::adopt(file, identity, blocks, member)
    }

    /// Takes the ring from a descriptor that this process was handed, which must be its own description.
    ///
    /// # Errors
    /// As for [`Remote::open`].
    pub fn adopt(
        file: OwnedFd,
        identity: crate::file::Identity,
        blocks: u64,
        member: Member,
    ) -> Result<Self, OpenError> {
        crate::file::check(&file, identity)?;
        let ring = Ring::adopt(&file).map_err(|_| OpenError::Another)?;
        Ok(Self { ring, file, member, blocks, state: Mutex::default(), nudged: AtomicBool::new(false) })
    }

    /// Returns its descriptor's number, in the table of the thread that opened it.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Returns whether nobody serves the ring any more.
    fn is_abandoned(&self) -> bool {
        self.ring.is_gone() || !is_served(&self.file)
    }

    /// Asks for a part. Returns whether there was a place.
    fn ask(&self, requests: &mut Requests, part: &Part) -> bool {
        let Some(open) = requests.open.get(&part.request) else { return true };
        let block = open.block + (part.bytes.start / BLOCK) as u64;
        let bytes = &open.buffer[part.bytes.clone()];
        let place = self.ring.submit(self.member, open.direction, block, bytes);
        place.map(|place| requests.asked.insert(place, part.clone())).is_some()
    }

    /// Asks for parts that wait, as far as there are places.
    fn ask_waiting(&self, requests: &mut Requests) {
        while let Some(part) = requests.waiting.pop_front() {
            if !self.ask(requests, &part) {
                requests.waiting.push_front(part);
                return;
            }
        }
    }

    /// Ends the parts that the server has done.
    fn end_parts(&self, requests: &mut Requests, into: &mut Vec<Completion>) {
        for Ended { place, result } in self.ring.ended(self.member) {
            if let Some(Part { request, bytes }) = requests.asked.remove(&place)
                && let Entry::Occupied(mut entry) = requests.open.entry(request)
            {
                let open = entry.get_mut();
                match result {
                    Ok(()) if open.direction == Direction::Read => {
                        self.ring.copy_from(place, &mut open.buffer[bytes]);
                    }
                    Ok(()) => {}
                    Err(error) => open.result = Err(error),
                }
                open.left -= 1;
                if open.left == 0 {
                    let Open { token, buffer, result, .. } = entry.remove();
                    into.push(Completion { token, buffer, result });
                }
            }
            self.ring.release(self.member, place);
        }
    }
}

impl Requests {
    /// Ends all: nobody else will.
    fn fail_all(&mut self) {
        let result = || Err(Errno::IO.into());
        let all = self.open.drain().map(|(_, Open { token, buffer, .. })| Completion {
            token,
            buffer,
            result: result(),
        });
        self.failed.extend(all);
        self.asked.clear();
        self.waiting.clear();
    }
}

/// Says, for as long as the process lives, that it serves the ring of which this is the file: a descriptor that nobody
/// else has.
///
/// # Errors
/// `EWOULDBLOCK`: another process serves it.
pub fn serve(file: &OwnedFd) -> io::Result<()> {
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

fn is_served(file: &OwnedFd) -> bool {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(file, FlockOperation::Unlock);
            false
        }
        // Where a filter forbids the call it is not known: requests wait.
        Err(_) => true,
    }
}

impl Device for Remote {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn cost(&self, _block: u64) -> Cost {
        match self.ring.round_trip_ns() {
            0 => EXPECTED,
            read_ns => Cost { read_ns },
        }
    }

    fn told(&self, _block: u64) -> Told {
        Told { name: "remote server", options: "--remote-size, --remote", full: "it takes no more" }
    }

    fn submit(&self, request: Request) -> Result<(), Request> {
        let Request { token, direction, block, buffer } = request;
        let mut requests = lock(&self.state);
        let bell = self.ring.bell(self.member);
        if self.ring.is_gone() {
            requests.failed.push(Completion { token, buffer, result: Err(Errno::IO.into()) });
            self.ring.call(self.member);
            return Ok(());
        }
        let (number, length) = (requests.next, buffer.len());
        requests.next += 1;
        let parts = (0..length).step_by(PLACE_BYTES).map(|start| start..(start + PLACE_BYTES).min(length));
        let mut parts: VecDeque<_> = parts.map(|bytes| Part { request: number, bytes }).collect();
        let open = Open { token, direction, block, buffer, left: parts.len(), result: Ok(()) };
        requests.open.insert(number, open);
        // What is new does not overtake what waits.
        let first = parts.pop_front().filter(|_| requests.waiting.is_empty());
        if first.is_some_and(|first| self.ask(&mut requests, &first)) {
            requests.waiting.append(&mut parts);
            self.ask_waiting(&mut requests);
            return Ok(());
        }
        requests.refused = Some(bell);
        let Open { token, direction, block, buffer, .. } =
            requests.open.remove(&number).expect("put there above");
        Err(Request { token, direction, block, buffer })
    }

    fn wait(&self, into: &mut Vec<Completion>) {
        let mut late = false;
        loop {
            let seen = self.ring.bell(self.member);
            let mut requests = lock(&self.state);
            self.end_parts(&mut requests, into);
            let waits = !requests.open.is_empty() || requests.refused.is_some();
            if waits && late && !self.ring.is_gone() && self.is_abandoned() {
                // The launcher, which would have said so, has gone too.
                self.ring.set_gone();
            }
            if waits && self.ring.is_gone() {
                requests.fail_all();
            }
            self.ask_waiting(&mut requests);
            into.append(&mut requests.failed);
            let is_gone = self.ring.is_gone();
            let may_try = requests.refused.take_if(|bell| *bell != seen || is_gone).is_some();
            drop(requests);
            if !into.is_empty() || self.nudged.swap(false, SeqCst) || may_try {
                return;
            }
            self.ring.wait(self.member, seen, LOOK);
            late = self.ring.bell(self.member) == seen;
        }
    }

    fn nudge(&self) {
        self.nudged.store(true, SeqCst);
        self.ring.call(self.member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const MEMBER: Member = Member { index: 7, tenancy: 3 };

    fn remote(member: Member) -> (OwnedFd, Ring, Remote) {
        let (fd, ring) = Ring::create().unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let identity = crate::file::identity(&fd).unwrap();
        let remote = Remote::open(Path::new(&path), identity, 64, member).unwrap();
        serve(&fd).unwrap();
        (fd, ring, remote)
    }

    fn request(token: u64, direction: Direction, block: u64, count: usize) -> Request {
        Request { token, direction, block, buffer: Buffer::new(count) }
    }

    fn wait_for(device: &Remote, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        while done.len() < count {
            device.wait(&mut done);
        }
        done
    }

    /// A server that keeps blocks in memory, until it is told to end.
    fn serve_from_memory(ring: Ring, ends: Arc<AtomicBool>) {
        let mut blocks: HashMap<u64, Vec<u8>> = HashMap::new();
        while !ends.load(SeqCst) {
            let seen = ring.server_bell();
            let taken = ring.take(4, true);
            if taken.is_empty() {
                ring.wait_as_server(seen, Duration::from_millis(100));
            }
            for taken in taken {
                match taken.direction {
                    Direction::Write => {
                        for (block, bytes) in (taken.block..).zip(ring.bytes(&taken).chunks_exact(BLOCK)) {
                            blocks.insert(block, bytes.to_vec());
                        }
                        ring.end(&taken, Ok(()));
                    }
                    Direction::Read => {
                        let found: Option<Vec<_>> =
                            (taken.block..).take(taken.count).map(|block| blocks.get(&block)).collect();
                        let result = found.ok_or(Errno::IO).map(|found| {
                            found.iter().enumerate().for_each(|(at, bytes)| ring.fill(&taken, at, bytes));
                        });
                        ring.end(&taken, result);
                    }
                }
            }
        }
    }

    #[test]
    fn what_members_write_they_read_again() {
        let (fd, ring, _) = remote(MEMBER);
        let (path, identity) =
            (format!("/proc/self/fd/{}", fd.as_raw_fd()), crate::file::identity(&fd).unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let server = {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || serve_from_memory(ring, ends))
        };
        std::thread::scope(|scope| {
            for index in 0..4u64 {
                let member = Member { index: index as usize, tenancy: 1 };
                let device = Remote::open(Path::new(&path), identity, 4096, member).unwrap();
                scope.spawn(move || {
                    for round in 0..200u64 {
                        // More than a place holds, now and then.
                        let count =
                            if round % 40 == 0 { 3 * PLACE_BLOCKS + 5 } else { 1 + (round % 3) as usize };
                        let block = index * 1000 + round * 3;
                        let mut write = request(round, Direction::Write, block, count);
                        write.buffer.fill((round + index) as u8);
                        device.submit(write).unwrap();
                        assert!(wait_for(&device, 1)[0].result.is_ok());
                        device.submit(request(round, Direction::Read, block, count)).unwrap();
                        let read = wait_for(&device, 1).remove(0);
                        assert!(read.result.is_ok() && read.token == round);
                        assert!(read.buffer.iter().all(|&byte| byte == (round + index) as u8));
                    }
                    // Never written.
                    device.submit(request(1, Direction::Read, 3999, 2)).unwrap();
                    assert!(wait_for(&device, 1)[0].result.is_err());
                });
            }
        });
        ends.store(true, SeqCst);
        ring.call_server();
        server.join().unwrap();
    }

    #[test]
    fn without_a_server_requests_end_with_an_error() {
        // By word of the launcher.
        let (_fd, ring, device) = remote(MEMBER);
        device.submit(request(1, Direction::Read, 3, 1)).unwrap();
        ring.set_gone();
        assert!(wait_for(&device, 1)[0].result.is_err());
        device.submit(request(2, Direction::Write, 3, 1)).unwrap();
        assert_eq!(wait_for(&device, 1)[0].token, 2);
        // Or because nobody has the lock any more.
        let (fd, _ring, device) = remote(MEMBER);
        device.submit(request(3, Direction::Read, 3, 1)).unwrap();
        flock(&fd, FlockOperation::Unlock).unwrap();
        assert!(wait_for(&device, 1)[0].result.is_err());
    }

    #[test]
    fn a_full_ring_gives_requests_back_and_a_nudge_ends_the_wait() {
        let (_fd, _ring, device) = remote(MEMBER);
        device.nudge();
        device.wait(&mut Vec::new());
        for token in 0.. {
            if let Err(refused) = device.submit(request(token, Direction::Write, 5, 2)) {
                assert_eq!((refused.token, refused.block, refused.buffer.len()), (token, 5, 2 * BLOCK));
                break;
            }
        }
    }
}
