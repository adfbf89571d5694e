//! A device that is made of others: each has a range of its blocks.

use crate::{BLOCK, Buffer, Completion, Cost, Device, Direction, Mailbox, Request, Told, lock};
use pagetide_sys::engine_thread;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A tier stands still when a request there has been under way for so long.
const STANDS_STILL: Duration = Duration::from_secs(1);

/// A device of tiers, one behind the other: the first has blocks `0..n`, the second `n..m`, and so on.
///
/// A request of which two tiers have a part is split, and ends when all its parts have: with an error if one has.
/// Parts are copied, so blocks that are read together should lie in one tier.
///
/// For each tier an engine thread waits.
///
/// ```
/// use pagetide_device::ram::Ram;
/// use pagetide_device::tiered::Tiered;
/// use pagetide_device::{Buffer, Device, Direction, Request};
///
/// let tiers: Vec<Box<dyn Device>> = vec![Box::new(Ram::new(4)), Box::new(Ram::new(8))];
/// let device = Tiered::new(tiers)?;
/// assert_eq!(device.blocks(), 12);
/// // Two blocks of the first tier, and one of the second.
/// let mut buffer = Buffer::new(3);
/// buffer.fill(7);
/// device.submit(Request { token: 1, direction: Direction::Write, block: 2, buffer }).expect("room for one");
/// let mut done = Vec::new();
/// device.wait(&mut done);
/// assert!(done[0].token == 1 && done[0].result.is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Tiered {
    shared: Arc<Shared>,
}

/// The state of the device that the threads of its tiers share.
#[derive(Debug)]
struct Shared {
    tiers: Vec<Tier>,
    /// Requests by their numbers, which are the tokens of their parts.
    under_way: Mutex<Vec<Option<UnderWay>>>,
    mailbox: Mailbox,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Tier {
    device: Box<dyn Device>,
    /// Its blocks, as the whole device counts.
    blocks: Range<u64>,
    /// The time that reads have taken, in nanoseconds: a mean in which each new one counts an eighth; 0 before the first.
    read_ns: AtomicU64,
    /// Parts of split requests that it has refused: other parts were under way by then. They are tried again, ahead of
    /// all that is new, whenever something has ended.
    put_off: Mutex<VecDeque<Request>>,
}

/// A request of which not all parts have ended.
#[derive(Debug)]
struct UnderWay {
    token: u64,
    direction: Direction,
    block: u64,
    /// The caller's buffer if there are several parts; else the part has it.
    buffer: Option<Buffer>,
    /// Parts that have not ended.
    left: usize,
    result: io::Result<()>,
    begun: Instant,
}

impl Tiered {
    /// Returns a device of these tiers.
    ///
    /// # Errors
    /// The error of making a thread for one of them.
    pub fn new(devices: Vec<Box<dyn Device>>) -> io::Result<Self> {
        let mut end = 0;
        let tiers = devices.into_iter().map(|device| {
            let start = end;
            end += device.blocks();
            Tier { device, blocks: start..end, read_ns: AtomicU64::new(0), put_off: Mutex::default() }
        });
        let shared = Arc::new(Shared {
            tiers: tiers.collect(),
            under_way: Mutex::default(),
            mailbox: Mailbox::default(),
            closed: AtomicBool::new(false),
        });
        // From here on dropping it ends the threads that there are.
        let this = Self { shared };
        for number in 0..this.shared.tiers.len() {
            let shared = Arc::clone(&this.shared);
            let run = Box::new(move || shared.serve(number));
            engine_thread::spawn_patiently(&format!("pagetide-tier{number}"), run)?;
        }
        Ok(this)
    }
}

impl Drop for Tiered {
    fn drop(&mut self) {
        self.shared.closed.store(true, SeqCst);
        self.shared.tiers.iter().for_each(|tier| tier.device.nudge());
    }
}

impl Device for Tiered {
    fn blocks(&self) -> u64 {
        self.shared.blocks()
    }

    /// Returns what reads have taken of late in the tier in which the block lies (beyond the last one: in the last), or
    /// what the tier says where there were none. A tier that stands still costs as much as the oldest request there has
    /// waited.
    fn cost(&self, block: u64) -> Cost {
        let Some(tier) = self.shared.tier_of(block) else { return Cost::MEMORY };
        let age = self.shared.oldest(tier).map_or(Duration::ZERO, |begun| begun.elapsed());
        let declared = || tier.device.cost(block.saturating_sub(tier.blocks.start));
        cost(tier.read_ns.load(Relaxed), age, declared)
    }

