//! Facts that `/proc` tells of this process and its kernel.

use std::fs;

/// The bit of `CAP_SYS_PTRACE` in a capability set.
const SYS_PTRACE: u64 = 1 << 19;
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const RING_SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// Facts that `/proc` tells; `None` where it does not.
#[derive(Default)]
pub(crate) struct Told {
    /// The effective capabilities.
    pub(crate) capabilities: Option<u64>,
    /// Whether system calls are filtered.
    pub(crate) filtered: Option<bool>,
    /// The sysctl `vm.unprivileged_userfaultfd`; `None` too if the kernel has none.
    pub(crate) sysctl: Option<String>,
    /// The sysctl `kernel.io_uring_disabled`.
    pub(crate) ring: Option<String>,
    /// The kernel's release.
    pub(crate) release: Option<String>,
}

impl Told {
    /// Reads `/proc`.
    pub(crate) fn read() -> Self {
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

    /// Returns whether this process has CAP_SYS_PTRACE.
    pub(crate) fn may_trace(&self) -> Option<bool> {
        Some(self.capabilities? & SYS_PTRACE != 0)
    }
}
