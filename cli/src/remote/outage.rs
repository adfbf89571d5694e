//! Times in which the remote server does not answer, and what the user is told of them.

use super::store::StoreError;
use pagetide::group::{Group, RemoteFigure};
use pagetide_device::BLOCK;
use pagetide_device::ring::Ring;
use pagetide_sys::lock;
use pagetide_sys::task::say;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A server that is away for less is not worth a word: 1 s.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// How often a server is asked that has been given up.
const PROBE: Duration = Duration::from_secs(1);

/// What is known of the server's answers.
pub(crate) struct Outage {
    timeout: Duration,
    ring: Ring,
    group: Group,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When it last did not answer for the first time since it did.
    since: Option<Instant>,
    /// Why it did not answer, and when it was last asked although it had been given up.
    why: String,
    probed: Option<Instant>,
    /// Whether the user was told that it is away, that pages were lost meanwhile, that it takes none, and that values
    /// could not be renewed.
    said: bool,
    said_lost: bool,
    said_refused: bool,
    said_not_renewed: bool,
}

impl Outage {
    pub(crate) fn new(timeout: Duration, ring: Ring, group: Group) -> Self {
        Self { timeout, ring, group, state: Mutex::default() }
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

    /// Returns why it is not worth to ask: it has not answered for as long as an answer may take. Now and then somebody asks
    /// all the same, or nobody would find that it answers again.
    pub(crate) fn given_up(&self) -> Option<String> {
        let mut state = lock(&self.state);
        state.since.filter(|since| since.elapsed() >= self.timeout)?;
        if state.probed.is_none_or(|probed| probed.elapsed() >= PROBE) {
            state.probed = Some(Instant::now());
            return None;
        }
        Some(state.why.clone())
    }

    /// Notes blocks that cannot be read. Their pages are lost.
    pub(crate) fn lost(&self, blocks: usize, why: &str) {
        self.add(RemoteFigure::Lost, blocks);
        if !std::mem::replace(&mut lock(&self.state).said_lost, true) {
            say(&format!(
                "pages on the remote server are lost, {} KiB at first: {why}",
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
            say(&format!("{why}: they stay in memory until it does"));
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