    /// Returns what the tier says in which the block lies; beyond the last one, what the last says.
    fn told(&self, block: u64) -> Told {
        let tier = self.shared.tier_of(block);
        tier.map_or(Told::FILE, |tier| tier.device.told(block.saturating_sub(tier.blocks.start)))
    }

    fn submit(&self, request: Request) -> Result<(), Request> {
        self.shared.submit(request)
    }

    fn wait(&self, into: &mut Vec<Completion>) {
        self.shared.mailbox.wait(into);
    }

    fn nudge(&self) {
        self.shared.mailbox.nudge();
    }
}

impl Shared {
    fn submit(&self, request: Request) -> Result<(), Request> {
        let Request { token, direction, block, buffer } = request;
        let count = (buffer.len() / BLOCK) as u64;
        let Some(end) = block.checked_add(count).filter(|&end| end <= self.blocks()) else {
            self.mailbox.post(Completion { token, buffer, result: Err(Errno::NXIO.into()) });
            return Ok(());
        };
        let mut parts: Vec<(&Tier, Range<u64>)> = Vec::with_capacity(1);
        for tier in &self.tiers {
            let part = tier.blocks.start.max(block)..tier.blocks.end.min(end);
            if !part.is_empty() {
                parts.push((tier, part));
            }
        }
        let entry = UnderWay {
            token,
            direction,
            block,
            buffer: None,
            left: parts.len(),
            result: Ok(()),
            begun: Instant::now(),
        };
        let number = self.note(entry);
        if let [(tier, _)] = parts[..] {
            let block = block - tier.blocks.start;
            return tier.submit(Request { token: number, direction, block, buffer }).map_err(|refused| {
                let entry = self.forget(number);
                Request { token: entry.token, direction, block: entry.block, buffer: refused.buffer }
            });
        }
        let requests: Vec<_> = parts
            .into_iter()
            .map(|(tier, part)| {
                let mut own = Buffer::new((part.end - part.start) as usize);
                if direction == Direction::Write {
                    own.copy_from_slice(&buffer[bytes_of(block, &part)]);
                }
                let block = part.start - tier.blocks.start;
                (tier, Request { token: number, direction, block, buffer: own })
            })
            .collect();
        lock(&self.under_way)[number as usize].as_mut().expect("noted above").buffer = Some(buffer);
        let mut begun = false;
        for (tier, request) in requests {
            match tier.submit(request) {
                Ok(()) => begun = true,
                Err(_) if !begun => {
                    let entry = self.forget(number);
                    let buffer = entry.buffer.expect("put there above");
                    return Err(Request { token, direction, block, buffer });
                }
                Err(refused) => tier.put_off(refused),
            }
        }
        Ok(())
    }

    /// Returns when the oldest request began that is under way and begins in this tier.
    fn oldest(&self, tier: &Tier) -> Option<Instant> {
        let under_way = lock(&self.under_way);
        let here = under_way.iter().flatten().filter(|entry| tier.blocks.contains(&entry.block));
        here.map(|entry| entry.begun).min()
    }

    fn tier_of(&self, block: u64) -> Option<&Tier> {
        self.tiers.iter().find(|tier| block < tier.blocks.end).or(self.tiers.last())
    }

    fn blocks(&self) -> u64 {
        self.tiers.last().map_or(0, |tier| tier.blocks.end)
    }

    /// Notes a request. Returns its number.
    fn note(&self, entry: UnderWay) -> u64 {
        let mut under_way = lock(&self.under_way);
        let free = under_way.iter().position(Option::is_none).unwrap_or(under_way.len());
        if free == under_way.len() {
            under_way.push(None);
        }
        under_way[free] = Some(entry);
        free as u64
    }

    /// Forgets a request of which no part is under way.
    fn forget(&self, number: u64) -> UnderWay {
        lock(&self.under_way)[number as usize].take().expect("it is under way")
    }

