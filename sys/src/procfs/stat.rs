//! States and times of processes and threads: `/proc/PID/stat` and its kin.

use super::file::{of_process, parsed, small};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

/// The processor that a thread of this process ran on last.
pub fn processor_of(tid: u32) -> Option<usize> {
    parse_processor(&small(&format!("/proc/self/task/{tid}/stat"))?)
}

/// The processor that a thread ran on last, of any process of this namespace.
pub fn processor_of_any(tid: u32) -> Option<usize> {
    // Of `/proc/TID/stat` the kernel adds up all threads' times.
    parse_processor(&small(&format!("/proc/{tid}/task/{tid}/stat"))?)
}

fn parse_processor(stat: &str) -> Option<usize> {
    // The command may hold spaces: count from the last parenthesis. Field 39 of stat is the processor.
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Returns the number of threads of this process.
pub fn thread_count() -> Option<u64> {
    // A directory has a link for each that lies in it, and two of its own.
    Some(std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata("/proc/self/task").ok()?).saturating_sub(2))
}

/// Returns how long a thread of this process has run, and how long it has waited for a processor, in nanoseconds.
pub fn run_times(tid: u32) -> Option<(u64, u64)> {
    let times = small(&format!("/proc/self/task/{tid}/schedstat"))?;
    let mut times = times.split_ascii_whitespace().map(str::parse);
    Some((times.next()?.ok()?, times.next()?.ok()?))
}

/// Returns for how long these processors were not idle since boot, and how long that is, in ticks, each added up. `None` where
/// the kernel does not say. Of many processors it takes a millisecond.
pub fn processor_times(processors: &[usize]) -> Option<(u64, u64)> {
    let stat = BufReader::new(File::open("/proc/stat").ok()?);
    let (mut busy, mut all) = (0, 0);
    // cpuN user nice system idle iowait irq softirq steal …
    for line in stat.lines().map_while(Result::ok).take_while(|line| line.starts_with("cpu")) {
        let mut fields = line.split_ascii_whitespace();
        let number = fields.next()?.strip_prefix("cpu")?.parse();
        if number.is_ok_and(|number: usize| processors.contains(&number)) {
            let ticks: Vec<u64> = fields.take(8).map_while(|field| field.parse().ok()).collect();
            let (sum, idle) = (ticks.iter().sum::<u64>(), ticks.iter().skip(3).take(2).sum::<u64>());
            (busy, all) = (busy + sum - idle, all + sum);
        }
    }
    (all > 0).then_some((busy, all))
}

/// Returns the time at which a process started, in ticks since boot: with the pid it names a process for good. `None`
/// if it is dead, or nobody can tell.
pub fn start_time(pid: u32) -> Option<u64> {
    life(pid).ok().flatten()
}

/// The processor that a process has used, what it is, and whose child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The letter of its state.
    pub state: u8,
    /// Its parent.
    pub parent: u32,
    /// The leader of its session. `None` if that is in another pid namespace.
    pub session: Option<u32>,
    /// Whether it runs a program that it has called for itself. Else it was forked, and shows its parent's memory.
    pub has_execed: bool,
    /// Whether it is ending, or has ended: others may know, for it closes what it had open.
    pub is_exiting: bool,
    /// Processor time so far, in ticks.
    pub ticks: u64,
    /// The number of its threads.
    pub threads: u32,
    /// The time at which it started, in ticks since boot.
    pub start_time: u64,
    /// Where its stack began, which every program's start chooses at random; 0 if that is not to be seen, or not
    /// settled, for it is in the midst of exec.
    pub stack: u64,
}

impl Stat {
    /// The kernel's mark of those that were forked and have not called `exec` since (`PF_FORKNOEXEC`).
    const FORKED: u64 = 0x40;
    /// That of those that have begun to end (`PF_EXITING`).
    const EXITING: u64 = 0x4;

