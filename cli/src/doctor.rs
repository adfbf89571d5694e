//! `pagetide doctor`: what this machine, this user and this container give.

use crate::container;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::out;
use crate::size::show_bytes;
use crate::swapfile::SwapFile;
use pagetide_device::file;
use pagetide_sys::pagemap::Pagemap;
use pagetide_sys::uffd::{DEVICE, FEATURE_MOVE, FEATURE_POISON, FEATURE_WP_ASYNC, Uffd};
use pagetide_sys::uring;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A run would not come about.
const SICK: u8 = 1;
/// `CAP_SYS_PTRACE` in a capability set.
const SYS_PTRACE: u64 = 1 << 19;
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const RING_SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";
const CANNOT_TELL: &str = "cannot tell: /proc is not mounted";

/// Say what this machine and this user can do, and what would mend the rest
#[derive(clap::Args, Debug)]
pub struct DoctorArgs {
    /// Where a swap file would lie [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How serious it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is there.
    Good,
    /// It is missing, and a run does without.
    Missing,
    /// It is missing, and no run is possible.
    Fatal,
    /// It cannot be told.
    Unknown,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Missing => "missing",
            Self::Fatal => "FATAL",
            Self::Unknown => "unknown",
        }
    }

    fn good_if(good: bool) -> Self {
        if good { Self::Good } else { Self::Missing }
    }
}

/// What was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Finding {
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What it costs that it is missing; empty if it is there.
    cost: &'static str,
    /// What mends it; empty if nothing does, or needs to.
    remedy: String,
}

impl Finding {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), cost: "", remedy: String::new() }
    }

    /// What it costs, and what mends it, if it is missing.
    fn or(self, cost: &'static str, remedy: impl Into<String>) -> Self {
        if self.state == State::Good { self } else { Self { cost, remedy: remedy.into(), ..self } }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state.name(),
            "found": self.found,
            "cost": self.cost,
            "remedy": self.remedy,
        })
    }
}

fn explain(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

/// What `/proc` says of this process and its kernel. What it does not say is not known.
#[derive(Default)]
struct Told {
    /// The effective capabilities.
    capabilities: Option<u64>,
    /// Whether system calls are filtered.
    filtered: Option<bool>,
    /// The switch of userfaultfd: `None` if it cannot be told, or the kernel has none.
    sysctl: Option<String>,
    /// The switch of io_uring.
    ring: Option<String>,
    /// The kernel's release.
    release: Option<String>,
}

impl Told {
    /// Reads it.
    fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let word = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        Self {
            capabilities: field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok()),
            filtered: field("Seccomp:").map(|mode| mode == "2"),
            sysctl: word(SYSCTL),
            ring: word(RING_SYSCTL),
            release: word("/proc/sys/kernel/osrelease"),
        }
    }

    fn may_trace(&self) -> Option<bool> {
        Some(self.capabilities? & SYS_PTRACE != 0)
    }
}

/// An answer, if there is one.
fn answer(answer: Option<bool>) -> &'static str {
    match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => CANNOT_TELL,
    }
}

/// Whether `/proc` shows this process: processes find their run's group page there.
fn proc_is_mounted() -> Finding {
    let mounted = fs::read_link("/proc/self").is_ok();
    let state = if mounted { State::Good } else { State::Fatal };
    Finding::new("/proc", state, if mounted { "mounted" } else { "not mounted" }).or(
        "no run is possible: processes find what they share there; and much of what follows cannot be told",
        "as root: mount -t proc proc /proc",
    )
}

