//! Times in which the remote server does not answer, and what the user is told of them.

use super::store::StoreError;
use pagetide::group::{DeviceKind, Group, RemoteFigure};
use pagetide_device::BLOCK;
use pagetide_device::ring::Ring;
use pagetide_sys::lock;
use pagetide_sys::task::say;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A server that is away for less is not worth a word: 1 s.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// How long it counts that a server did not answer over a new connection.
const PROBE: Duration = Duration::from_secs(1);

/// What is known of the server's answers.
pub(crate) struct Outage {
    timeout: Duration,
    ring: Ring,
    group: Group,
    /// Whether pages have another place than the server and memory.
    has_file: bool,
    /// Whether it is a cluster, of which one server's silence says nothing of the others: then nothing is given up but
    /// what was asked for in vain.
    is_cluster: AtomicBool,
    state: Mutex<State>,
    /// A probe has ended.
    probed: Condvar,
}

/// What a request is to do.
pub(crate) enum Turn<'a> {
    /// It asks.
    Ask,
    /// It first asks over a new connection whether the server is there: others wait for that.
    Probe(Probe<'a>),
    /// It fails: the server has not answered for as long as an answer may take, and not within the last second. This is
    /// why.
    GiveUp(String),
}

#[derive(Default)]
struct State {
    /// When it last did not answer for the first time since it did.
    since: Option<Instant>,
    /// Why it did not answer.
    why: String,
    /// Whether somebody probes it, and when a probe last had no answer.
    probing: bool,
    failed: Option<Instant>,
    /// Whether the user was told that it is away, that pages were lost meanwhile, that it takes none, and that values
    /// could not be renewed.
    said: bool,
    said_lost: bool,
    said_refused: bool,
    said_not_renewed: bool,
}

impl Outage {
    pub(crate) fn new(timeout: Duration, ring: Ring, group: Group) -> Self {
        let has_file = group.setup().tier(DeviceKind::File).is_some();
        let (is_cluster, state, probed) = Default::default();
        Self { timeout, ring, group, has_file, is_cluster, state, probed }
    }

    fn add(&self, figure: RemoteFigure, count: usize) {
        self.group.remote_figure(figure).fetch_add(count as u64, Relaxed);
    }

    fn note_longest(&self, away: Duration) {
        self.group.remote_figure(RemoteFigure::OutageNs).fetch_max(away.as_nanos() as u64, Relaxed);
    }

    /// Notes an answer, and how long it took.
    pub(crate) fn answered(&self, took: Duration) {
        self.ring.note_round_trip(took.as_nanos() as u64);
        self.group.remote_figure(RemoteFigure::RoundTripNs).store(self.ring.round_trip_ns(), Relaxed);
        let mut state = lock(&self.state);
        state.failed = None;
        let Some(since) = state.since.take() else { return };
        let away = since.elapsed();
        self.note_longest(away);
        if std::mem::take(&mut state.said) {
            say(&format!("the remote server answers again, after {:.1} s", away.as_secs_f64()));
        }
        state.said_lost = false;
    }

    /// Notes that what was asked at this time got no answer.
    pub(crate) fn away(&self, asked: Instant, why: &str) {
        self.add(RemoteFigure::Retries, 1);
        let mut state = lock(&self.state);
        let since = *state.since.get_or_insert(asked);
        state.why = why.to_owned();
        self.note_longest(since.elapsed());
        if since.elapsed() >= SAID_AFTER && !std::mem::replace(&mut state.said, true) {
            say(&format!(
                "the remote server does not answer ({why}): pages that are there are waited for, each {} s at most (--remote-timeout)",
                self.timeout.as_secs_f64()
            ));
        }
    }

    /// Returns whether it did not answer when it was asked last, and is no cluster, of which others may.
    pub(crate) fn is_silent(&self) -> bool {
        lock(&self.state).since.is_some() && !self.is_cluster.load(Relaxed)
    }

