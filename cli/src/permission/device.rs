//! The way of this process to a full userfaultfd.

use crate::permission::{remedy, socket};
use crate::verbosity::Verbosity;
use pagetide_sys::handout::{Question, Thing};
use pagetide_sys::uffd::Uffd;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Connections that may be lost: a broker may end, or drop connections while many ask.
const TRIES: usize = 5;
/// After this time it is said that a broker has not answered yet. The answer is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// Makes sure that processes started here can have a full userfaultfd. Returns the device, if it takes the broker's.
///
/// # Errors
/// No way is open: the message says which would be the shortest here.
pub(crate) fn obtain(verbosity: Verbosity) -> Result<Option<OwnedFd>, String> {
    let Err(refused) = Uffd::open() else { return Ok(None) };
    let path = socket();
    match ask_broker(&path) {
        Ok((device, _)) => {
            verbosity.detail(&format!("{} gives permission for userfaultfd", path.display()));
            Ok(Some(device))
        }
        Err(brokers) => Err(remedy::explain(refused, brokers)),
    }
}

/// Asks the broker at `path` for the device, and tries it. Returns it, and what the kernel has by it.
///
/// # Errors
/// NOENT, CONNREFUSED: there is no broker; ACCESS: it does not give the device to this user; NOTTY: it gives something else;
/// another error that it answers.
pub(crate) fn ask_broker(path: &Path) -> Result<(OwnedFd, u64), Errno> {
    let mut tries = 1..=TRIES;
    loop {
        let last = tries.next() == Some(TRIES);
        match ask_once(path) {
            Err(Errno::CONNRESET | Errno::PIPE) if !last => {}
            answered => {
                let device = answered?;
                let features = Uffd::probe_device(&device)?;
                return Ok((device, features));
            }
        }
    }
}

fn ask_once(path: &Path) -> Result<OwnedFd, Errno> {
    let question = Question::ask(path, Thing::Userfaultfd)?;
    if !question.is_answered(SILENCE) {
        pagetide_sys::task::say(&format!(
            "the broker at {} has not answered for {} s: waiting for it",
            path.display(),
            SILENCE.as_secs()
        ));
    }
    question.answer()
}
