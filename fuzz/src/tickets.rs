//! The ticket that a process of a run has in its environment: what is read is written as the same.

use pagetide::ticket::Ticket;
use std::path::Path;

/// Reads a ticket.
pub fn ticket(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok(ticket) = text.parse::<Ticket>() else { return false };
    assert_eq!(ticket.to_string().parse(), Ok(ticket.clone()), "{text}");
    assert!(!ticket.is_for(Path::new("/proc/self/fd/3")));
    true
}
