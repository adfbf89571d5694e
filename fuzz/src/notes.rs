//! The note of a library that says it is Pagetide's: any bytes have a version that can be shown.

use pagetide::note;

/// Reads the description of a note.
pub fn note(input: &[u8]) -> bool {
    let version = note::version(input);
    assert!(!version.contains('\0'), "{version:?}");
    input == own()
}

/// What the note of this version says.
pub fn own() -> Vec<u8> {
    note::description().to_vec()
}