    /// Ends the parts that a tier has done, until the device is dropped.
    fn serve(&self, tier: usize) {
        let tier = &self.tiers[tier];
        let mut done = Vec::new();
        loop {
            tier.device.wait(&mut done);
            if self.closed.load(SeqCst) {
                return;
            }
            if done.is_empty() {
                // It may take more now.
                self.mailbox.nudge();
            }
            for completion in done.drain(..) {
                self.end_part(tier, completion);
            }
            tier.try_again();
        }
    }

    /// Ends a part of a request, and the request with the last part.
    fn end_part(&self, tier: &Tier, Completion { token: number, buffer: own, result }: Completion) {
        let mut under_way = lock(&self.under_way);
        let place = &mut under_way[number as usize];
        let entry = place.as_mut().expect("a part of it was under way");
        entry.left -= 1;
        if entry.direction == Direction::Read && result.is_ok() {
            tier.note_read(entry.begun.elapsed());
        }
        match &mut entry.buffer {
            None => entry.buffer = Some(own),
            Some(buffer) if entry.direction == Direction::Read && result.is_ok() => {
                let start = tier.blocks.start.max(entry.block);
                let part = start..start + (own.len() / BLOCK) as u64;
                buffer[bytes_of(entry.block, &part)].copy_from_slice(&own);
            }
            Some(_) => {}
        }
        if let Err(error) = result {
            entry.result = Err(error);
        }
        if entry.left > 0 {
            return;
        }
        if let Some(UnderWay { token, buffer: Some(buffer), result, .. }) = place.take() {
            drop(under_way);
            self.mailbox.post(Completion { token, buffer, result });
        }
    }
}

/// Returns the cost of a read where reads have taken `mean` nanoseconds (0: there were none) and the oldest request under
/// way is of this `age`.
fn cost(mean: u64, age: Duration, declared: impl FnOnce() -> Cost) -> Cost {
    match mean {
        _ if age >= STANDS_STILL => Cost { read_ns: age.as_nanos().try_into().unwrap_or(u64::MAX) },
        0 => declared(),
        read_ns => Cost { read_ns },
    }
}

/// Returns the bytes of a part in the buffer of a request that begins at `block`.
fn bytes_of(block: u64, part: &Range<u64>) -> Range<usize> {
    let offset = |at: u64| (at - block) as usize * BLOCK;
    offset(part.start)..offset(part.end)
}

impl Tier {
    /// Notes the time that a read took. One thread does so.
    fn note_read(&self, took: Duration) {
        let (new, mean) = (took.as_nanos().clamp(1, u64::MAX.into()) as u64, self.read_ns.load(Relaxed));
        let next = if mean == 0 { new } else { mean - mean / 8 + new / 8 };
        self.read_ns.store(next.max(1), Relaxed);
    }

    /// Submits what is new, unless something older waits.
    fn submit(&self, request: Request) -> Result<(), Request> {
        if self.try_again() { self.device.submit(request) } else { Err(request) }
    }

    fn put_off(&self, request: Request) {
        lock(&self.put_off).push_back(request);
        // What it was refused for may have ended before anybody could see it here.
        self.try_again();
    }