    /// Notes that the server is one of a cluster.
    pub(crate) fn note_cluster(&self) {
        self.is_cluster.store(true, Relaxed);
    }

    /// Returns what a request is to do. Where the server has been given up one request asks it over a new connection, and
    /// the others wait for what that finds.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let mut state = lock(&self.state);
        loop {
            let is_old = state.since.is_some_and(|since| since.elapsed() >= self.timeout);
            if !is_old || self.is_cluster.load(Relaxed) {
                return Turn::Ask;
            }
            if state.failed.is_some_and(|failed| failed.elapsed() < PROBE) {
                return Turn::GiveUp(state.why.clone());
            }
            if !std::mem::replace(&mut state.probing, true) {
                return Turn::Probe(Probe { outage: self, answered: false });
            }
            state = pagetide_sys::wait(&self.probed, state);
        }
    }

    /// Returns a probe of a server that does not answer, unless somebody asks it just now, or has within a second.
    pub(crate) fn probe(&self) -> Option<Probe<'_>> {
        let mut state = lock(&self.state);
        let is_due = state.since.is_some()
            && !self.is_cluster.load(Relaxed)
            && !state.probing
            && state.failed.is_none_or(|failed| failed.elapsed() >= PROBE);
        state.probing |= is_due;
        is_due.then(|| Probe { outage: self, answered: false })
    }

    /// Notes blocks that cannot be read. Pages among them that are waited for are lost.
    pub(crate) fn lost(&self, blocks: usize, why: &str) {
        self.add(RemoteFigure::Lost, blocks);
        if !std::mem::replace(&mut lock(&self.state).said_lost, true) {
            say(&format!(
                "pages on the remote server cannot be read, {} KiB at first: {why}",
                blocks * BLOCK / 1024
            ));
        }
    }

    /// Notes blocks that were not written. Their pages stay in memory.
    pub(crate) fn refused(&self, blocks: usize, error: &StoreError) {
        self.add(RemoteFigure::Refused, blocks);
        if !std::mem::replace(&mut lock(&self.state).said_refused, true) {
            let why = match error {
                StoreError::Full(text) => format!("the remote server is full ({text})"),
                other => format!("the remote server takes no pages ({other})"),
            };
            let then =
                if self.has_file { "go to the swap file, or stay in memory," } else { "stay in memory" };
            say(&format!("{why}: they {then} until it does"));
        }
    }

    /// Notes blocks that were read.
    pub(crate) fn read(&self, blocks: usize) {
        self.add(RemoteFigure::Read, blocks);
    }

    /// Notes blocks that were written.
    pub(crate) fn took(&self, blocks: usize) {
        self.add(RemoteFigure::Written, blocks);
        if std::mem::take(&mut lock(&self.state).said_refused) {
            say("the remote server takes pages again");
        }
    }

    /// Notes that all values were renewed.
    pub(crate) fn renewed(&self) {
        if std::mem::take(&mut lock(&self.state).said_not_renewed) {
            say("pages on the remote server were renewed");
        }
    }

    /// Notes that values could not be renewed.
    pub(crate) fn not_renewed(&self, why: &str, ttl: Duration) {
        if !std::mem::replace(&mut lock(&self.state).said_not_renewed, true) {
            say(&format!(
                "pages on the remote server could not be renewed ({why}): it forgets them {} s after they were written (--remote-ttl)",
                ttl.as_secs()
            ));
        }
    }
}

/// Somebody who asks a server that does not answer. It has not answered unless [`Probe::answered`] is called.
pub(crate) struct Probe<'a> {
    outage: &'a Outage,
    answered: bool,
}

impl Probe<'_> {
    /// Notes that it has answered, which took so long.
    pub(crate) fn answered(mut self, took: Duration) {
        self.answered = true;
        self.outage.answered(took);
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.outage.state);
        state.probing = false;
        state.failed = (!self.answered).then(Instant::now);
        self.outage.probed.notify_all();
    }
}
