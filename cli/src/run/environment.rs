//! Test switches from the environment, and errors of the kernel, explained.

use pagetide::injection::{self, Plan};
use pagetide::mask::Mask;
use rustix::io::Errno;

/// Reads `PAGETIDE_MASK`.
pub(crate) fn mask_from_environment() -> Result<Mask, String> {
    let list = std::env::var_os("PAGETIDE_MASK").unwrap_or_default();
    let list = list.to_string_lossy();
    Mask::parse(&list).map_err(|name| {
        let known: Vec<_> = Mask::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_MASK: there is no way {name:?}; there are {}", known.join(", "))
    })
}

/// Reads `PAGETIDE_FAIL`.
pub(crate) fn injection() -> Result<Plan, String> {
    let text = std::env::var_os("PAGETIDE_FAIL").unwrap_or_default();
    Plan::parse(&text.to_string_lossy()).ok_or_else(|| {
        let known: Vec<_> = injection::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_FAIL: {text:?} is not NAME:N, with a NAME of {}", known.join(", "))
    })
}

/// Explains why no userfaultfd can be opened, and what would mend it.
pub(crate) fn explain_userfaultfd(error: Errno) -> String {
    if error == Errno::NOSYS {
        return "this kernel has no userfaultfd (CONFIG_USERFAULTFD), without which Pagetide cannot work"
            .into();
    }
    format!(
        "no permission for userfaultfd ({}). One of these gives it:\n  \
         - run as root, or with CAP_SYS_PTRACE\n  \
         - sysctl vm.unprivileged_userfaultfd=1\n  \
         - access to /dev/userfaultfd: chmod or a udev rule; in a container, --device /dev/userfaultfd",
        std::io::Error::from(error)
    )
}