    /// Submits what was put off, as far as the tier takes it. Returns whether nothing is left.
    fn try_again(&self) -> bool {
        let mut put_off = lock(&self.put_off);
        while let Some(request) = put_off.pop_front() {
            if let Err(refused) = self.device.submit(request) {
                put_off.push_front(refused);
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deferred::Deferred;
    use crate::faulty::{Failure, Faulty};
    use crate::ram::Ram;

    const EIO: i32 = 5;

    fn request(token: u64, direction: Direction, block: u64, count: usize) -> Request {
        Request { token, direction, block, buffer: Buffer::new(count) }
    }

    fn wait_for(device: &Tiered, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        while done.len() < count {
            device.wait(&mut done);
        }
        assert_eq!(done.len(), count);
        done
    }

    #[test]
    fn a_block_costs_what_its_tier_says() {
        let device = Tiered::new(vec![Box::new(Ram::new(4)), Box::new(Deferred::new(4))]).unwrap();
        assert_eq!([0, 3].map(|block| device.cost(block)), [Cost::MEMORY; 2]);
        assert_eq!([4, 7, 8].map(|block| device.cost(block)), [Cost::FLASH; 3]);
        device.submit(request(1, Direction::Read, 2, 2)).unwrap();
        wait_for(&device, 1);
        assert_ne!(device.cost(0), Cost::MEMORY, "it was measured");
    }

    #[test]
    fn a_tier_that_stands_still_costs_what_its_oldest_request_has_waited() {
        let (young, old) = (STANDS_STILL / 2, STANDS_STILL * 2);
        let declared = || Cost::FLASH;
        assert_eq!(cost(0, young, declared), Cost::FLASH);
        assert_eq!(cost(7, young, declared), Cost { read_ns: 7 });
        assert_eq!(cost(7, old, declared), Cost { read_ns: 2_000_000_000 });
        let held = Arc::new(Deferred::new(4));
        let device = Tiered::new(vec![Box::new(Ram::new(4)), Box::new(Held(Arc::clone(&held), 8))]).unwrap();
        device.submit(request(1, Direction::Write, 5, 1)).unwrap();
        let oldest = |tier: usize| device.shared.oldest(&device.shared.tiers[tier]);
        assert!(oldest(0).is_none() && oldest(1).is_some());
        held.release(0);
        wait_for(&device, 1);
        assert!(oldest(1).is_none());
    }

    #[test]
    fn what_lies_beyond_the_last_tier_is_an_error() {
        let device = Tiered::new(vec![Box::new(Ram::new(4)), Box::new(Ram::new(4))]).unwrap();
        for (block, count) in [(7, 2), (8, 1), (u64::MAX, 1), (0, 9)] {
            device.submit(request(block, Direction::Read, block, count)).unwrap();
            let done = wait_for(&device, 1).remove(0);
            assert_eq!((done.token, done.buffer.len()), (block, count * BLOCK));
            assert_eq!(done.result.unwrap_err().raw_os_error(), Some(Errno::NXIO.raw_os_error()));
        }
    }

    /// A device that a test and the tiers both hold, and that takes so many requests at a time.
    #[derive(Debug)]
    struct Held(Arc<Deferred>, usize);

    impl Device for Held {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }
        fn cost(&self, block: u64) -> Cost {
            self.0.cost(block)
        }
        fn submit(&self, request: Request) -> Result<(), Request> {
            if self.0.held() < self.1 { self.0.submit(request) } else { Err(request) }
        }
        fn wait(&self, into: &mut Vec<Completion>) {
            self.0.wait(into);
        }
        fn nudge(&self) {
            self.0.nudge();
        }
    }

    #[test]
    fn a_part_that_is_refused_goes_on_when_there_is_room_and_a_whole_request_is_given_back() {
        let slow = Arc::new(Deferred::new(4));
        let narrow = Held(Arc::clone(&slow), 1);
        let device = Tiered::new(vec![Box::new(Ram::new(4)), Box::new(narrow)]).unwrap();
        device.submit(request(1, Direction::Read, 4, 1)).unwrap();
        // The first tier has taken its part when the second refuses.
        let mut both = request(2, Direction::Write, 3, 2);
        both.buffer[..BLOCK].fill(3);
        both.buffer[BLOCK..].fill(4);
        device.submit(both).unwrap();
        // New requests do not overtake what waits, and come back as they were.
        let refused = device.submit(request(3, Direction::Read, 7, 1)).unwrap_err();
        assert_eq!((refused.token, refused.block, refused.buffer.len()), (3, 7, BLOCK));
        assert!(slow.release(0));
        assert_eq!(wait_for(&device, 1)[0].token, 1);
        while !slow.release(0) {
            std::thread::yield_now();
        }
        assert_eq!(wait_for(&device, 1)[0].token, 2);
        device.submit(request(4, Direction::Read, 3, 2)).unwrap();
        while !slow.release(0) {
            std::thread::yield_now();
        }
        let read = wait_for(&device, 1).remove(0);
        assert!(read.buffer[..BLOCK].iter().all(|&byte| byte == 3));
        assert!(read.buffer[BLOCK..].iter().all(|&byte| byte == 4));
    }

    /// Blocks of the tiers of the model, and what it does.
    const TIERS: [u64; 3] = [5, 1, 10];
    const BLOCKS: u64 = 16;
    const STEPS: u64 = 4000;

    /// Numbers that follow from a seed (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % limit
        }
    }

