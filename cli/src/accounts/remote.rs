//! Figures of the remote tier of a run.

use crate::accounts::gathered::Gathered;
use crate::units::{PAGE, show_bytes, show_nanos};
use pagetide::group::RemoteFigure;
use serde_json::{Value, json};

impl Gathered {
    fn remote_figure(&self, figure: RemoteFigure) -> Option<u64> {
        Some(self.remote?[figure as usize])
    }

    /// Returns the figures of the remote tier as JSON; `null` where there is none.
    pub(crate) fn remote_tier(&self) -> Value {
        let Some(figures) = self.remote else { return Value::Null };
        let get = |figure: RemoteFigure| figures[figure as usize];
        let bytes = |figure| get(figure).saturating_mul(PAGE);
        json!({
            "values": get(RemoteFigure::Values),
            "bytes": get(RemoteFigure::Bytes),
            "read_bytes": bytes(RemoteFigure::Read),
            "written_bytes": bytes(RemoteFigure::Written),
            "lost_bytes": bytes(RemoteFigure::Lost),
            "refused_bytes": bytes(RemoteFigure::Refused),
            "retries": get(RemoteFigure::Retries),
            "round_trip_us": get(RemoteFigure::RoundTripNs) as f64 / 1e3,
            "longest_outage_s": get(RemoteFigure::OutageNs) as f64 / 1e9,
        })
    }

    /// Says what the remote tier holds and how it answers, for a table of people.
    pub(crate) fn remote_line(&self) -> Option<String> {
        let [bytes, values, trip] = [RemoteFigure::Bytes, RemoteFigure::Values, RemoteFigure::RoundTripNs]
            .map(|figure| self.remote_figure(figure).unwrap_or(0));
        self.remote?;
        Some(format!(
            "{:<14}{:>10}  ({values} values, round trip {})",
            "  remote",
            show_bytes(bytes),
            show_nanos(trip)
        ))
    }

    /// Says what the server of the remote tier has lost, refused, or been away for; `None` if it did well.
    pub(crate) fn remote_trouble(&self) -> Option<String> {
        let [lost, refused, outage] = [RemoteFigure::Lost, RemoteFigure::Refused, RemoteFigure::OutageNs]
            .map(|figure| self.remote_figure(figure).unwrap_or(0));
        let parts: Vec<String> = [
            (lost > 0).then(|| format!("{} could not be read", show_bytes(lost * PAGE))),
            (refused > 0).then(|| format!("{} were not taken", show_bytes(refused * PAGE))),
            (outage > 0).then(|| format!("it was away for {} at most", show_nanos(outage))),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!parts.is_empty()).then(|| format!("of the remote server: {}", parts.join(", ")))
    }
}
