//! The process of a run that has the connection to the remote server: it answers the requests of the ring.
//!
//! The launcher starts it before CMD. It goes on while a process of the run lives, also when the launcher was killed;
//! then it deletes what the run has on the server.

use super::link::COMMAND;
use super::outage::{Outage, Probe, Turn};
use super::store::{Store, StoreError};
use super::target::Target;
use super::values::{Segment, Values};
use crate::beside;
use crate::failure::Failure;
use pagetide::group::{DeviceKind, Field, Group, RemoteFigure};
use pagetide_device::ring::{Member, PLACE_BLOCKS, Ring, Taken};
use pagetide_device::{BLOCK, Direction, remote};
use pagetide_sys::lock;
use pagetide_sys::procfs::Identity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::BufRead;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Connections, each with a thread of its own: while one waits for the network another is asked.
const WORKERS: usize = 4;
/// Blocks after which no more requests are put into a round trip: many reads of single pages, or one whole value. What is
/// asked for together comes back together, so a read that could have gone to another thread must not wait for a second.
const BLOCKS: usize = PLACE_BLOCKS;
/// Keys that are deleted or renewed in one round trip.
const KEYS: usize = 256;
/// Pages that its buffers and connections come to take: 6 MiB. What it takes in fact is sampled.
const BUFFERS: i64 = 1536;
/// Between two tries: at first, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(20);
const WAIT_MOST: Duration = Duration::from_secs(1);
/// Between two looks at who has gone.
const LOOK: Duration = Duration::from_millis(250);
/// Blocks that are swept at a look: 4 GiB take a few seconds.
const SWEPT: usize = 1 << 17;
/// How long a server that does not answer is asked to delete what the run had: whoever started the run waits for it.
const DELETE_MOST: Duration = Duration::from_secs(5);
/// For how long the server is told that the run goes on; it is told so again after a third of that.
const ALIVE: Duration = Duration::from_secs(600);
/// Between two tries of what is not to be given up.
const AGAIN: Duration = Duration::from_secs(5);

struct Server {
    ring: Ring,
    group: Group,
    target: Target,
    run: String,
    /// Its own slot in the group page.
    slot: usize,
    /// The first block of the tier, as the whole device counts, and its blocks.
    first_block: usize,
    blocks: u64,
    /// The swap file beside the tier, opened: when the launcher has gone, this process waits for writes to it.
    swap_file: Option<(PathBuf, OwnedFd)>,
    values: Mutex<Values>,
    outage: Outage,
    ends: AtomicBool,
}

/// Serves the run that the environment names. What it is to connect to comes over standard input, which the launcher
/// keeps open for as long as it lives. Returns the exit status.
pub(crate) fn serve() -> Result<u8, Failure> {
    let failed = |text: &str| beside::failure(COMMAND, text);
    let group = beside::join(COMMAND)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| failed(&error.to_string()))?;
    let target = Target::from_line(&line).ok_or_else(|| failed("no server is named"))?;
    let setup = group.setup();
    let tier = setup.tier(DeviceKind::Remote).ok_or_else(|| failed("the run has no remote tier"))?;
    let device = group.tier_path(tier);
    let swap_file = setup.tier(DeviceKind::File).map(|tier| {
        let file = rustix::fs::open(group.tier_path(tier), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok((format!("/proc/self/fd/{}", file.as_raw_fd()).into(), file))
    });
    let swap_file = swap_file.transpose().map_err(|error: Errno| failed(&error.to_string()))?;
    let ring = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(std::io::Error::from)
        .and_then(|file| remote::serve(&file).map(|()| file))
        .and_then(|file| Ring::adopt(&file).map(|ring| (ring, file)));
    // The lock on the file is held for as long as this process lives.
    let (ring, _file) = ring.map_err(|error| failed(&error.to_string()))?;
    let _ = rustix::thread::set_name(c"pagetide-remote");
    // Its memory counts as that of any process of the run.
    let slot = group.claim(Identity::own()).ok_or_else(|| failed("the run has too many processes"))?;
    group.take_anyway(BUFFERS);
    slot.set(Field::Grant, BUFFERS as u64);
    let [a, b, ..] = pagetide_sys::random::words();
    let run = format!("{a:016x}{:08x}", b as u32);
    let outage = Outage::new(target.timeout, ring, group);
    let server = Arc::new(Server {
        ring,
        group,
        target,
        run,
        slot: slot.index(),
        first_block: setup.first_block(tier) as usize,
        blocks: setup.tiers[tier].blocks,
        swap_file,
        values: Mutex::default(),
        outage,
        ends: AtomicBool::new(false),
    });
    let mut store = server.store();
    store.note_alive(ALIVE.as_secs()).map_err(|error| failed(&error.to_string()))?;
    // Over the connection that there is now: engines have to know what the tier costs before they read from it.
    let asked = Instant::now();
    store.note_alive(ALIVE.as_secs()).map_err(|error| failed(&error.to_string()))?;
    server.outage.answered(asked.elapsed());
    if store.is_cluster() {
        server.outage.note_cluster();
    }
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let server = Arc::clone(&server);
            // One of them takes reads only: writes may wait for long.
            std::thread::Builder::new()
                .name(format!("remote-{number}"))
                .spawn(move || server.work(number > 0))
        })
        .collect::<Result<_, _>>()
        .map_err(|error| failed(&error.to_string()))?;
    println!("ready");
    server.keep_house(store);
    drop(workers);
    Ok(0)
}

