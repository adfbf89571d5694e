//! `pagetide doctor`: what this machine, this user and this container give.

use crate::failure::Failure;
use crate::limits::Limits;
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

/// The ways to a full userfaultfd.
fn permission(probed: &[Result<u64, Errno>; 2]) -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let effective = field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
    let sysctl = fs::read_to_string(SYSCTL).unwrap_or_default();
    let filtered = field("Seccomp:") == Some("2");
    let [call, device] = probed;
    let call_found = match call {
        Ok(_) if effective & SYS_PTRACE != 0 => "open: CAP_SYS_PTRACE".to_owned(),
        Ok(_) => "open: vm.unprivileged_userfaultfd is 1".to_owned(),
        Err(error) => format!(
            "closed: {}; CAP_SYS_PTRACE: {}; vm.unprivileged_userfaultfd: {}; system calls filtered: {}",
            explain(*error),
            if effective & SYS_PTRACE != 0 { "yes" } else { "no" },
            if sysctl.is_empty() { "none" } else { sysctl.trim() },
            if filtered { "yes" } else { "no" },
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
fn kernel(features: Option<u64>) -> Vec<Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let has = |name, bit: u64, since, cost| match features.map(|features| features & bit != 0) {
        None => Finding::new(name, State::Unknown, "only a userfaultfd can tell"),
        Some(true) => Finding::new(name, State::Good, "yes"),
        Some(false) => Finding::new(name, State::Missing, format!("no (Linux {})", release.trim()))
            .or(cost, format!("Linux {since}")),
    };
    let scan = Pagemap::open().is_ok_and(|pagemap| pagemap.can_scan());
    vec![
        has(
            "UFFDIO_MOVE",
            FEATURE_MOVE,
            "6.8",
            "pages come in by copy only; nothing leaves while a descriptor is open that can pin pages",
        ),
        has("UFFDIO_POISON", FEATURE_POISON, "6.6", "a page that cannot be read ends the program"),
        Finding::new("PAGEMAP_SCAN", State::good_if(scan), if scan { "yes" } else { "no" })
            .or("reclaim reads /proc/self/pagemap, at some 10 µs more a cluster", "Linux 6.7"),
        has("WP_ASYNC", FEATURE_WP_ASYNC, "6.7", "none: this version does not use it"),
    ]
}

/// Where pages would go.
fn storage(directory: Option<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let places = directory.map_or_else(SwapFile::places, |directory| vec![directory.to_owned()]);
    let usable = places.iter().find_map(|place| file::takes_direct(place).ok().map(|direct| (place, direct)));
    match usable {
        Some((place, direct)) => {
            let free = file::free_bytes(place).map_or_else(|error| error.to_string(), show_bytes);
            let found = format!("{}, {free} free", place.display());
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
    let disabled = fs::read_to_string(RING_SYSCTL).is_ok_and(|value| value.trim() != "0");
    let remedy = if disabled {
        "as root: sysctl kernel.io_uring_disabled=0"
    } else {
        "a seccomp profile that lets io_uring_setup, io_uring_enter and io_uring_register pass"
    };
    findings.push(
        Finding::new("io_uring", State::good_if(ring.is_ok()), found)
            .or("the swap file is read and written by four threads", remedy),
    );
    let aes = std::arch::is_x86_feature_detected!("aes");
    let wide = std::arch::is_x86_feature_detected!("vaes");
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
        Err(error) => Finding::new("memory", State::Missing, error)
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
    let mut findings = permission(&probed);
    findings.extend(kernel(features));
    findings.extend(storage(args.swap_dir.as_deref()));
    findings.push(memory());
    let works = findings.iter().all(|finding| finding.state != State::Fatal);
    let said = if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::json).collect();
        format!("{:#}\n", json!({ "works": works, "findings": list }))
    } else {
        let verdict = if works { "`pagetide run` works here" } else { "`pagetide run` does not work here" };
        format!("{}{verdict}\n", text(&findings))
    };
    use std::io::Write as _;
    std::io::stdout().write_all(said.as_bytes()).map_err(|error| error.to_string())?;
    Ok(if works { 0 } else { SICK })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_open_way_is_enough_and_none_is_fatal() {
        let state = |call, device| permission(&[call, device])[0].state;
        assert_eq!(state(Ok(0), Err(Errno::NOENT)), State::Good);
        assert_eq!(state(Err(Errno::PERM), Ok(0)), State::Good);
        assert_eq!(state(Err(Errno::PERM), Err(Errno::ACCESS)), State::Fatal);
    }

    #[test]
    fn the_remedy_fits_what_is_closed() {
        let remedy = |call, device| permission(&[Err(call), Err(device)])[0].remedy.clone();
        assert!(remedy(Errno::PERM, Errno::ACCESS).contains("chmod o+rw /dev/userfaultfd"));
        assert!(remedy(Errno::NOSYS, Errno::NOENT).contains("CONFIG_USERFAULTFD"));
    }

    #[test]
    fn what_is_missing_names_its_cost() {
        for finding in kernel(Some(0)) {
            assert!(finding.state == State::Good || !finding.cost.is_empty(), "{finding:?}");
        }
        assert!(
            kernel(Some(FEATURE_MOVE))
                .iter()
                .any(|found| found.name == "UFFDIO_MOVE" && found.state == State::Good)
        );
        assert_eq!(kernel(None)[0].state, State::Unknown);
        assert!(storage(Some(Path::new("/no/such"))).iter().any(|found| found.state == State::Missing));
    }
}
