//! What `pagetide replay` is given: each step names a page that there is.

#[path = "../../cli/src/replay/events.rs"]
#[allow(dead_code, unreachable_pub, reason = "the replay uses the rest")]
mod events;

use events::{Said, Steps};

/// Reads a trace or a text.
pub fn replay(input: &[u8]) -> bool {
    let Ok(mut steps) = Steps::read(input) else { return false };
    steps.assume_bytes(1000);
    let pages = u64::from(steps.pages);
    assert!(steps.footprint as u64 <= pages && steps.sizes.len() as u64 == pages);
    for step in &steps.steps {
        let pages_named = match step.said() {
            Said::Discard(pages) => u64::from(pages),
            Said::Access { .. } | Said::Size(_) => 1,
        };
        assert!(u64::from(step.page) + pages_named <= pages, "{step:?} of {pages} pages");
    }
    steps.damage.is_none()
}
