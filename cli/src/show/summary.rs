//! Last lines of a run: whether its cap held, who broke it, the cost of swapping, and who killed it.

use crate::accounts::cap::is_passed;
use crate::accounts::exact::Counted;
use crate::accounts::most::Holder;
use crate::accounts::pages::Pages;
use crate::show::report::Report;
use crate::units::{PAGE, show_bytes, show_count, show_nanos};
use pagetide::census::Reason;
use pagetide::latency;
use pagetide_swap::Counter;
use std::time::Duration;

/// Exit statuses of programs that a signal has ended.
const BY_SIGNAL: std::ops::RangeInclusive<u8> = 129..=192;
/// A process is named if it holds at least one part in this many of the excess.
const WORTH_A_NAME: u64 = 8;

/// A process of a run that was shorter than this, and that had more in memory than twice what was seen of the whole run and
/// 4 MiB, held more than was seen. (In a longer one files may have been as much, and there were many looks.)
const SHORT: Duration = Duration::from_secs(1);
const UNSEEN: u64 = 4 << 20;
/// Unmanaged memory is blamed if it is at least one part in this many of all memory.
const BLAMED: u64 = 4;

/// A line of the summary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// Whether it is a warning.
    pub(crate) warning: bool,
    /// Its text.
    pub(crate) text: String,
}

impl Report {
    /// Returns the lines for the end of a run.
    pub(crate) fn summary(&self) -> Vec<Line> {
        let (tell, warn) = (|text| Line { warning: false, text }, |text| Line { warning: true, text });
        let mut lines = Vec::new();
        // A cap that is kept by sampling is passed a little for a moment.
        let passed = is_passed(self.most.held_bytes(), self.cap_pages);
        lines.push(Line { warning: passed, text: self.cap_line(passed) });
        if passed {
            lines.push(warn(self.breach_line()));
        }
        lines.extend(self.outside.summary().into_iter().map(tell));
        lines.extend(self.lateness_line().map(tell));
        if self.has_swapped() {
            lines.push(tell(self.pages_line()));
        }
        if self.has_swapped() || self.now.counter(Counter::stalled_threads) > 0 {
            lines.push(tell(self.time_line()));
        }
        lines.extend(self.now.remote_trouble().map(warn));
        lines.extend(self.ended_line().map(warn));
        lines.extend(self.killer.as_ref().map(|killer| warn(killer.line(self.cap_pages * PAGE))));
        lines
    }

    /// Says how late processes without a slot were looked at, if they were.
    fn lateness_line(&self) -> Option<String> {
        let seconds = self.latest_look?.as_secs_f64();
        Some(format!(
            "processes without Pagetide's library were looked for {seconds:.1} s apart at most: what they held meanwhile \
             is not counted"
        ))
    }

    /// Says what could not leave, if a process ended for want of memory.
    fn ended_line(&self) -> Option<String> {
        let ended = self.ended?;
        let counted = Reason::ALL.iter().map(|&reason| (ended.stuck.get(reason), reason.text()));
        let all = counted.chain([(ended.unmanaged, "are not managed")]).filter(|(pages, _)| *pages > 0);
        let parts: Vec<_> = all.map(|(pages, text)| format!("{} {text}", show_bytes(pages * PAGE))).collect();
        let who = if ended.processes == 1 { "process" } else { "processes" };
        Some(format!("{} {who} ended for want of memory: {}", ended.processes, parts.join(", ")))
    }

    fn has_swapped(&self) -> bool {
        self.now.counter(Counter::pgsteal) > 0 || self.peak.unwrap_or_default().swapped > 0
    }

    /// Returns whether a signal ended CMD, as far as its status tells.
    fn was_killed(&self) -> bool {
        self.killer.is_some() || self.exit_status.is_some_and(|status| BY_SIGNAL.contains(&status))
    }