impl Server {
    fn store(&self) -> Store {
        Store::new(self.target.clone(), &self.run)
    }

    // --- Requests -----------------------------------------------------------------------------------------------------

    fn work(&self, writes: bool) {
        let mut store = self.store();
        while !self.ends.load(SeqCst) {
            let seen = self.ring.server_bell();
            let mut taken = self.ring.take(BLOCKS, writes);
            // What a member may have written over the ring.
            let beyond = |taken: &mut Taken| taken.block + taken.count as u64 > self.blocks;
            taken.extract_if(.., beyond).for_each(|taken| self.ring.end(&taken, Err(Errno::INVAL)));
            if taken.is_empty() {
                if !writes {
                    self.ring.pass_on();
                }
                self.ring.wait_as_server(seen, LOOK);
                continue;
            }
            let (reads, writes): (Vec<_>, Vec<_>) =
                taken.into_iter().partition(|taken| taken.direction == Direction::Read);
            if !reads.is_empty() {
                self.read(&mut store, reads);
            }
            if !writes.is_empty() {
                self.write(&mut store, &writes);
            }
        }
    }

    /// Does something until it succeeds, or is refused, or as long as an answer may take is over.
    fn until_answered<T>(
        &self,
        store: &mut Store,
        what: Direction,
        mut ask: impl FnMut(&mut Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let mut wait = WAIT_FIRST;
        loop {
            match self.outage.turn() {
                Turn::Ask => {}
                Turn::Probe(probe) => {
                    self.probe(store, probe);
                    continue;
                }
                Turn::GiveUp(why) => return Err(StoreError::Away(why)),
            }
            let (asked, answer) = (Instant::now(), ask(store));
            match &answer {
                Err(StoreError::Away(text)) => self.outage.away(asked, text),
                // It cannot give what it has: that is silence for who reads. (A server may take no writes and be read.)
                Err(StoreError::Busy(text)) if what == Direction::Read => self.outage.away(asked, text),
                // A server that refuses is there: what others read from it is not to be given up.
                _ => self.outage.answered(asked.elapsed()),
            }
            let may_pass = matches!(answer, Err(StoreError::Away(_) | StoreError::Busy(_)));
            let is_late = started.elapsed() + wait >= self.target.timeout;
            if !may_pass || is_late || self.ends.load(SeqCst) {
                return answer;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(WAIT_MOST);
        }
    }

    /// Asks a server that does not answer over a new connection.
    fn probe(&self, store: &mut Store, probe: Probe<'_>) {
        let asked = Instant::now();
        match store.ping() {
            Err(StoreError::Away(text) | StoreError::Busy(text)) => self.outage.away(asked, &text),
            _ => probe.answered(asked.elapsed()),
        }
    }

    fn read(&self, store: &mut Store, requests: Vec<Taken>) {
        let located: Vec<_> = {
            let values = lock(&self.values);
            requests.into_iter().map(|taken| (taken, values.locate(taken.block, taken.count))).collect()
        };
        let segments: Vec<Segment> =
            located.iter().flat_map(|(_, segments)| segments.iter().flatten().copied()).collect();
        let answers = if segments.is_empty() {
            Ok(Vec::new())
        } else {
            self.until_answered(store, Direction::Read, |store| store.read(&segments))
        };
        let mut answers = match answers {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                self.lost(located.iter().map(|(taken, _)| taken), &error.to_string());
                located.iter().for_each(|(taken, _)| self.ring.end(taken, Err(Errno::IO)));
                return;
            }
        };
        for (taken, segments) in located {
            let mut at = 0;
            let mut whole = segments.is_some();
            for segment in segments.into_iter().flatten() {
                match answers.next().flatten() {
                    Some(bytes) => self.ring.fill(&taken, at, &bytes),
                    None => whole = false,
                }
                at += segment.count;
            }
            if whole {
                self.outage.read(taken.count);
                self.ring.end(&taken, Ok(()));
            } else {
                self.lost([&taken], "the server does not have them any more (restarted, evicted or expired)");
                self.ring.end(&taken, Err(Errno::IO));
            }
        }
    }

    /// Notes reads that fail, of members that live: what others had is deleted.
    fn lost<'a>(&self, reads: impl IntoIterator<Item = &'a Taken>, why: &str) {
        let blocks: usize =
            reads.into_iter().filter(|taken| self.lives(taken.member())).map(|taken| taken.count).sum();
        if blocks > 0 {
            self.outage.lost(blocks, why);
        }
    }