    /// Requests at random, one after the other, against an array of what each block holds. The tier in the middle fails
    /// every third write, the last one every seventh read.
    #[test]
    fn it_holds_what_an_array_would_and_fails_where_a_part_fails() {
        let failure = Failure::Errno(EIO);
        let middle = Faulty::new(Box::new(Ram::new(TIERS[1])), Direction::Write, 3, failure);
        let last = Faulty::new(Box::new(Ram::new(TIERS[2])), Direction::Read, 7, failure);
        let device =
            Tiered::new(vec![Box::new(Ram::new(TIERS[0])), Box::new(middle), Box::new(last)]).unwrap();
        let mut random = Random(0x5eed);
        // `None` where a write has failed: nobody knows what lies there.
        let mut model = [Some(0u8); BLOCKS as usize];
        let (mut writes_of_middle, mut reads_of_last, mut crossed, mut failed) = (0, 0, 0, 0);
        for token in 0..STEPS {
            let block = random.below(BLOCKS);
            let count = 1 + random.below((BLOCKS - block).min(9));
            let end = block + count;
            let mut wanted = request(token, Direction::Read, block, count as usize);
            let held = &mut model[block as usize..end as usize];
            let fails = if random.below(2) == 0 {
                wanted.direction = Direction::Write;
                for (bytes, held) in wanted.buffer.chunks_exact_mut(BLOCK).zip(&mut *held) {
                    let value = random.below(256) as u8;
                    bytes.fill(value);
                    *held = Some(value);
                }
                let covers = block < 6 && end > 5;
                writes_of_middle += u64::from(covers);
                covers && writes_of_middle.is_multiple_of(3)
            } else {
                let covers = end > 6;
                reads_of_last += u64::from(covers);
                covers && reads_of_last.is_multiple_of(7)
            };
            let reads = wanted.direction == Direction::Read;
            crossed += u64::from(block < 5 && end > 5 || block < 6 && end > 6);
            failed += u64::from(fails);
            device.submit(wanted).unwrap();
            let done = wait_for(&device, 1).remove(0);
            assert_eq!((done.token, done.buffer.len()), (token, count as usize * BLOCK));
            assert_eq!(done.result.is_err(), fails, "step {token}");
            if fails && !reads {
                held.fill(None);
            } else if reads && !fails {
                for (bytes, held) in done.buffer.chunks_exact(BLOCK).zip(held) {
                    assert!(held.is_none_or(|held| bytes.iter().all(|&byte| byte == held)), "step {token}");
                }
            }
        }
        assert!(crossed > 500 && failed > 100, "{crossed} crossed a border, {failed} failed");
    }

    /// Many requests under way at once, which end in any order, each with what it asked for.
    #[test]
    fn requests_that_end_in_any_order_keep_their_tokens_and_bytes() {
        let tiers = [6, 6, 6].map(|blocks| Arc::new(Deferred::new(blocks)));
        let device = {
            let shared =
                tiers.iter().map(|tier| Box::new(Held(Arc::clone(tier), usize::MAX)) as Box<dyn Device>);
            Tiered::new(shared.collect()).unwrap()
        };
        let mut random = Random(0xb10c);
        let mut release = |count: usize| {
            let mut done = Vec::new();
            while done.len() < count {
                let tier = &tiers[random.below(3) as usize];
                if tier.held() > 0 && tier.release(random.below(tier.held() as u64) as usize) {
                    continue;
                }
                if tiers.iter().all(|tier| tier.held() == 0) {
                    device.wait(&mut done);
                }
            }
            done
        };
        for block in 0..18 {
            let mut write = request(block, Direction::Write, block, 1);
            write.buffer.fill(block as u8);
            device.submit(write).unwrap();
        }
        assert!(release(18).iter().all(|done| done.result.is_ok()));
        // Each of them crosses a border or two, or none.
        let ranges: Vec<_> =
            (0..18).flat_map(|block| (1..=18 - block).map(move |count| (block, count))).collect();
        for (token, &(block, count)) in ranges.iter().enumerate() {
            device.submit(request(token as u64, Direction::Read, block, count as usize)).unwrap();
        }
        let mut done = release(ranges.len());
        done.sort_by_key(|done| done.token);
        for (completion, (block, count)) in done.iter().zip(ranges) {
            assert_eq!(completion.buffer.len(), count as usize * BLOCK);
            for (nth, bytes) in completion.buffer.chunks_exact(BLOCK).enumerate() {
                assert!(bytes.iter().all(|&byte| u64::from(byte) == block + nth as u64));
            }
        }
    }
}