    /// Says whether the cap held, and how much was needed.
    fn cap_line(&self, passed: bool) -> String {
        let (total, cap) = (self.most.held_bytes().div_ceil(PAGE), self.cap_pages);
        let set = if self.cap_changes > 0 { ", set while the run went on," } else { "" };
        let of = format!("{}{set}", show_bytes(cap * PAGE));
        let held = match self.most.counted {
            None => show_bytes(total * PAGE),
            Some(Counted { looks, .. }) => format!(
                "{} ({looks} exact {}; up to {} if what forks share counts in each process)",
                show_bytes(total * PAGE),
                if looks == 1 { "look" } else { "looks" },
                show_bytes(self.most.pages.total * PAGE)
            ),
        };
        if passed {
            let up_to = if self.most.counted.is_none() { "up to " } else { "" };
            let held = format!("the cap of {of} did not hold: {up_to}{held} were in memory");
            return format!("{held} ({})", over(total, cap));
        }
        let but = match total.saturating_sub(cap) {
            0 => String::new(),
            pages => format!(" but for {}", show_bytes(pages * PAGE)),
        };
        let unseen = match self.unseen() {
            Some(bytes) => format!(
                ", as far as was seen (one process had {} in memory, with its files)",
                show_bytes(bytes)
            ),
            None => String::new(),
        };
        match (self.has_swapped(), self.was_killed()) {
            (false, _) if total > cap => format!("the cap of {of} held{but}; nothing was swapped"),
            (false, false) if !self.outside.is_empty() => {
                format!("{held} of {of} at most; nothing was swapped, and some programs ran without Pagetide")
            }
            (false, false) => format!("fitted: {held} of {of} at most{unseen}; nothing was swapped"),
            (false, true) => {
                format!("{held} of {of} were in memory at most, as far as was seen; nothing was swapped")
            }
            (true, _) => {
                let peak = self.peak.unwrap_or_default();
                // What is swapped when a process forks counts in both.
                let up_to = if self.now.counter(Counter::forks) > 0 { "up to " } else { "" };
                format!(
                    "the cap of {of} held{but}: {held} in memory at most; {up_to}{} were needed ({:.1} ×), {up_to}{} swapped",
                    show_bytes(peak.needed * PAGE),
                    peak.needed as f64 / cap.max(1) as f64,
                    show_bytes(peak.swapped * PAGE),
                )
            }
        }
    }

    /// Returns what a process had in memory by the kernel's count, if that is much more than was seen of the run: what a process
    /// takes between its last sample and its end nobody sees.
    fn unseen(&self) -> Option<u64> {
        let bytes = self.usage.filter(|_| self.elapsed < SHORT && self.cap_changes == 0)?.max_rss;
        (bytes > 2 * self.most.held_bytes() + UNSEEN).then_some(bytes)
    }

    /// Says what broke the cap.
    fn breach_line(&self) -> String {
        let total = self.most.held_bytes().div_ceil(PAGE);
        // Of exact looks the parts are not known.
        let part = |pages: u64| pages.min(total);
        let pages = Pages {
            unmanaged: part(self.most.pages.unmanaged),
            shared: part(self.most.pages.shared),
            ..self.most.pages
        };
        let excess = total.saturating_sub(self.cap_pages);
        if pages.unmanaged < total / BLAMED {
            let managed = show_bytes(total.saturating_sub(pages.unmanaged) * PAGE);
            return format!("of that {managed} is managed memory, which could not leave as fast as it grew");
        }
        let worth = |holder: &&Holder| holder.pages >= excess / WORTH_A_NAME;
        let named: Vec<String> =
            self.most.holders.iter().filter(worth).map(|holder| holder.describe()).collect();
        let who = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        let (unmanaged, shared) = (show_bytes(pages.unmanaged * PAGE), show_bytes(pages.shared * PAGE));
        let shared = if pages.shared < excess / WORTH_A_NAME {
            String::new()
        } else {
            format!(" ({shared} is shared memory)")
        };
        format!("of that {unmanaged} cannot be swapped, for Pagetide does not manage it{shared}{who}")
    }

    /// Says how many pages went out and came in.
    pub(crate) fn pages_line(&self) -> String {
        let get = |counter| self.now.counter(counter);
        // Pages that went from the pool to the device are counted once.
        let to_device = get(Counter::pswpout).saturating_sub(get(Counter::zswpwb));
        let ways = [get(Counter::swpout_zero), get(Counter::zswpout), to_device, get(Counter::swap_reuse)];
        let out = ways.iter().fold(0u64, |out, &pages| out.saturating_add(pages));
        let [zero, pool, disk, reuse] =
            ways.map(|pages| (u128::from(pages) * 100 + u128::from(out / 2)) / u128::from(out.max(1)));
        let ratio = self.ratio.map(|ratio| format!(" at {ratio:.1}:1")).unwrap_or_default();
        let device = match (self.now.file[2], self.now.remote) {
            (0, Some(_)) => "server",
            (_, Some(_)) => "disk and server",
            _ => "disk",
        };
        let reuse = if reuse > 0 { format!(", {reuse} % unchanged") } else { String::new() };
        format!(
            "out {} pages ({zero} % zero, {pool} % pool{ratio}, {disk} % {device} {} written{reuse}), \
             in {} pages, {} hits on probation",
            show_count(out),
            show_bytes(get(Counter::pswpout).saturating_mul(PAGE)),
            show_count(
                [Counter::swpin_zero, Counter::zswpin, Counter::pswpin]
                    .map(get)
                    .into_iter()
                    .fold(0, u64::saturating_add)
            ),
            show_count(get(Counter::swap_cache_hit)),
        )
    }