    fn write(&self, store: &mut Store, requests: &[Taken]) {
        let bytes: Vec<(u64, Vec<u8>)> =
            requests.iter().map(|taken| (taken.number, self.ring.bytes(taken))).collect();
        let written = self.until_answered(store, Direction::Write, |store| store.write(&bytes));
        let blocks: usize = requests.iter().map(|taken| taken.count).sum();
        let mut values = lock(&self.values);
        for taken in requests {
            match &written {
                Ok(()) => values.written(taken.number, taken.block, taken.count),
                // It may have come to the server all the same.
                Err(_) => values.condemn(taken.number),
            }
        }
        drop(values);
        let result = match &written {
            Ok(()) => {
                self.outage.took(blocks);
                Ok(())
            }
            Err(error) => {
                self.outage.refused(blocks, error);
                // The pages stay, and are tried again after a while.
                Err(Errno::NOSPC)
            }
        };
        requests.iter().for_each(|taken| self.ring.end(taken, result));
    }

    /// Notes what the server holds for the run.
    fn note_held(&self) {
        let (count, blocks) = lock(&self.values).len();
        self.group.remote_figure(RemoteFigure::Values).store(count as u64, Relaxed);
        self.group.remote_figure(RemoteFigure::Bytes).store((blocks * BLOCK) as u64, Relaxed);
    }

    // --- The house ----------------------------------------------------------------------------------------------------

