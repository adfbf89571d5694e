//! The preloaded library: lookup, and the check that it is Pagetide's and of this version.

use super::carried;
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use pagetide::note;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const NAME: &str = "libpagetide_preload.so";
const VARIABLE: &str = "PAGETIDE_PRELOAD";

/// Finds the library, and checks it by the note in its file.
pub(crate) fn find() -> Result<PathBuf, String> {
    let given = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let library = match &given {
        Some(given) => {
            let given = std::path::absolute(given).map_err(|error| format!("{VARIABLE}: {error}"))?;
            if !given.is_file() {
                return Err(format!("{VARIABLE} names {}, which is no file", given.display()));
            }
            given
        }
        None => match (beside_the_program()?, carried::LIBRARY) {
            // One of another build may have been left there.
            (Found::At(path), Some(library)) if check(&path).is_err() => carried::place(library)?,
            (Found::At(path), _) => path,
            (Found::Nowhere(_), Some(library)) => carried::place(library)?,
            (Found::Nowhere(problem), None) => return Err(problem),
        },
    };
    check(&library).map_err(|problem| match given {
        Some(_) => format!("{VARIABLE} names {}, which {problem}", library.display()),
        None => format!("{} {problem}. Set {VARIABLE} to the path of the right one", library.display()),
    })?;
    if library.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(format!(
            "{}: LD_PRELOAD cannot name a path with a space or a colon. Set {VARIABLE} to another one",
            library.display()
        ));
    }
    Ok(library)
}

enum Found {
    At(PathBuf),
    /// Where it was looked for.
    Nowhere(String),
}

fn beside_the_program() -> Result<Found, String> {
    let executable = std::env::current_exe().map_err(|error| format!("where am I? {error}"))?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(NAME), directory.join("../lib/pagetide").join(NAME)];
    let found = places.iter().find_map(|place| place.canonicalize().ok().filter(|place| place.is_file()));
    Ok(found.map_or_else(
        || {
            let [beside, lib] = places.each_ref().map(|place| place.display());
            Found::Nowhere(format!("{NAME} is neither {beside} nor {lib}. Set {VARIABLE} to its path"))
        },
        Found::At,
    ))
}

/// Checks that a file is Pagetide's library of this version. The error says what it is.
fn check(library: &Path) -> Result<(), String> {
    let file = File::open(library).map_err(|error| format!("cannot be read: {error}"))?;
    let Some(said) = description(file) else { return Err("is not Pagetide's library".to_owned()) };
    if said == note::description() {
        return Ok(());
    }
    let (own, other) = (env!("CARGO_PKG_VERSION"), note::version(&said));
    Err(if own == other {
        format!("is Pagetide's library of another build of version {own}")
    } else {
        format!("is Pagetide's library of version {other}, and this is {own}")
    })
}

/// Returns the note by which Pagetide's library tells its version, if the file has one.
fn description(file: File) -> Option<Vec<u8>> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    for segment in header.program_headers(LittleEndian, data).ok()? {
        let Ok(Some(mut notes)) = segment.notes(LittleEndian, data) else { continue };
        while let Ok(Some(found)) = notes.next() {
            if found.name() == note::OWNER.as_bytes() && found.n_type(LittleEndian) == note::KIND {
                return Some(found.desc().to_vec());
            }
        }
    }
    None
}

/// Returns the value of LD_PRELOAD with our library last: an allocator of the user's own wins.
pub(crate) fn ld_preload(existing: Option<&OsStr>, library: &Path) -> OsString {
    let Some(existing) = existing.filter(|value| !value.is_empty()) else { return library.into() };
    let already = existing.as_bytes().split(|byte| b" :".contains(byte));
    if already.into_iter().any(|entry| entry == library.as_os_str().as_bytes()) {
        return existing.into();
    }
    let mut value = existing.to_owned();
    value.push(":");
    value.push(library);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_library_comes_last_and_once() {
        let ours = Path::new("/lib/ours.so");
        assert_eq!(ld_preload(None, ours), "/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("")), ours), "/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("a.so b.so")), ours), "a.so b.so:/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("/lib/ours.so a.so")), ours), "/lib/ours.so a.so");
    }
}
