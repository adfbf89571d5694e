//! Checks of the doctor.

use crate::disk::swapfile::SwapFile;
use crate::doctor::finding::{Finding, State};
use crate::doctor::told::Told;
use crate::machine::container;
use crate::machine::limits::Limits;
use crate::permission;
use crate::permission::device::ask_broker;
use crate::permission::remedy::{self, Here};
use crate::run::library;
use crate::units::show_bytes;
use pagetide_device::file;
use pagetide_sys::pagemap::Pagemap;
use pagetide_sys::uffd::{DEVICE, FEATURE_MOVE, FEATURE_POISON, FEATURE_WP_ASYNC, Uffd};
use pagetide_sys::uring;
use rustix::io::Errno;
use std::fs;
use std::path::Path;

const CANNOT_TELL: &str = "cannot tell: /proc is not mounted";

fn explain(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

/// Words an answer that may be unknown.
fn answer(answer: Option<bool>) -> &'static str {
    match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => CANNOT_TELL,
    }
}

/// Checks that `/proc` is mounted: processes find the group page of their run there.
pub(crate) fn proc_is_mounted() -> Finding {
    let mounted = fs::read_link("/proc/self").is_ok();
    let state = if mounted { State::Good } else { State::Fatal };
    Finding::new("/proc", state, if mounted { "mounted" } else { "not mounted" }).or(
        "no run is possible: processes find what they share there; and much of what follows cannot be told",
        "as root: mount -t proc proc /proc",
    )
}

/// Checks that the library is there which programs load.
pub(crate) fn library() -> Finding {
    let (state, found) = match library::find() {
        Ok(path) => (State::Good, path.display().to_string()),
        Err(problem) => (State::Fatal, problem),
    };
    Finding::new("library", state, found).or(
        "no run is possible: programs load it",
        "install the program together with its library: docs/install.md",
    )
}

/// The ways to a full userfaultfd: what the kernel has by each, or why it is closed.
pub(crate) struct Ways {
    /// The system call.
    pub(crate) call: Result<u64, Errno>,
    /// The device.
    pub(crate) device: Result<u64, Errno>,
    /// The device, from a broker.
    pub(crate) broker: Result<u64, Errno>,
}

impl Ways {
    /// Tries each.
    pub(crate) fn probe() -> Self {
        let [call, device] = Uffd::probe();
        let broker = ask_broker(&permission::socket()).map(|(_, features)| features);
        Self { call, device, broker }
    }

    /// Returns what the kernel has, if a way is open.
    pub(crate) fn features(&self) -> Option<u64> {
        [self.call, self.device, self.broker].into_iter().find_map(Result::ok)
    }
}

/// Checks the ways to a full userfaultfd.
pub(crate) fn permission(ways: &Ways, here: &Here, told: &Told) -> Vec<Finding> {
    let Ways { call, device, broker } = ways;
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
    let broker_found = match broker {
        Ok(_) => format!("open: {} gives {DEVICE}", permission::socket().display()),
        Err(error) => {
            let said = remedy::explain_broker(*error).unwrap_or_else(|| "there is none".to_owned());
            format!("closed: {said}")
        }
    };
    let remedy = match (call, device) {
        (Err(Errno::NOSYS), Err(Errno::NOENT)) => {
            "a kernel with CONFIG_USERFAULTFD, or a filter that lets userfaultfd pass".to_owned()
        }
        _ => here.remedies().first().map_or_else(String::new, |way| way.line.clone()),
    };
    let any = call.is_ok() || device.is_ok() || broker.is_ok();
    let state = if any { State::Good } else { State::Fatal };
    let found = if any { "a full userfaultfd can be had" } else { "no way to a full userfaultfd is open" };
    vec![
        Finding::new("userfaultfd", state, found).or("no run is possible", remedy),
        Finding::new("userfaultfd: system call", State::good_if(call.is_ok()), call_found)
            .or("none, if the device is open", ""),
        Finding::new("userfaultfd: device", State::good_if(device.is_ok()), device_found)
            .or("none, if the system call is open", ""),
        Finding::new("userfaultfd: broker", State::good_if(broker.is_ok()), broker_found)
            .or("none, if another way is open", ""),
    ]
}

/// Checks features of userfaultfd, if one could be opened, and of page maps.
pub(crate) fn kernel(features: Option<u64>, told: &Told) -> Vec<Finding> {
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
        has(
            "WP_ASYNC",
            FEATURE_WP_ASYNC,
            "6.7",
            "pages that are written all the time leave with their neighbours",
        ),
    ]
}

/// Checks the swap file, and the means to write it.
pub(crate) fn storage(directory: Option<&Path>, told: &Told) -> Vec<Finding> {
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

/// Checks the memory that a percentage would refer to.
pub(crate) fn memory() -> Finding {
    match Limits::read() {
        Ok(limits) => {
            let of = if limits.cgroup.is_some() { "this cgroup" } else { "this machine" };
            Finding::new("memory", State::Good, format!("{} for {of}", show_bytes(limits.whole())))
        }
        Err(error) => Finding::new("memory", State::Unknown, format!("cannot tell: {error}"))
            .or("--memory must be a number of bytes, not a percentage", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        call: Result<u64, Errno>,
        device: Result<u64, Errno>,
        broker: Result<u64, Errno>,
    ) -> Vec<Finding> {
        let here = Here::look();
        permission(&Ways { call, device, broker }, &here, &Told::default())
    }

    #[test]
    fn one_open_way_is_enough_and_none_is_fatal() {
        let state = |call, device, broker| checked(call, device, broker)[0].state;
        let (closed, none) = (Err(Errno::PERM), Err(Errno::NOENT));
        assert_eq!(state(Ok(0), none, none), State::Good);
        assert_eq!(state(closed, Ok(0), none), State::Good);
        assert_eq!(state(closed, Err(Errno::ACCESS), Ok(0)), State::Good);
        assert_eq!(state(closed, Err(Errno::ACCESS), Err(Errno::ACCESS)), State::Fatal);
    }

    #[test]
    fn the_remedy_fits_what_is_closed() {
        let remedy = |call, device| checked(Err(call), Err(device), Err(Errno::NOENT))[0].remedy.clone();
        assert_eq!(remedy(Errno::PERM, Errno::ACCESS), Here::look().remedies()[0].line);
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
        let here = Here::look();
        let ways = |call| Ways { call, device: Err(Errno::NOENT), broker: Err(Errno::NOENT) };
        let found = |call| permission(&ways(call), &here, &untold)[1].found.clone();
        assert_eq!(found(Ok(0)), "open; by what: cannot tell: /proc is not mounted");
        let closed = found(Err(Errno::PERM));
        assert_eq!(closed.matches("cannot tell").count(), 3, "{closed}");
        assert!(!closed.contains("no;") && !closed.contains("none"), "{closed}");
    }
}