    /// Sees to places of the dead, and to what is of no use on the server, until the run is over.
    fn keep_house(&self, mut store: Store) {
        let (mut swept, mut renewed) = (0, Instant::now());
        let (mut renew_at, mut alive_at) = (renewed + self.target.ttl / 3, renewed + ALIVE / 3);
        let mut has_launcher = true;
        loop {
            has_launcher = has_launcher && is_open();
            self.ring.release_dead(|member| !self.lives(member));
            if !has_launcher && !self.has_programs() {
                break;
            }
            swept = self.sweep(swept);
            self.note_held();
            if let Some(probe) = self.outage.probe() {
                // Somebody has to find that it answers again.
                self.probe(&mut store, probe);
            }
            if self.outage.is_silent() {
                wait_for_launcher(has_launcher);
                continue;
            }
            if Instant::now() >= renew_at {
                let answer = self.renew(&mut store);
                let wait = if answer.is_ok() { self.target.ttl / 3 } else { AGAIN };
                renew_at = Instant::now() + wait;
                match answer {
                    Ok(()) => {
                        renewed = Instant::now();
                        self.outage.renewed();
                    }
                    // There is a third of their time left.
                    Err(error) if renewed.elapsed() > self.target.ttl * 2 / 3 => {
                        self.outage.not_renewed(&error.to_string(), self.target.ttl);
                    }
                    Err(_) => {}
                }
            }
            if Instant::now() >= alive_at {
                let asked = Instant::now();
                let is_done = store.note_alive(ALIVE.as_secs()).is_ok();
                if is_done {
                    self.outage.answered(asked.elapsed());
                }
                alive_at = Instant::now() + if is_done { ALIVE / 3 } else { AGAIN };
            }
            if !self.delete_some(&mut store) {
                wait_for_launcher(has_launcher);
            }
        }
        // Who asks now asks for nobody.
        self.ends.store(true, SeqCst);
        self.ring.call_server();
        lock(&self.values).condemn_all();
        self.delete_all(&mut store);
    }

    /// Deletes some of the values that are of no use. Returns whether there may be more to delete at once.
    fn delete_some(&self, store: &mut Store) -> bool {
        let condemned = lock(&self.values).take_condemned(KEYS);
        if condemned.is_empty() {
            return false;
        }
        let done = store.delete(&condemned).is_ok();
        if !done {
            // Later: the server forgets them by itself if need be.
            let mut values = lock(&self.values);
            condemned.iter().for_each(|&value| values.condemn(value));
        }
        done && condemned.len() == KEYS
    }

    /// Deletes all that the run has on the server, as far as that answers.
    fn delete_all(&self, store: &mut Store) {
        let deadline = Instant::now() + DELETE_MOST.min(self.target.timeout);
        loop {
            let condemned = lock(&self.values).take_condemned(KEYS);
            if condemned.is_empty() {
                let _ = store.note_over();
                return;
            }
            while store.delete(&condemned).is_err() {
                if Instant::now() >= deadline {
                    // The server forgets them when their time is over.
                    return;
                }
                std::thread::sleep(WAIT_FIRST);
            }
        }
    }

    /// Has the server keep all values for longer.
    fn renew(&self, store: &mut Store) -> Result<(), StoreError> {
        let numbers = lock(&self.values).numbers();
        numbers.chunks(KEYS).try_for_each(|some| store.renew(some).map(drop))
    }

    /// Gives up what no process holds any more, of some blocks. Returns where to go on.
    fn sweep(&self, from: usize) -> usize {
        let counts = &self.group.block_counts()[self.first_block..];
        let mut values = lock(&self.values);
        let range = from..from + SWEPT;
        let done = range.end >= values.end();
        values.sweep(range.clone(), |block| counts.get(block).is_some_and(|count| count.load(Relaxed) == 0));
        if done { 0 } else { range.end }
    }

    fn lives(&self, member: Member) -> bool {
        self.group
            .live()
            .any(|slot| slot.index() == member.index && slot.get(Field::Tenancy) == member.tenancy)
    }

    /// Returns whether a process of the run lives beside this one. Without a launcher nobody else looks, and one that waits
    /// for this process to end does not look any more.
    fn has_programs(&self) -> bool {
        self.group.sweep(self.swap_file.as_ref().map(|(path, _)| path));
        let is_dead = |process: Identity| process.pids().is_ok_and(|pids| pids.is_empty());
        let mut others =
            self.group.live().filter(|slot| slot.index() != self.slot && slot.get(Field::StartTime) != 0);
        others.any(|slot| !is_dead(slot.process()))
    }
}

/// Returns whether the launcher still has its end of standard input.
fn is_open() -> bool {
    let input = std::io::stdin();
    let mut polled = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_err() || !polled[0].revents().contains(PollFlags::HUP)
}

