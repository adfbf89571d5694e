//! What is most likely stuck.

use super::Dump;
use super::look::{EngineThread, Process};
use pagetide::dump::board::{Activity, Kind, Purpose, ThreadShown};
use pagetide_swap::PageIndex;
use std::fmt::Write as _;

/// What is younger is on its way, as a rule.
const YOUNG: u64 = 100_000_000;

/// Something that waits, or takes its time.
pub(crate) struct Wait {
    /// Since when.
    pub since: u64,
    /// Who waits, and where.
    pub who: String,
    /// What for.
    pub what: String,
}

impl Wait {
    fn text(&self, now: u64) -> String {
        format!("{} for {}: {}", self.who, age(now, self.since), self.what)
    }
}

/// An age for people: milliseconds below a second, then seconds with one digit.
pub(crate) fn age(now: u64, since: u64) -> String {
    let millis = now.saturating_sub(since) / 1_000_000;
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..100_000 => format!("{}.{} s", millis / 1000, millis / 100 % 10),
        _ => format!("{} s", millis / 1000),
    }
}

/// Whether a thread is at work.
pub(crate) fn is_busy(thread: &EngineThread) -> bool {
    thread.shown.is_some_and(|shown| !shown.activity.is_idle())
}

/// What a thread does, with the page or the number that belongs to it.
pub(crate) fn activity(shown: &ThreadShown) -> String {
    let text = shown.activity.text();
    match shown.activity {
        Activity::Answers => format!("{text} {:#x}", shown.what.wrapping_mul(4096)),
        Activity::AwaitsDevice => format!("{text} ({} under way)", counted(shown.what, "request")),
        Activity::EndsRequests => format!("ends {}", counted(shown.what, "request")),
        Activity::Starves => format!("{text} ({} parked)", counted(shown.what, "fault")),
        _ => text.to_owned(),
    }
}

/// A number of things.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The oldest wait of a process: of a fault if any waits for long, for that is what the program feels; else of a thread
/// or a request.
pub(crate) fn oldest(process: &Process, now: u64) -> Option<Wait> {
    let fault_on = |page: PageIndex| format!("fault on {:#x}", page.0.wrapping_mul(4096));
    let faults = process.parked.iter().map(|fault| Wait {
        since: fault.since,
        who: fault_on(fault.page),
        what: format!("waits for {}", fault.why.text()),
    });
    let reads = process.requests.iter().filter_map(|request| {
        let (page, since) = request.demand?;
        Some(Wait { since, who: fault_on(page), what: "waits for the device to read it".to_owned() })
    });
    let threads = process.threads.iter().filter_map(|thread| {
        let shown = thread.shown.filter(|shown| !shown.activity.is_idle())?;
        Some(Wait { since: shown.since, who: thread.name.clone(), what: activity(&shown) })
    });
    let requests = process.requests.iter().filter(|request| request.demand.is_none()).map(|request| Wait {
        since: request.since,
        who: format!("{} of {:#x}", request.purpose.text(), request.first.0.wrapping_mul(4096)),
        what: "is under way to the device".to_owned(),
    });
    let fault = faults.chain(reads).min_by_key(|wait| wait.since);
    let other = threads.chain(requests).min_by_key(|wait| wait.since);
    match fault {
        Some(fault) if now.saturating_sub(fault.since) >= YOUNG => Some(fault),
        fault => fault.into_iter().chain(other).min_by_key(|wait| wait.since),
    }
}

/// What most likely keeps a process, in the order of causes: whoever is behind others comes first.
fn causes(process: &Process, now: u64) -> Vec<String> {
    let mut causes = Vec::new();
    if let Some('T' | 't') = process.state {
        causes.push("the process is stopped (SIGCONT has it go on)".to_owned());
    }
    if let Some(fork) = process.counts.as_ref().and_then(|counts| counts.fork) {
        causes.push(format!(
            "a fork by thread {} has stopped all work for {}",
            fork.tid,
            age(now, fork.since)
        ));
    }
    if process.slot.is_resting() {
        causes.push("the process was told to rest (load control)".to_owned());
    }
    let stuck = |kind: Kind| {
        let thread =
            process.threads.iter().find(|thread| thread.shown.is_some_and(|shown| shown.kind == kind))?;
        let shown = thread.shown.filter(|shown| !shown.activity.is_idle())?;
        (now.saturating_sub(shown.since) >= YOUNG)
            .then(|| format!("{} for {}: {}", thread.name, age(now, shown.since), activity(&shown)))
    };
    causes.extend([Kind::Control, Kind::Io, Kind::Reclaim].into_iter().filter_map(stuck));
    let oldest = |writes: bool| {
        let is_one = |purpose| matches!(purpose, Purpose::Store | Purpose::Writeback) == writes;
        process.requests.iter().filter(|request| is_one(request.purpose)).map(|request| request.since).min()
    };
    for (writes, name) in [(false, "read"), (true, "write")] {
        if let Some(since) = oldest(writes).filter(|&since| now.saturating_sub(since) >= YOUNG) {
            causes.push(format!("the oldest {name} is {} under way", age(now, since)));
        }
    }
    causes
}

/// The last line.
pub(crate) fn verdict(dump: &Dump) -> String {
    let waits = dump.processes.iter().filter_map(|process| Some((process, oldest(process, dump.now)?)));
    let Some((process, wait)) = waits.min_by_key(|(_, wait)| wait.since) else {
        let stopped = dump.processes.iter().find(|process| matches!(process.state, Some('T' | 't')));
        return match stopped {
            Some(process) => format!("nothing waits; process {} is stopped", process.pid),
            None => "nothing waits: no fault is parked, no request is under way".to_owned(),
        };
    };
    let of = if dump.processes.len() > 1 { format!(" (process {})", process.pid) } else { String::new() };
    let oldest = wait.text(dump.now);
    if dump.now.saturating_sub(wait.since) < YOUNG {
        return format!("nothing looks stuck: the oldest wait is {oldest}{of}");
    }
    let mut text = format!("oldest wait{of}: {oldest}");
    for cause in causes(process, dump.now).iter().filter(|&cause| *cause != oldest) {
        let _ = write!(text, "; {cause}");
    }
    text
}
