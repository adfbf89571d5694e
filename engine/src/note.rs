//! The ELF note by which a library says that it is Pagetide's own, and of which version: the launcher reads it from the
//! file before it has a program load it.

use crate::group;

/// The owner's name in the note.
pub const OWNER: &str = "Pagetide";
/// The type of the note.
pub const KIND: u32 = 1;
/// Bytes of the name, with the zero behind it, and of the padding.
const NAME: usize = 12;
/// Bytes that tell the version: of the group page's form, and of the package.
const DESCRIPTION: usize = 32;
const PACKAGE: &str = env!("CARGO_PKG_VERSION");

/// A note, as it lies in the file.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct Note {
    name_length: u32,
    description_length: u32,
    kind: u32,
    name: [u8; NAME],
    description: [u8; DESCRIPTION],
}

impl Note {
    /// Returns the note of this version.
    pub const fn own() -> Self {
        let mut name = [0; NAME];
        name.split_at_mut(OWNER.len()).0.copy_from_slice(OWNER.as_bytes());
        Self {
            name_length: OWNER.len() as u32 + 1,
            description_length: DESCRIPTION as u32,
            kind: KIND,
            name,
            description: description(),
        }
    }
}

/// Returns the description in the note of this version.
pub const fn description() -> [u8; DESCRIPTION] {
    let mut bytes = [0; DESCRIPTION];
    let (form, package) = bytes.split_at_mut(4);
    form.copy_from_slice(&(group::VERSION as u32).to_le_bytes());
    package.split_at_mut(PACKAGE.len()).0.copy_from_slice(PACKAGE.as_bytes());
    bytes
}

/// Returns the package's version in a note's description, for messages.
pub fn version(description: &[u8]) -> String {
    let package = description.get(4..).unwrap_or_default();
    let end = package.iter().position(|&byte| byte == 0).unwrap_or(package.len());
    String::from_utf8_lossy(&package[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_its_version() {
        assert_eq!(version(&description()), PACKAGE);
        assert_eq!(version(b"xx"), "");
        assert_eq!(size_of::<Note>(), 12 + NAME + DESCRIPTION);
    }
}
