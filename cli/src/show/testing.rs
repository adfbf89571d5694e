//! A run for tests of reports.

use crate::accounts::gathered::{Gathered, ended, latencies};
use crate::accounts::most::Most;
use crate::accounts::pages::Pages;
use crate::sampler::outside::Outside;
use crate::show::report::Report;
use pagetide::group::Group;
use std::time::Duration;

/// Returns the group page of a run of 250 MiB.
pub(crate) fn group() -> (std::os::fd::OwnedFd, Group) {
    crate::testing::group(64_000)
}

/// Returns a report on it, after 33.1 s.
pub(crate) fn report(group: &Group, peak: Pages) -> Report {
    let now = Gathered::from(group);
    Report {
        pid: 7,
        command: vec!["prog".into()],
        exit_status: None,
        elapsed: Duration::from_millis(33_100),
        usage: None,
        cap_pages: 64_000,
        cap_changes: 0,
        now,
        peak: Some(peak),
        most: Most { pages: peak, ..Most::default() },
        killer: None,
        ratio: now.ratio(),
        latencies: latencies(group),
        outside: Outside::default(),
        latest_look: None,
        ended: ended(group),
    }
}
