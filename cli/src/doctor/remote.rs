//! Checks of a remote server: whether it will do, and what a fault would cost.

use crate::doctor::finding::{Finding, State};
use crate::remote::link::refusal;
use crate::remote::store::{About, Store, StoreError};
use crate::remote::target::Target;
use crate::remote::values::Segment;
use crate::units::show_bytes;
use pagetide_device::BLOCK;
use pagetide_device::ring::PLACE_BLOCKS;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(5);
/// What is left behind is forgotten so soon, if it cannot be deleted.
const TTL: Duration = Duration::from_secs(60);
/// Values that are written and read, how often, and single pages that are read.
const VALUES: u64 = 64;
const PASSES: usize = 4;
const READS: usize = 2000;

/// What a server does for one connection, request by request.
struct Speed {
    /// The time of a read of one page, sorted.
    reads: Vec<Duration>,
    /// Bytes that are written, and read, in a second, in values of 32 pages.
    written: f64,
    read: f64,
}

/// Checks the server that `urls` name. Of one that cannot be reached there is one finding.
pub(crate) fn remote(urls: &[String], password: Option<&Path>) -> Result<Vec<Finding>, String> {
    if urls.is_empty() {
        return Ok(Vec::new());
    }
    let target = Target::new(urls, password, TIMEOUT, TTL)?;
    let [a, ..] = pagetide_sys::random::words();
    let mut store = Store::new(target.clone(), &format!("doctor-{a:016x}"));
    let about = match store.about() {
        Ok(about) => about,
        Err(error) => return Ok(vec![unreachable(&target, &error)]),
    };
    let mut findings = describe(&about, &urls[0]);
    let speed = measure(&mut store);
    let numbers: Vec<u64> = (1..=VALUES).collect();
    let _ = store.delete(&numbers);
    findings.push(match speed {
        Ok(speed) => speed.describe(),
        Err(error) => Finding::new("  what a fault costs", State::Missing, error.to_string())
            .or("pages cannot be written there", "let this user write to keys that begin with `pagetide`"),
    });
    Ok(findings)
}

fn unreachable(target: &Target, error: &StoreError) -> Finding {
    Finding::new("remote server", State::Missing, format!("{target:?}: {error}"))
        .or("no page can go there", "check the address, the password and the firewall")
}

fn describe(about: &About, url: &str) -> Vec<Finding> {
    let kind = if about.is_cluster { "of a cluster" } else { "by itself" };
    let replicas = match about.replicas {
        0 => "without replicas: what it holds is lost with it".to_owned(),
        one_or_more => format!("replicas: {one_or_more}"),
    };
    let mut findings =
        vec![Finding::new("remote server", State::Good, format!("{}, {kind}, {replicas}", about.version))];
    let refused = refusal(about, url);
    findings.push(
        Finding::new(
            "  keeps what it is given",
            State::good_if(refused.is_none()),
            format!("maxmemory-policy {}", about.policy),
        )
        .or("`pagetide run` refuses it: pages would be lost", refused.unwrap_or_default()),
    );
    let free = match about.free() {
        Some(bytes) => format!("{} of {}", show_bytes(bytes), show_bytes(about.limit.unwrap_or(0))),
        None => format!("no limit is set (maxmemory); it holds {}", show_bytes(about.used)),
    };
    findings.push(Finding::new("  memory that is free", State::good_if(about.free() != Some(0)), free).or(
        "it takes no pages: they stay in memory",
        format!("redis-cli -u {url} config set maxmemory SIZE"),
    ));
    findings
}

impl Speed {
    /// Returns the time that a part of the reads did not exceed.
    fn quantile(&self, part: f64) -> Duration {
        self.reads[(self.reads.len() as f64 * part) as usize]
    }

    fn describe(&self) -> Finding {
        let [half, most] = [0.5, 0.99].map(|part| self.quantile(part));
        let [written, read] = [self.written, self.read].map(|bytes| show_bytes(bytes as u64));
        let text = format!(
            "{} µs for a page that is there, {} µs for one in a hundred; in values of 32 pages {written}/s written, {read}/s \
             read",
            half.as_micros(),
            most.as_micros()
        );
        Finding::new("  what a fault costs", State::Good, text).with(json!({
            "read_p50_us": half.as_nanos() as f64 / 1e3,
            "read_p99_us": most.as_nanos() as f64 / 1e3,
            "written_bytes_per_s": self.written,
            "read_bytes_per_s": self.read,
        }))
    }
}

fn measure(store: &mut Store) -> Result<Speed, StoreError> {
    // What compresses well would not tell: pages are encrypted.
    let mut word = 1u64;
    let mut bytes = Vec::with_capacity(PLACE_BLOCKS * BLOCK);
    while bytes.len() < PLACE_BLOCKS * BLOCK {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let all = || (0..PASSES).flat_map(|_| 1..=VALUES);
    let rate = |started: Instant| all().count() as f64 * bytes.len() as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    for value in all() {
        store.write(&[(value, bytes.clone())])?;
    }
    let written = rate(started);
    let started = Instant::now();
    for value in all() {
        read(store, Segment { value, offset: 0, count: PLACE_BLOCKS })?;
    }
    let read_rate = rate(started);
    let mut reads = Vec::with_capacity(READS);
    for nth in 0..READS {
        let started = Instant::now();
        read(store, Segment { value: nth as u64 % VALUES + 1, offset: nth * 7 % PLACE_BLOCKS, count: 1 })?;
        reads.push(started.elapsed());
    }
    reads.sort_unstable();
    Ok(Speed { reads, written, read: read_rate })
}

fn read(store: &mut Store, segment: Segment) -> Result<(), StoreError> {
    if store.read(&[segment])?.iter().any(Option::is_none) {
        return Err(StoreError::Refused("a page that was written there cannot be read".to_owned()));
    }
    Ok(())
}
