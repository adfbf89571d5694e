//! Traces: no more events than bytes, at most one error, and that ends the trace.

use pagetide_swap::trace::Reader;

/// Reads a trace to its end.
pub fn trace(input: &[u8]) -> bool {
    let Ok((_, reader)) = Reader::new(input) else { return false };
    let (mut events, mut errors) = (0, 0);
    for event in reader {
        assert_eq!(errors, 0, "something comes after an error");
        if event.is_ok() { events += 1 } else { errors += 1 }
    }
    assert!(events <= input.len(), "{events} events in {} bytes", input.len());
    errors == 0
}