    /// Reads that of a process. `None` if it is not there, or hidden.
    ///
    /// ```
    /// use pagetide_sys::procfs::Stat;
    ///
    /// let stat = Stat::of("self").expect("this process is there");
    /// assert!(stat.threads >= 1 && !stat.is_dead());
    /// ```
    pub fn of(pid: impl std::fmt::Display) -> Option<Self> {
        Self::parse(&small(&format!("/proc/{pid}/stat"))?)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        // The name may hold anything: count from the last parenthesis.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // A new program has a stack before it has an environment there, if an empty one.
        let has_environment = number(47).is_some_and(|start| start != 0);
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: number(1)? as u32,
            session: Some(number(3)? as u32).filter(|&leader| leader != 0),
            has_execed: number(6)? & Self::FORKED == 0,
            is_exiting: number(6)? & Self::EXITING != 0,
            ticks: number(11)? + number(12)?,
            threads: number(17)? as u32,
            start_time: number(19)?,
            stack: number(25).filter(|_| has_environment).unwrap_or(0),
        })
    }

    /// Returns whether it is dead. A zombie that still has threads is a process whose first thread has ended.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// The time since `born`, in ticks since boot.
pub fn age(born: u64) -> Option<Duration> {
    let uptime: f64 = small("/proc/uptime")?.split(' ').next()?.parse().ok()?;
    let born = born as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(uptime - born).ok()
}

/// The pid that was given away last, which changes whenever a process or a thread starts.
pub fn last_pid() -> Option<u64> {
    small("/proc/loadavg")?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Returns the time at which a process started. `None` if it is dead; an error if nobody can tell.
pub(super) fn life(pid: u32) -> Result<Option<u64>, Errno> {
    let Some(stat) = of_process(pid, "stat")? else { return Ok(None) };
    let started = || {
        let mut fields = stat_fields(&stat);
        let state = fields.next()?;
        // A zombie that still has threads is a process whose first thread has ended.
        let threads = parsed(fields.nth(16)?)?;
        let dead = matches!(state, "Z" | "X") && threads <= 1;
        Some((!dead).then_some(parsed(fields.nth(1)?)?))
    };
    started().ok_or(Errno::INVAL)
}

/// The fields of `/proc/PID/stat` from the third, the state, on. (The second, the command, may hold anything.)
pub(super) fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_from_a_fork_and_from_the_next_one() {
        let text = "7 (a) S 9) S 24771 24747 6133 0 -1 4194368 3037 0 0 0 3 4 0 0 20 0 2 0 140816 73842688 17531 \
                    18446744073709551615 94253550456832 94253550457813 140728370670448 0 0 \
                    0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 140728370671000 0 0";
        let stat = Stat::parse(text).unwrap();
        let wanted = Stat {
            state: b'S',
            parent: 24771,
            session: Some(6133),
            has_execed: false,
            is_exiting: false,
            ticks: 7,
            threads: 2,
            start_time: 140_816,
            stack: 140_728_370_670_448,
        };
        assert_eq!(stat, wanted);
        let from_outside = text.replace(" 6133 ", " 0 ");
        assert_eq!(Stat::parse(&from_outside).unwrap().session, None, "the leader is outside");
        let in_exec = text.replace("140728370671000", "0");
        assert_eq!(Stat::parse(&in_exec), Some(Stat { stack: 0, ..wanted }), "it has no environment yet");
        let own = Stat::of("self").unwrap();
        assert!(own.has_execed && !own.is_dead() && own.stack != 0, "{own:?}");
        assert_eq!(Some(own.start_time), start_time(std::process::id()));
        assert_eq!(Stat::of(0), None);
        let before = last_pid().unwrap();
        std::process::Command::new("true").status().unwrap();
        assert_ne!(last_pid(), Some(before));
    }

    #[test]
    fn processors_that_are_used_are_seen_to_be() {
        let all = crate::task::processors();
        let before = processor_times(&all).unwrap();
        let mut now = before;
        // This thread is at work meanwhile, on one of them.
        while now.0 == before.0 {
            now = processor_times(&all).unwrap();
        }
        assert!(now.1 - before.1 >= now.0 - before.0, "{before:?}, {now:?}");
        assert_eq!(processor_times(&[]), None);
    }

    #[test]
    fn a_thread_that_runs_is_seen_to_run() {
        let before = run_times(crate::task::tid()).unwrap();
        while run_times(crate::task::tid()).unwrap().0 == before.0 {}
        assert!(run_times(0).is_none());
    }
}