/// The ways to a full userfaultfd.
fn permission(probed: &[Result<u64, Errno>; 2], told: &Told) -> Vec<Finding> {
    let filtered = told.filtered == Some(true);
    let [call, device] = probed;
    let call_found = match (call, told.may_trace(), told.sysctl.as_deref()) {
        (Ok(_), Some(true), _) => "open: CAP_SYS_PTRACE".to_owned(),
        (Ok(_), _, Some("1")) => "open: vm.unprivileged_userfaultfd is 1".to_owned(),
        (Ok(_), ..) => format!("open; by what: {CANNOT_TELL}"),
        (Err(error), may_trace, sysctl) => format!(
            "closed: {}; CAP_SYS_PTRACE: {}; vm.unprivileged_userfaultfd: {}; system calls filtered: {}",
            explain(*error),
            answer(may_trace),
            sysctl.unwrap_or(if told.release.is_some() { "none" } else { CANNOT_TELL }),
            answer(told.filtered),
        ),
    };
    let device_found = match device {
        Ok(_) => format!("open: {DEVICE} may be opened"),
        Err(error) => format!("closed: {DEVICE}: {}", explain(*error)),
    };
    let remedy = match (call, device) {
        (Err(Errno::NOSYS), Err(Errno::NOENT)) => {
            "a kernel with CONFIG_USERFAULTFD, or a filter that lets userfaultfd pass".to_owned()
        }
        (_, Err(Errno::NOENT)) if filtered => "start the container with --device /dev/userfaultfd".to_owned(),
        (_, Err(Errno::NOENT)) => "as root: sysctl vm.unprivileged_userfaultfd=1".to_owned(),
        _ => format!("as root: chmod o+rw {DEVICE}"),
    };
    let any = call.is_ok() || device.is_ok();
    let state = if any { State::Good } else { State::Fatal };
    let found = if any { "a full userfaultfd can be had" } else { "no way to a full userfaultfd is open" };
    vec![
        Finding::new("userfaultfd", state, found).or("no run is possible", remedy),
        Finding::new("userfaultfd: system call", State::good_if(call.is_ok()), call_found)
            .or("none, if the device is open", ""),
        Finding::new("userfaultfd: device", State::good_if(device.is_ok()), device_found)
            .or("none, if the system call is open", ""),
    ]
}

/// What the kernel's userfaultfd, if one could be had, and page maps can do.
fn kernel(features: Option<u64>, told: &Told) -> Vec<Finding> {
    let release = told.release.as_deref().unwrap_or("release unknown");
    let has = |name, bit: u64, since, cost| match features.map(|features| features & bit != 0) {
        None => Finding::new(name, State::Unknown, "only a userfaultfd can tell"),
        Some(true) => Finding::new(name, State::Good, "yes"),
        Some(false) => Finding::new(name, State::Missing, format!("no (Linux {release})"))
            .or(cost, format!("Linux {since}")),
    };
    let scan = match Pagemap::open().map(|pagemap| pagemap.can_scan()) {
        Ok(scan) => Finding::new("PAGEMAP_SCAN", State::good_if(scan), if scan { "yes" } else { "no" })
            .or("reclaim reads /proc/self/pagemap, at some 10 µs more a cluster", "Linux 6.7"),
        Err(Errno::NOENT) => Finding::new("PAGEMAP_SCAN", State::Unknown, CANNOT_TELL),
        Err(error) => Finding::new(
            "PAGEMAP_SCAN",
            State::Unknown,
            format!("cannot tell: /proc/self/pagemap: {}", explain(error)),
        ),
    };
    vec![
        has(
            "UFFDIO_MOVE",
            FEATURE_MOVE,
            "6.8",
            "pages come in by copy only; nothing leaves while a descriptor is open that can pin pages",
        ),
        has("UFFDIO_POISON", FEATURE_POISON, "6.6", "a page that cannot be read ends the program"),
        scan,
        has("WP_ASYNC", FEATURE_WP_ASYNC, "6.7", "none: this version does not use it"),
    ]
}

/// Where pages would go.
fn storage(directory: Option<&Path>, told: &Told) -> Vec<Finding> {
    let mut findings = Vec::new();
    let places = directory.map_or_else(SwapFile::places, |directory| vec![directory.to_owned()]);
    let usable = places.iter().find_map(|place| file::takes_direct(place).ok().map(|direct| (place, direct)));
    match usable {
        Some((place, direct)) => {
            let free = file::free_bytes(place).map_or_else(|error| error.to_string(), show_bytes);
            let grows = match container::is_here() {
                true => "4 × the cap by default, for this is a container",
                false => "it grows to half of that by default",
            };
            let found = format!("{}, {free} free; {grows}", place.display());
            findings.push(Finding::new("swap file", State::Good, found));
            let found = if direct { "yes" } else { "no: the file system has none" };
            findings.push(
                Finding::new("O_DIRECT", State::good_if(direct), found)
                    .or("pages pass through the page cache, which is dropped behind them", "--swap-dir DIR"),
            );
        }
        None => {
            let reasons = places.iter().filter_map(|place| {
                let error = file::takes_direct(place).err()?;
                Some(format!("{}: {error}", place.display()))
            });
            let found = reasons.collect::<Vec<_>>().join("; ");
            findings.push(
                Finding::new("swap file", State::Missing, found)
                    .or("pages are swapped into compressed memory only", "--swap-dir DIR"),
            );
        }
    }
    let ring = uring::probe();
    let found = ring.as_ref().map_or_else(ToString::to_string, |()| "yes".to_owned());
    let disabled = told.ring.as_deref().is_some_and(|value| value != "0");
    let remedy = if disabled {
        "as root: sysctl kernel.io_uring_disabled=0"
    } else {
        "a seccomp profile that lets io_uring_setup, io_uring_enter and io_uring_register pass"
    };
    findings.push(
        Finding::new("io_uring", State::good_if(ring.is_ok()), found)
            .or("the swap file is read and written by four threads", remedy),
    );
    let (aes, wide) = pagetide_sys::arch::aes_instructions();
    let found = match (aes, wide) {
        (false, _) => "no",
        (true, false) => "AES-NI",
        (true, true) => "AES-NI, VAES",
    };
    findings.push(
        Finding::new("AES instructions", State::good_if(aes), found)
            .or("hashing and encryption take several times as long", ""),
    );
    findings
}

