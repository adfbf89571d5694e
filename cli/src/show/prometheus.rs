//! A report as [Prometheus text](https://prometheus.io/docs/instrumenting/exposition_formats/), for the textfile collector
//! of node_exporter.

use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Returns the text of a report, as [`Report::json`](super::report::Report::json) has it.
pub(crate) fn text(report: &Value) -> String {
    let command = report["command"][0].as_str().unwrap_or_default();
    let command = command.rsplit('/').next().unwrap_or_default();
    let mut metrics = Metrics {
        out: String::new(),
        run: format!("run=\"{}\",command=\"{}\"", report["pid"], escape(command)),
    };
    metrics.one("up", "gauge", i32::from(report["running"] == true).into());
    metrics.one("elapsed_seconds", "gauge", report["elapsed_s"].clone());
    metrics.one("cap_bytes", "gauge", report["cap_bytes"].clone());
    metrics.one("processes", "gauge", report["processes"].clone());
    metrics.one("stalled_seconds_total", "counter", report["stalled_s"].clone());
    metrics.one("rested_seconds_total", "counter", report["rested_s"].clone());
    metrics.one("written_bytes_total", "counter", report["disk_bytes_written"].clone());
    metrics.each("memory_bytes", "gauge", "kind", map(&report["bytes"]["now"]));
    metrics.each("swap_file_bytes", "gauge", "kind", map(&report["swap_file"]));
    let quantiles = [("p50", "0.5"), ("p99", "0.99"), ("p99_9", "0.999"), ("max", "1")];
    let latencies = quantiles.into_iter().filter_map(|(name, quantile)| {
        let micros = report["fault_latency_us"][name].as_f64()?;
        Some((quantile.to_owned(), Value::from(micros / 1e6)))
    });
    metrics.each("fault_latency_seconds", "gauge", "quantile", latencies);
    for (name, value) in map(&report["counters"]) {
        // Times have their units in their names.
        metrics.one(&format!("{name}_total"), "counter", value);
    }
    metrics.out
}

fn map(value: &Value) -> impl Iterator<Item = (String, Value)> + '_ {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, value)| (name.clone(), value.clone()))
}

/// Escapes the value of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Metrics {
    out: String,
    /// The labels of every sample.
    run: String,
}

impl Metrics {
    fn one(&mut self, name: &str, kind: &str, value: Value) {
        if value.is_number() {
            let _ = writeln!(self.out, "# TYPE pagetide_{name} {kind}");
            let _ = writeln!(self.out, "pagetide_{name}{{{}}} {value}", self.run);
        }
    }

    fn each(&mut self, name: &str, kind: &str, label: &str, values: impl Iterator<Item = (String, Value)>) {
        let _ = writeln!(self.out, "# TYPE pagetide_{name} {kind}");
        for (what, value) in values.filter(|(_, value)| value.is_number()) {
            let _ =
                writeln!(self.out, "pagetide_{name}{{{},{label}=\"{}\"}} {value}", self.run, escape(&what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::pages::Pages;
    use crate::show::testing::{group, report};
    use std::collections::BTreeSet;

    /// Takes a sample apart: its metric, labels and value.
    fn sample(line: &str) -> (&str, &str, f64) {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        (name, labels, value.parse().unwrap())
    }

    #[test]
    fn each_line_is_a_type_or_a_sample_of_it() {
        let (_fd, group) = group();
        let mut report = report(&group, Pages::default());
        report.command = vec!["/opt/a \"b\"\\\n".to_owned(), "x".to_owned()];
        let text = text(&report.json());
        let (mut declared, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut last = "";
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(declaration) => {
                    let (name, kind) = declaration.split_once(' ').unwrap();
                    assert!(["gauge", "counter"].contains(&kind), "{line}");
                    assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                    assert!(declared.insert(name), "{name} is declared twice");
                    last = name;
                }
                None => {
                    let (name, labels, _) = sample(line);
                    assert_eq!(name, last, "a sample stands below its type");
                    assert!(
                        name.bytes()
                            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
                    );
                    assert!(labels.starts_with(r#"run="7",command="a \"b\"\\\n""#), "{labels}");
                    assert!(seen.insert((name, labels)), "{line} stands there twice");
                }
            }
        }
        let value =
            |metric: &str| text.lines().find(|line| line.starts_with(metric)).map(|line| sample(line).2);
        assert_eq!(value("pagetide_cap_bytes{"), Some(64_000.0 * 4096.0));
        assert_eq!(value("pagetide_up{"), Some(1.0));
        assert_eq!(value("pagetide_zswpout_total{"), Some(0.0));
    }
}
