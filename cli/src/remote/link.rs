//! The launcher's side of the remote tier: it asks the server whether it will do, and starts the process that has the
//! connection.

use super::store::{About, Store, StoreError};
use super::target::{PASSWORD, Target};
use crate::beside;
use crate::units::show_bytes;
use crate::verbosity::Verbosity;
use pagetide::group::{DeviceKind, DeviceSpec, TierSpec};
use pagetide_cli::options::RemoteOptions;
use pagetide_device::ring::Ring;
use pagetide_device::{BLOCK, file};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Stdio};

/// The word after which this program has the connection. It is not among the commands, for it is not for users.
pub(crate) const COMMAND: &str = "remote-server";
/// What a run may have there by default, in caps.
const CAPS: u64 = 4;
/// log2 of the pages that are read at once at most: what a place of the ring holds.
pub(crate) const PAGE_CLUSTER_MAX: u32 = pagetide_device::ring::PLACE_BLOCKS.ilog2();

/// The remote tier of a run.
#[derive(Debug)]
pub(crate) struct RemoteTier {
    /// The ring's file.
    pub(crate) fd: OwnedFd,
    ring: Ring,
    /// Bytes that the run may have there.
    pub(crate) bytes: u64,
    target: Target,
    /// What the server said of itself.
    pub(crate) version: String,
    server: Option<Child>,
}

impl RemoteTier {
    /// Asks the server that the options name whether it will do, for a run with a cap of `memory` bytes. Returns `None`
    /// if they name none.
    pub(crate) fn create(
        options: &RemoteOptions,
        memory: u64,
        whole: u64,
        verbosity: Verbosity,
    ) -> Result<Option<Self>, String> {
        if options.remote.is_empty() {
            return Ok(None);
        }
        let (timeout, ttl) = (options.remote_timeout, options.remote_ttl);
        let target = Target::new(&options.remote, options.remote_password_file.as_deref(), timeout, ttl)?;
        let about = ask(&target)?;
        let bytes = options.remote_size.map_or(memory.saturating_mul(CAPS), |size| size.bytes(whole));
        if bytes < BLOCK as u64 {
            return Err(format!("--remote-size: {bytes} bytes hold no page"));
        }
        if let Some(free) = about.free().filter(|&free| free < bytes) {
            verbosity.warn(&format!(
                "the remote server has {} free, and the run may have {} there (--remote-size, maxmemory): pages for which it \
                 has no room stay in memory",
                show_bytes(free),
                show_bytes(bytes)
            ));
        }
        let (fd, ring) =
            Ring::create().map_err(|error| format!("cannot create the ring of the remote tier: {error}"))?;
        Ok(Some(Self { fd, ring, bytes, target, version: about.version, server: None }))
    }

    /// Returns what processes of the run are told of it.
    pub(crate) fn spec(&self) -> Result<TierSpec, String> {
        let identity =
            file::identity(&self.fd).map_err(|error| format!("cannot look at the ring: {error}"))?;
        let device = DeviceSpec { kind: DeviceKind::Remote, fd: self.fd.as_raw_fd() as u64, identity };
        Ok(TierSpec { device, blocks: self.bytes / BLOCK as u64 })
    }

    /// Returns a phrase that says what the tier is.
    pub(crate) fn describe(&self) -> String {
        format!("remote tier {:?} ({}), up to {}", self.target, self.version, show_bytes(self.bytes))
    }

    /// Starts the process that has the connection, which finds the run by these variables.
    pub(crate) fn start(&mut self, environment: &[(String, OsString)]) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot start the process of the remote tier: {error}");
        let mut command = beside::command(COMMAND, environment).map_err(failed)?;
        command.env_remove(PASSWORD).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{}", self.target.to_line()).map_err(failed)?;
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut said).map_err(failed)?;
        if said.trim() != "ready" {
            let _ = child.wait();
            return Err("the process of the remote tier has ended at once".to_owned());
        }
        self.server = Some(child);
        Ok(())
    }

    /// Whether the process that has the connection has this pid.
    pub(crate) fn is(&self, pid: u32) -> bool {
        self.server.as_ref().is_some_and(|server| server.id() == pid)
    }

    /// Notes that the process that had the connection has ended: engines need not wait for it.
    pub(crate) fn note_lost(&mut self) {
        self.ring.set_gone();
        self.server = None;
    }

    /// Lets the process go as soon as no process of the run needs it. Where `waits`, none is left, and its end is waited
    /// for: it deletes what the run has there.
    pub(crate) fn let_go(&mut self, waits: bool) {
        let Some(mut server) = self.server.take() else { return };
        drop(server.stdin.take());
        if waits {
            let pid = Pid::from_raw(server.id() as i32);
            let _ = rustix::io::retry_on_intr(|| waitpid(pid, WaitOptions::empty()));
        }
    }
}

/// Asks a server what it is, and refuses one that would lose pages.
fn ask(target: &Target) -> Result<About, String> {
    let about = Store::new(target.clone(), "").about().map_err(|error| match error {
        StoreError::Away(text) => format!("--remote: cannot reach {target:?}: {text}"),
        other => format!("--remote: {target:?}: {other}"),
    })?;
    match refusal(&about, &target.urls[0]) {
        Some(why) => Err(format!("--remote: {why}")),
        None => Ok(about),
    }
}

/// Returns why a server will not do, with what mends it.
pub(crate) fn refusal(about: &About, url: &str) -> Option<String> {
    (about.policy != "noeviction").then(|| {
        format!(
            "the server evicts what it holds (maxmemory-policy {}): pages would be lost. \
             `redis-cli -u {url} config set maxmemory-policy noeviction` mends that",
            about.policy
        )
    })
}
