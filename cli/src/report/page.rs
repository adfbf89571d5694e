//! The page of a report. It needs nothing but itself: style and charts are in it, and no script.

use super::charts;
use super::series::{Series, number};
use super::what_if::WhatIf;
use crate::accounts::memory::Memory;
use crate::sampler::outside::of_several;
use crate::units::{show_bytes, show_count};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

/// A part of the time that is worth a word.
const WORTH_SAYING: f64 = 0.05;
const MEMORY_MIN: f64 = 16.0 * 1_048_576.0;
/// Letters of a command that stand in the headline.
const COMMAND_LETTERS: usize = 60;
/// How each page begins, by which it is known.
pub(super) const BEGINNING: &str =
    "<!DOCTYPE html><html lang=\"en\"><head><meta name=\"generator\" content=\"pagetide\">";
const STYLE: &str = include_str!("../../files/report.css");

/// Returns the page.
///
/// # Errors
/// A chart could not be drawn.
pub(super) fn html(series: &Series) -> Result<String, String> {
    let command = command(series.last());
    let what_if = WhatIf::of(series);
    let body = html! {
        main {
            h1 { "Pagetide: " code { (shortened(&command)) } }
            @if shortened(&command) != command { p.faint { code { (command) } } }
            p.faint { (when(series)) }
            (said(series))
            (advice(series, what_if.as_ref()))
            (time_charts(series)?)
            @if let Some(what_if) = &what_if { (estimates(what_if)?) }
            (figures(series))
            (programs(series.last()))
            (notes())
        }
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta name="generator" content="pagetide";
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Without it a browser asks its server for an icon.
                link rel="icon" href="data:,";
                title { "Pagetide: " (shortened(&command)) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    Ok(page.into_string())
}

fn command(report: &Value) -> String {
    let words = report["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of a text that is too long for a headline.
fn shortened(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.by_ref().take(COMMAND_LETTERS).collect();
    if letters.next().is_none() { first } else { format!("{first}…") }
}

/// The run's cap, time and end.
fn when(series: &Series) -> String {
    let last = series.last();
    let end = match last["exit_status"].as_u64() {
        Some(status) => format!("ended with status {status}"),
        None => "had not ended when this was written".to_owned(),
    };
    let (cap, seconds) = (show(series.number("/cap_bytes")), series.number("/elapsed_s"));
    let processes = series.looks().iter().map(|look| look.processes).fold(0.0, f64::max);
    let several = if processes > 1.0 {
        format!(", {processes} processes at most (with the keeper of shared memory)")
    } else {
        String::new()
    };
    format!("in {cap} of memory, {seconds:.1} s{several}; {end}")
}

fn show(bytes: f64) -> String {
    show_bytes(bytes as u64)
}

/// What the run said at its end.
fn said(series: &Series) -> Markup {
    let lines = series.last()["summary"].as_array().cloned().unwrap_or_default();
    html! {
        @if !lines.is_empty() {
            ul.said {
                @for line in &lines {
                    @if line["warning"] == true {
                        li.warning { "warning: " (line["text"].as_str().unwrap_or_default()) }
                    } @else {
                        li { (line["text"].as_str().unwrap_or_default()) }
                    }
                }
            }
        }
    }
}

/// A sentence on what another cap would have changed: of a run that ended by itself.
fn advice(series: &Series, what_if: Option<&WhatIf>) -> Markup {
    let last = series.last();
    let has_ended =
        last["exit_status"].is_u64() && last["killed_by"].is_null() && last["out_of_memory"].is_null();
    let text = match what_if {
        _ if !has_ended => None,
        Some(what_if) => Some(estimate(series, what_if)),
        None => plain_advice(series),
    };
    html! { @if let Some(text) = text { p.advice { (text) } } }
}

fn estimate(series: &Series, what_if: &WhatIf) -> String {
    let (waited, rested) = (series.number("/stalled_s"), series.number("/rested_s"));
    let Some(better) = what_if.advice() else {
        return if rested > WORTH_SAYING * series.number("/elapsed_s") {
            format!(
                "Its processes rested {rested:.1} s (summed over threads) while others got on: fewer at once, or more memory, would gain most."
            )
        } else {
            format!("It lost little to its cap: its threads waited {waited:.1} s for pages.")
        };
    };
    let shares = if what_if.is_of_one_thread() {
        let percent = |point| format!("{:.0}\u{a0}%", 100.0 * what_if.share(point));
        format!(": {} of the time in place of {}", percent(better), percent(what_if.points[0]))
    } else {
        String::new()
    };
    let left = if better.waited < 0.05 {
        "hardly at all".to_owned()
    } else {
        format!("about {:.1} s", better.waited)
    };
    let cap = show(better.cap);
    format!(
        "By the estimate below, with {cap} its threads would have waited {left} in place of {waited:.1} s{shares}."
    )
}

/// What can be said without an estimate.
fn plain_advice(series: &Series) -> Option<String> {
    let (needed, cap) = (series.number("/needed_bytes"), series.number("/cap_bytes"));
    let (out, back) = (series.number("/counters/pgsteal"), series.number("/counters/pgmajfault"));
    let is_quick = series.number("/stalled_s") < WORTH_SAYING * series.number("/elapsed_s");
    if series.number("/cap_changes") > 0.0 {
        Some(
            "Its cap was changed while it went on: what another would have done is not estimated.".to_owned(),
        )
    } else if out == 0.0 && needed > 0.0 && needed < cap {
        // What a process of a short run took unseen counts with its files. With less than a sixteenth free, or 16 MiB, swapping
        // begins.
        let unseen = if series.number("/elapsed_s") < 1.0 { series.number("/max_rss_bytes") } else { 0.0 };
        let needed = needed.max(unseen);
        let enough = (needed * 16.0 / 15.0).max(needed + MEMORY_MIN);
        (enough < cap).then(|| format!("It fitted: {} would have done.", show(enough)))
    } else if out > 0.0 && back < out / 10.0 && is_quick && series.last()["refault_distances"].is_array() {
        Some("Hardly anything that left came back: more memory would gain little.".to_owned())
    } else {
        None
    }
}

/// A chart, with what it shows for who does not see it.
fn figure(svg: &str, told: &str, caption: &str) -> Markup {
    html! {
        figure {
            div role="img" tabindex="0" aria-label=(told) { (PreEscaped(svg)) }
            figcaption { (caption) }
        }
    }
}

fn time_charts(series: &Series) -> Result<Markup, String> {
    if series.looks().len() < 2 {
        return Ok(html! {
            p.faint { "There is one look only: over time nothing can be drawn. `--stats FILE.jsonl` keeps all looks." }
        });
    }
    let most = |of: fn(&Memory) -> u64| {
        show_bytes(series.looks().iter().map(|look| of(&look.memory)).max().unwrap_or(0))
    };
    let (memory, disk) = (most(Memory::in_memory), most(|memory| memory.disk));
    let told = format!("Memory over time: {memory} in memory at most, {disk} on disk at most.");
    let faults = series.number("/counters/pgmajfault");
    Ok(html! {
        h2 { "Memory over time" }
        (figure(&charts::memory(series)?, &told,
            "What is on disk lies on top of the rest, and does not count for the cap."))
        h2 { "Faults and waiting" }
        (figure(&charts::faults(series)?, &format!("{faults} faults for pages that were out, over time."),
            "Faults for pages that were out, a second."))
        (figure(&charts::waits(series)?, "Threads that waited for pages, over time.",
            "Threads that waited for pages, on average: 1 is a thread that did nothing else."))
    })
}

fn estimates(what_if: &WhatIf) -> Result<Markup, String> {
    let points = &what_if.points;
    // A row for about each tenth of the way.
    let every = points.len().div_ceil(10).max(1);
    let last = points.len() - 1;
    let rows = points.iter().enumerate().filter(|(nth, _)| *nth % every == 0 || *nth == last);
    Ok(html! {
        h2 { "With more memory" }
        (figure(&charts::what_if(what_if)?, "Seconds that threads would have waited, by the cap; the table below has the figures.",
            "An estimate from how many other pages had left before each page came back (its refault distance)."))
        table {
            caption { "Estimated waits under other caps" }
            thead { tr { th.number { "cap" } th.number { "threads wait" }
                @if what_if.is_of_one_thread() { th.number { "of the time" } } } }
            tbody {
                @for (_, point) in rows {
                    tr {
                        td.number { (show(point.cap)) }
                        td.number { (format!("{:.1} s", point.waited)) }
                        @if what_if.is_of_one_thread() {
                            td.number { (format!("{:.0} %", 100.0 * what_if.share(*point))) }
                        }
                    }
                }
            }
        }
    })
}

fn figures(series: &Series) -> Markup {
    let count = |name: &str| series.number(&format!("/counters/{name}"));
    let latency = |name: &str| {
        let micros = series.number(&format!("/fault_latency_us/{name}"));
        crate::units::show_nanos((micros * 1e3) as u64)
    };
    let peak = |name: &str| show(series.number(&format!("/bytes/peak/{name}")));
    // Where the kernel counted each page once, that.
    let held = series.last().pointer("/counted/bytes").and_then(number).map_or_else(|| peak("total"), show);
    // Pages that went from the pool to the device are counted once.
    let to_disk = (count("pswpout") - count("zswpwb")).max(0.0);
    let ratio = series.last()["compression_ratio"].as_f64();
    let rows: Vec<(&str, String, String)> = [
        ("a pattern (zero pages)", count("swpout_zero"), count("swpin_zero")),
        ("the compressed pool", count("zswpout"), count("zswpin")),
        ("the disk", to_disk, count("pswpin")),
        ("an unchanged copy", count("swap_reuse"), 0.0),
        ("probation", 0.0, count("swap_cache_hit")),
    ]
    .into_iter()
    .filter(|(_, left, back)| left + back > 0.0)
    .map(|(name, left, back)| {
        let shown = |pages: f64| if pages > 0.0 { show_count(pages as u64) } else { "–".to_owned() };
        (name, shown(left), shown(back))
    })
    .collect();
    html! {
        h2 { "Figures" }
        @if !rows.is_empty() {
            table {
                caption { "Pages by where they went and came from" }
                thead { tr { th { "where" } th.number { "pages out" } th.number { "pages back" } } }
                tbody {
                    @for (name, left, back) in rows { tr { td { (name) } td.number { (left) } td.number { (back) } } }
                }
            }
        }
        table {
            caption { "Memory and time" }
            tbody {
                @if series.last()["needed_bytes"].is_number() {
                    tr { td { "in memory at most, of a cap of " (show(series.number("/cap_bytes"))) } td.number { (held) } }
                    tr { td { "needed at most, had all stayed in memory" } td.number { (show(series.number("/needed_bytes"))) } }
                    tr { td { "compressed pool at most" } td.number { (peak("pool")) } }
                    tr { td { "on disk at most" } td.number { (peak("disk")) } }
                    tr { td { "not managed at most" } td.number { (peak("unmanaged")) } }
                }
                @if let Some(ratio) = ratio { tr { td { "compression in the pool" } td.number { (format!("{ratio:.1} : 1")) } } }
                tr { td { "moved from the pool to the disk" } td.number { (show_count(count("zswpwb") as u64)) " pages" } }
                tr { td { "written to the disk" } td.number { (show(series.number("/disk_bytes_written"))) } }
                @if series.number("/rested_s") > 0.0 {
                    tr { td { "processes rested while others got on, summed over threads" } td.number { (format!("{:.1} s", series.number("/rested_s"))) } }
                }
                tr { td { "threads waited" } td.number { (format!("{:.1} s", series.number("/stalled_s"))) } }
                tr { td { "a fault took: half of them at most, 99 %, all" }
                    td.number { (latency("p50")) ", " (latency("p99")) ", " (latency("max")) } }
            }
        }
    }
}

/// The most memory of such a program, and in how many processes that was.
fn most(program: &Value) -> String {
    let number = |name: &str| program[name].as_u64().unwrap_or(0);
    format!("{}{}", show_bytes(number("peak_bytes")), of_several(number("peak_processes") as usize))
}

/// The programs that ran without Pagetide.
fn programs(report: &Value) -> Markup {
    let programs = report["unmanaged_programs"].as_array().cloned().unwrap_or_default();
    html! {
        @if !programs.is_empty() {
            h2 { "Programs that ran without Pagetide" }
            table {
                thead { tr { th { "program" } th { "pid" } th { "most memory" } th { "why" } } }
                tbody {
                    @for program in &programs {
                        tr {
                            td { code { (program["name"].as_str().unwrap_or_default()) } }
                            td { (program["pid"]) }
                            td { (most(program)) }
                            td { (program["reason"].as_str().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}

fn notes() -> Markup {
    html! {
        h2 { "How to read this" }
        p.faint {
            "Waiting is summed over threads, from when a fault was read to when it was answered. The estimate for more memory takes \
             each page that came back as kept if no more pages had left before it than would then have fitted, and each wait as \
             what its tier costs. It errs on the side of too little gain. It says nothing of less memory, for what happens in memory is \
             not seen."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Any number that JSON has, and what is none.
    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            Just(json!("text")),
            Just(json!(f64::MAX)),
            prop::sample::select(vec![0.0, -1.0, 1e-300, 0.5, 4096.0, 1e9, 1e18, 1e300])
                .prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0..1u64 << 34).prop_map(Value::from),
        ]
    }

    #[test]
    fn advice_is_given_on_runs_that_ended_by_themselves() {
        let said = |more: Value| {
            let mut report = json!({
                "elapsed_s": 10.0, "cap_bytes": 64 << 20, "stalled_s": 0.0, "processes": 1, "needed_bytes": 30 << 20,
                "bytes": { "now": { "total": 0, "resident": 0, "pool": 0, "disk": 0 } },
                "counters": { "pgmajfault": 0, "pgsteal": 0 }, "exit_status": 0, "cap_changes": 0,
            });
            report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut series = Series::new();
            series.add(&report);
            advice(&series, WhatIf::of(&series).as_ref()).into_string()
        };
        assert!(said(json!({})).contains("It fitted: 46 MiB would have done."));
        assert!(said(json!({ "needed_bytes": 1 << 20 })).contains("17 MiB would have done"));
        assert!(
            said(json!({ "max_rss_bytes": 32 << 20, "elapsed_s": 0.5 })).contains("48 MiB would have done")
        );
        assert!(!said(json!({ "max_rss_bytes": 50 << 20, "elapsed_s": 0.5 })).contains("would have done"));
        assert!(said(json!({ "cap_changes": 2 })).contains("was changed"));
        for other in [
            json!({ "exit_status": null }),
            json!({ "exit_status": 137, "killed_by": "pagetide" }),
            json!({ "exit_status": 137, "out_of_memory": { "processes": 1 } }),
            // Statistics that say too little.
            json!({ "counters": { "pgmajfault": 0, "pgsteal": 9 } }),
        ] {
            assert_eq!(said(other.clone()), "", "{other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// Statistics may be damaged, or somebody else's.
        #[test]
        fn a_page_is_made_of_whatever_the_statistics_say(
            values in prop::collection::vec(prop::collection::vec(value(), 20), 1..6),
            command in ".{0,80}",
        ) {
            let mut series = Series::new();
            for (at, one) in values.iter().enumerate() {
                series.add(&json!({
                    "elapsed_s": if at == 0 { json!(0) } else { one[0].clone() },
                    "cap_bytes": one[1], "stalled_s": one[2], "processes": one[3], "needed_bytes": one[4],
                    "cap_changes": 0, "exit_status": one[5], "compression_ratio": one[6], "disk_bytes_written": one[7],
                    "bytes": {
                        "now": { "total": one[8], "resident": one[9], "pool": one[10], "disk": one[11] },
                        "peak": { "swapped": one[12] },
                    },
                    "counters": { "pgmajfault": one[13], "pgsteal": one[14], "pswpin_ns": one[15] },
                    "refault_distances": [
                        { "growth": one[16], "pool": one[17], "device": one[18] },
                        { "growth": 2.0, "pool": one[19], "device": one[17] },
                    ],
                    "command": [command, "<script>"],
                    "summary": [{ "warning": true, "text": command }],
                }));
            }
            if series.looks().is_empty() {
                return Ok(());
            }
            let page = html(&series).unwrap();
            prop_assert!(!page.contains("<script") && page.len() < 1 << 20);
            prop_assert!(!page.contains("NaN") || command.contains("NaN"));
        }
    }
}