    /// Says how long faults took.
    pub(crate) fn time_line(&self) -> String {
        let (waited, wall) = (self.now.counter(Counter::stalled_ns) as f64 / 1e9, self.elapsed.as_secs_f64());
        let quantile = |quantile| show_nanos(latency::quantile_ns(&self.latencies, quantile));
        let rested = |word: &str| match self.now.counter(Counter::rested_ns) {
            0 => String::new(),
            nanos => format!("{word} rested {:.1} s", nanos as f64 / 1e9),
        };
        let Some(threads) = self.waiting_threads() else {
            return format!("no thread waited for a page{} ({wall:.1} s of wall time)", rested(", but some"));
        };
        let rested = rested(" and");
        let maximum = show_nanos(self.latencies[latency::BUCKETS]);
        format!(
            "threads waited {waited:.1} s for pages{rested} ({threads}, {wall:.1} s of wall time); \
             fault latency p50 {}, p99 {}, max {maximum}",
            quantile(0.5),
            quantile(0.99)
        )
    }

    /// Returns how long threads have waited for pages, in all.
    pub(crate) fn waited(&self) -> String {
        let waited = self.now.counter(Counter::stalled_ns) as f64 / 1e9;
        match self.waiting_threads() {
            Some(threads) => format!("waited {waited:.1} s in all ({threads})"),
            None => "no thread has waited".to_owned(),
        }
    }

    fn waiting_threads(&self) -> Option<String> {
        match self.now.counter(Counter::stalled_threads) {
            0 => None,
            1 => Some("1 thread".to_owned()),
            threads => Some(format!("{threads} threads")),
        }
    }
}