/// Waits for the next look, or until the launcher goes.
fn wait_for_launcher(has_launcher: bool) {
    if !has_launcher {
        return std::thread::sleep(LOOK);
    }
    let input = std::io::stdin();
    let mut polled = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::group;
    use std::io::{BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    /// Where nobody listens.
    const NOBODY: &str = "redis://127.0.0.1:1";

    /// A server that answers all that it is asked, of which a client of the library knows no better.
    fn listen() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(|| answer_all(stream.unwrap()));
            }
        });
        url
    }

    /// Answers commands: each is a line `*N`, and N strings of two lines.
    fn answer_all(stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        while let Some(count) = lines.next() {
            let count: usize = count.trim_start_matches('*').parse().unwrap();
            let words: Vec<_> = lines.by_ref().take(2 * count).collect();
            let answer = match words[1].as_str() {
                "INFO" => "$19\r\nredis_version:7.0.0\r\n",
                "GETRANGE" => "$1\r\n1\r\n",
                _ => "+OK\r\n",
            };
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    }

    fn server(timeout: Duration, url: &str) -> Server {
        let (_fd, group) = group();
        let (_fd, ring) = Ring::create().unwrap();
        let target = Target::new(&[url.to_owned()], None, timeout, Duration::from_secs(60)).unwrap();
        let outage = Outage::new(timeout, ring, group);
        Server {
            ring,
            group,
            target,
            run: "test".to_owned(),
            slot: 0,
            first_block: 0,
            blocks: 1000,
            swap_file: None,
            values: Mutex::default(),
            outage,
            ends: AtomicBool::new(false),
        }
    }

    fn away() -> StoreError {
        StoreError::Away("no answer".to_owned())
    }

    /// A server that has not answered for as long as an answer may take.
    fn given_up(url: &str) -> (Server, Store) {
        let server = server(Duration::from_millis(50), url);
        let mut store = server.store();
        let answer = server.until_answered(&mut store, Direction::Read, |_| Err::<(), _>(away()));
        assert_eq!(answer, Err(away()));
        std::thread::sleep(Duration::from_millis(50));
        (server, store)
    }

    #[test]
    fn a_server_that_refuses_is_not_given_up() {
        let (server, mut store) = given_up(&listen());
        let full = || StoreError::Full("no room".to_owned());
        let answer = server.until_answered(&mut store, Direction::Write, |_| Err::<(), _>(full()));
        assert_eq!(answer, Err(full()));
        assert!(!server.outage.is_silent());
        assert_eq!(server.until_answered(&mut store, Direction::Read, |_| Ok(7)), Ok(7));
    }

    #[test]
    fn one_that_answers_again_loses_nothing() {
        let (server, _) = given_up(&listen());
        // However many ask at once: one of them finds that it answers, and the others wait for that.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let answer = server.until_answered(&mut server.store(), Direction::Read, |_| Ok(7));
                    assert_eq!(answer, Ok(7));
                });
            }
        });
        assert!(!server.outage.is_silent());
    }

    #[test]
    fn what_was_found_silent_within_a_second_is_not_asked() {
        let (server, mut store) = given_up(NOBODY);
        let mut asked = 0;
        for _ in 0..100 {
            let ask = |_: &mut Store| {
                asked += 1;
                Err::<(), _>(away())
            };
            let answer = server.until_answered(&mut store, Direction::Read, ask);
            assert!(matches!(answer, Err(StoreError::Away(_))), "{answer:?}");
        }
        assert_eq!(asked, 0, "whoever probes finds that nobody is there");
        assert!(server.outage.probe().is_none(), "a second has not passed");
    }

    #[test]
    fn a_server_that_takes_no_writes_may_be_read() {
        let server = server(Duration::from_millis(50), NOBODY);
        let busy = || StoreError::Busy("NOREPLICAS".to_owned());
        let answer = server.until_answered(&mut server.store(), Direction::Write, |_| Err::<(), _>(busy()));
        assert_eq!((answer, server.outage.is_silent()), (Err(busy()), false));
        let answer = server.until_answered(&mut server.store(), Direction::Read, |_| Err::<(), _>(busy()));
        assert_eq!((answer, server.outage.is_silent()), (Err(busy()), true));
    }
}