fn memory() -> Finding {
    match Limits::read() {
        Ok(limits) => {
            let of = if limits.cgroup.is_some() { "this cgroup" } else { "this machine" };
            Finding::new("memory", State::Good, format!("{} for {of}", show_bytes(limits.whole())))
        }
        Err(error) => Finding::new("memory", State::Unknown, format!("cannot tell: {error}"))
            .or("--memory must be a number of bytes, not a percentage", ""),
    }
}

fn text(findings: &[Finding]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for Finding { name, state, found, cost, remedy } in findings {
        let _ = writeln!(text, "{:8} {name:26} {found}", state.name());
        for (what, why) in [("cost", *cost), ("mend", remedy)] {
            if !why.is_empty() {
                let _ = writeln!(text, "{:8} {what:>26} {why}", "");
            }
        }
    }
    text
}

/// Looks, and says what it found. Returns the exit status: whether a run is possible.
pub fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let probed = Uffd::probe();
    let features = probed.iter().find_map(|way| way.ok());
    let told = Told::read();
    let mut findings = vec![proc_is_mounted()];
    findings.extend(permission(&probed, &told));
    findings.extend(kernel(features, &told));
    findings.extend(storage(args.swap_dir.as_deref(), &told));
    findings.push(memory());
    let works = findings.iter().all(|finding| finding.state != State::Fatal);
    let said = if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::json).collect();
        format!("{:#}\n", json!({ "works": works, "findings": list }))
    } else {
        let verdict = if works { "`pagetide run` works here" } else { "`pagetide run` does not work here" };
        format!("{}{verdict}\n", text(&findings))
    };
    out::print(&said)?;
    Ok(if works { 0 } else { SICK })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_open_way_is_enough_and_none_is_fatal() {
        let state = |call, device| permission(&[call, device], &Told::default())[0].state;
        assert_eq!(state(Ok(0), Err(Errno::NOENT)), State::Good);
        assert_eq!(state(Err(Errno::PERM), Ok(0)), State::Good);
        assert_eq!(state(Err(Errno::PERM), Err(Errno::ACCESS)), State::Fatal);
    }

    #[test]
    fn the_remedy_fits_what_is_closed() {
        let remedy = |call, device| permission(&[Err(call), Err(device)], &Told::default())[0].remedy.clone();
        assert!(remedy(Errno::PERM, Errno::ACCESS).contains("chmod o+rw /dev/userfaultfd"));
        assert!(remedy(Errno::NOSYS, Errno::NOENT).contains("CONFIG_USERFAULTFD"));
    }

    #[test]
    fn what_is_missing_names_its_cost() {
        let told = Told::read();
        for finding in kernel(Some(0), &told) {
            assert!(finding.state == State::Good || !finding.cost.is_empty(), "{finding:?}");
        }
        assert!(
            kernel(Some(FEATURE_MOVE), &told)
                .iter()
                .any(|found| found.name == "UFFDIO_MOVE" && found.state == State::Good)
        );
        assert_eq!(kernel(None, &told)[0].state, State::Unknown);
        assert!(
            storage(Some(Path::new("/no/such")), &told).iter().any(|found| found.state == State::Missing)
        );
    }

    #[test]
    fn what_nobody_tells_is_not_invented() {
        let untold = Told::default();
        let found = |call| permission(&[call, Err(Errno::NOENT)], &untold)[1].found.clone();
        assert_eq!(found(Ok(0)), "open; by what: cannot tell: /proc is not mounted");
        let closed = found(Err(Errno::PERM));
        assert_eq!(closed.matches("cannot tell").count(), 3, "{closed}");
        assert!(!closed.contains("no;") && !closed.contains("none"), "{closed}");
    }
}