/// Formats by how much `total` is above `cap`.
fn over(total: u64, cap: u64) -> String {
    let part = total as f64 / cap.max(1) as f64;
    if part < 2.0 { format!("{:.0} % more", (part - 1.0) * 100.0) } else { format!("{part:.1} ×") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::most::Most;
    use crate::processes::killed::Killer;
    use crate::processes::os::Usage;
    use crate::show::testing::{group, report};

    fn lines(report: &Report) -> Vec<String> {
        let line = |line: Line| if line.warning { format!("! {}", line.text) } else { line.text };
        report.summary().into_iter().map(line).collect()
    }

    #[test]
    fn a_run_that_fitted_says_so_in_one_line() {
        let (_fd, group) = group();
        let pages = Pages { total: 256, needed: 256, ..Pages::default() };
        assert_eq!(lines(&report(&group, pages)), ["fitted: 1 MiB of 250 MiB at most; nothing was swapped"]);
    }

    #[test]
    fn a_run_of_which_much_was_not_seen_says_so() {
        let (_fd, group) = group();
        let pages = Pages { total: 256, needed: 256, ..Pages::default() };
        let usage = |mib: u64| Some(Usage { cpu: (0.0, 0.0), max_rss: mib << 20 });
        let short = Duration::from_millis(300);
        let mut report = Report { usage: usage(6), elapsed: short, ..report(&group, pages) };
        assert_eq!(lines(&report), ["fitted: 1 MiB of 250 MiB at most; nothing was swapped"]);
        report.usage = usage(7);
        assert_eq!(
            lines(&report),
            [
                "fitted: 1 MiB of 250 MiB at most, as far as was seen (one process had 7 MiB in memory, with its files); nothing was swapped"
            ]
        );
        assert_eq!(report.json()["max_rss_bytes"], 7 << 20);
        report.elapsed = Duration::from_secs(2);
        assert!(!lines(&report)[0].contains("as far as"), "there were many looks");
    }

    #[test]
    fn only_a_run_that_stayed_within_its_cap_and_was_not_killed_has_fitted() {
        let (_fd, group) = group();
        let pages = Pages { total: 300, ..Pages::default() };
        let fitted = |report: &Report| lines(report).iter().any(|line| line.contains("fitted"));
        let well = report(&group, pages);
        assert!(fitted(&well));
        for killer in
            [Killer::Strict, Killer::Pagetide(1), Killer::Kernel(1, None), Killer::Other { oom: false }]
        {
            assert!(!fitted(&Report { killer: Some(killer), exit_status: Some(137), ..well.clone() }));
        }
        assert!(!fitted(&Report { exit_status: Some(139), ..well.clone() }));
        assert!(!fitted(&report(&group, Pages { total: 64_001, ..Pages::default() })));
        assert!(!fitted(&report(&group, Pages { total: 300, swapped: 1, ..Pages::default() })));
        // What a program says by a status of its own.
        assert!(fitted(&Report { exit_status: Some(255), ..well.clone() }));
    }

    #[test]
    fn a_run_with_a_program_that_pagetide_does_not_reach_has_not_fitted() {
        let (_fd, group) = group();
        let mut report = report(&group, Pages { total: 256, ..Pages::default() });
        report.outside.note_silent("/bin/busybox", 7);
        report.latest_look = Some(std::time::Duration::from_millis(1500));
        let said = lines(&report);
        assert_eq!(
            said[0],
            "1 MiB of 250 MiB at most; nothing was swapped, and some programs ran without Pagetide"
        );
        assert!(said[1].starts_with("without Pagetide: /bin/busybox (pid 7)"), "{said:?}");
        assert!(said[2].contains("1.5 s"), "{said:?}");
        let json = report.json();
        assert_eq!((&json["unmanaged_programs"][0]["pid"], &json["latest_look_s"]), (&7.into(), &1.5.into()));
    }

    #[test]
    fn a_cap_that_did_not_hold_names_who_broke_it() {
        let (_fd, group) = group();
        let pages = Pages { total: 200_000, unmanaged: 190_000, ..Pages::default() };
        let mut over = report(&group, pages);
        let holder = |pid, name: &str, pages, outside| Holder { pid, name: name.to_owned(), pages, outside };
        over.most.holders =
            vec![holder(7, "node", 150_000, true), holder(8, "", 39_000, false), holder(9, "sh", 300, false)];
        assert_eq!(
            lines(&over),
            [
                "! the cap of 250 MiB did not hold: up to 781 MiB were in memory (3.1 ×)",
                "! of that 742 MiB cannot be swapped, for Pagetide does not manage it: 586 MiB in node (pid 7, which \
                 runs without Pagetide), 152 MiB in one that has ended (pid 8)",
            ]
        );
        over.most = Most { pages: Pages { shared: 180_000, ..pages }, ..Most::default() };
        assert_eq!(
            lines(&over)[1],
            "! of that 742 MiB cannot be swapped, for Pagetide does not manage it (703 MiB is shared memory)"
        );
        // A little, for a moment, is told and no warning.
        let pages = Pages { total: 65_000, unmanaged: 200, ..Pages::default() };
        assert_eq!(
            lines(&report(&group, pages)),
            ["the cap of 250 MiB held but for 3.9 MiB; nothing was swapped"]
        );
        let pages = Pages { total: 70_000, unmanaged: 200, ..Pages::default() };
        assert_eq!(
            lines(&report(&group, pages)),
            [
                "! the cap of 250 MiB did not hold: up to 273 MiB were in memory (9 % more)",
                "! of that 273 MiB is managed memory, which could not leave as fast as it grew",
            ]
        );
    }

    #[test]
    fn a_cap_holds_where_each_page_is_counted_once() {
        let (_fd, group) = group();
        let pages = Pages { total: 90_000, swapped: 100, needed: 64_200, ..Pages::default() };
        let mut report = report(&group, pages);
        report.most.counted = Some(Counted { bytes: 64_000 * PAGE, looks: 12 });
        let said = lines(&report);
        assert_eq!(
            said[0],
            "the cap of 250 MiB held: 250 MiB (12 exact looks; up to 352 MiB if what forks share counts in each process) \
             in memory at most; 251 MiB were needed (1.0 ×), 400 KiB swapped"
        );
        assert_eq!(
            (&report.json()["cap_held"], &report.json()["counted"]["looks"]),
            (&true.into(), &12.into())
        );
        report.most.counted = Some(Counted { bytes: 70_000 * PAGE, looks: 1 });
        let said = lines(&report);
        assert_eq!(
            said[0],
            "! the cap of 250 MiB did not hold: 273 MiB (1 exact look; up to 352 MiB if what forks share counts in each process) \
             were in memory (9 % more)"
        );
        assert_eq!(report.json()["cap_held"], false);
        // Before the fork it held more than at the only exact look.
        report.most.counted = Some(Counted { bytes: 100 * PAGE, looks: 1 });
        report.most.certain = 64_000;
        assert_eq!(report.most.held_bytes(), 64_000 * PAGE);
    }

    #[test]
    fn of_forks_what_is_swapped_may_be_less() {
        let (_fd, group) = group();
        let slot = group.claim(pagetide_sys::procfs::Identity::own()).unwrap();
        slot.counters().add(Counter::forks, 1);
        let pages = Pages { total: 60_000, swapped: 25_600, needed: 89_600, ..Pages::default() };
        assert_eq!(
            lines(&report(&group, pages))[0],
            "the cap of 250 MiB held: 234 MiB in memory at most; up to 350 MiB were needed (1.4 ×), up to 100 MiB swapped"
        );
    }

    #[test]
    fn who_killed_it_comes_last() {
        let (_fd, group) = group();
        let pages = Pages { total: 300, swapped: 100, needed: 400, ..Pages::default() };
        let killed = Report { killer: Some(Killer::Kernel(1, None)), ..report(&group, pages) };
        let lines = lines(&killed);
        assert!(lines[0].starts_with("the cap of 250 MiB held"), "{lines:?}");
        assert!(lines.last().unwrap().starts_with("! one process was killed by the kernel"), "{lines:?}");
    }
}
