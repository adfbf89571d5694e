//! What would give permission for userfaultfd here, the shortest first.

use crate::machine::container;
use crate::permission::{GROUP, members, socket, steps};
use pagetide_sys::uffd::DEVICE;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Where `sudo` looks for programs, whatever the user's own PATH.
const SUDO_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What is known of this process and its machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Here {
    /// Whether this is a container, as far as can be told.
    pub(crate) is_container: bool,
    /// The name of the user; `None` for root.
    pub(crate) user: Option<String>,
    /// Whether the kernel has the device (Linux 6.1), under a name or not.
    pub(crate) has_device: bool,
    /// How `sudo` is told to run this program.
    pub(crate) program: String,
}

/// A way to permission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Remedy {
    /// The command or option.
    pub(crate) line: String,
    /// What it reaches.
    pub(crate) reach: &'static str,
    /// The command, word by word, if it is one that may be run here.
    pub(crate) command: Option<Vec<String>>,
}

impl Here {
    /// Looks at this process and its machine.
    pub(crate) fn look() -> Self {
        let user = rustix::process::geteuid();
        Self {
            is_container: container::is_here(),
            user: (!user.is_root()).then(|| members::name_of(user.as_raw())),
            has_device: steps::device_number().is_some() || Path::new(DEVICE).exists(),
            program: own_program(),
        }
    }

    /// Returns the ways that are open here, the shortest first.
    pub(crate) fn remedies(&self) -> Vec<Remedy> {
        let way = |line: &str, reach| Remedy { line: line.to_owned(), reach, command: None };
        let command = |words: &[&str], reach| Remedy {
            line: words.join(" "),
            reach,
            command: Some(words.iter().map(ToString::to_string).collect()),
        };
        let mut ways = Vec::new();
        match &self.user {
            _ if self.is_container => {
                if self.has_device {
                    ways.push(way("--device /dev/userfaultfd", "starts the container with the device"));
                }
                ways.push(way(
                    "-v /run/pagetide:/run/pagetide",
                    "if the machine below has a broker (Docker, Kubernetes)",
                ));
            }
            Some(user) if self.has_device => {
                let words = ["sudo", &self.program, "setup", "--user", user];
                ways.push(command(&words, "for this user, for good"));
            }
            // Root without CAP_SYS_PTRACE, and without the node.
            None if self.has_device => {
                ways.push(command(&[&self.program, "setup"], "makes the device's node, for good"));
            }
            _ => {}
        }
        if !self.is_container {
            let words = ["sudo", "sysctl", "vm.unprivileged_userfaultfd=1"];
            let words = if self.user.is_some() { &words[..] } else { &words[1..] };
            ways.push(command(words, "for everybody, until the next boot"));
        }
        ways
    }
}

/// Returns how `sudo` is told to run this program.
pub(super) fn own_program() -> String {
    program(std::env::current_exe().ok())
}

fn program(executable: Option<PathBuf>) -> String {
    match executable {
        Some(path) if !SUDO_PATH.iter().any(|folder| path.parent() == Some(Path::new(folder))) => {
            path.display().to_string()
        }
        _ => "pagetide".to_owned(),
    }
}

/// Says why a broker gives nothing; `None` if there is none.
pub(crate) fn explain_broker(error: Errno) -> Option<String> {
    let said = match error {
        Errno::NOENT | Errno::CONNREFUSED => return None,
        Errno::ACCESS => format!("this user is not in the group {GROUP}"),
        error => std::io::Error::from(error).to_string(),
    };
    Some(format!("the broker at {}: {said}", socket().display()))
}

/// Explains why no userfaultfd can be opened, with what would give it here.
pub(crate) fn explain(refused: Errno, broker: Errno) -> String {
    if refused == Errno::NOSYS && !Path::new(DEVICE).exists() {
        return "this kernel has no userfaultfd (CONFIG_USERFAULTFD), without which Pagetide cannot work"
            .into();
    }
    let here = Here::look();
    let ways = here.remedies();
    let width = ways.iter().map(|way| way.line.len()).max().unwrap_or(0);
    let lines: Vec<_> =
        ways.iter().map(|Remedy { line, reach, .. }| format!("\n  {line:width$}   {reach}")).collect();
    let broker = explain_broker(broker).map_or_else(String::new, |said| format!("; {said}"));
    format!(
        "no permission for userfaultfd ({}{broker}). What gives it here:{}\n`pagetide doctor` tells more.",
        std::io::Error::from(refused),
        lines.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Here {
        let program = "pagetide".to_owned();
        Here { is_container: false, user: Some("ada".into()), has_device: true, program }
    }

    #[test]
    fn the_shortest_way_comes_first_and_fits_the_place() {
        let first = |here: Here| here.remedies()[0].line.clone();
        assert_eq!(first(here()), "sudo pagetide setup --user ada");
        assert_eq!(first(Here { user: None, ..here() }), "pagetide setup");
        assert_eq!(first(Here { has_device: false, ..here() }), "sudo sysctl vm.unprivileged_userfaultfd=1");
        assert_eq!(first(Here { is_container: true, ..here() }), "--device /dev/userfaultfd");
        let old = Here { is_container: true, has_device: false, ..here() };
        assert_eq!(first(old), "-v /run/pagetide:/run/pagetide");
    }

    #[test]
    fn sudo_is_told_the_path_of_a_program_that_it_would_not_find() {
        assert_eq!(program(Some("/usr/bin/pagetide".into())), "pagetide");
        assert_eq!(program(Some("/home/ada/.cargo/bin/pagetide".into())), "/home/ada/.cargo/bin/pagetide");
    }

    #[test]
    fn a_broker_that_is_not_there_is_not_spoken_of() {
        assert_eq!(explain_broker(Errno::NOENT), None);
        assert!(explain_broker(Errno::ACCESS).unwrap().contains("not in the group pagetide"));
    }
}
