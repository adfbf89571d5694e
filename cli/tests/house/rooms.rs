//! The house: imports point down only, and `unsafe` lives in its room.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms below it that it may import.
const ROOMS: [(&str, &[&str]); 7] = [
    ("page", &[]),
    ("sys", &["page"]),
    ("swap", &["page"]),
    ("device", &["page", "sys"]),
    ("engine", &["page", "sys", "swap", "device"]),
    ("preload", &["page", "sys", "swap", "engine"]),
    ("cli", &["page", "sys", "swap", "device", "engine"]),
];
/// Rooms that forbid `unsafe`.
const SAFE: [&str; 4] = ["page", "swap", "device", "engine"];

fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the house").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The name under which a room is imported.
fn package(room: &str) -> String {
    if room == "engine" { "pagetide".into() } else { format!("pagetide-{room}") }
}

/// The keys of every table of dependencies in a manifest, tables of targets and of tests included.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table.ends_with("dependencies");
            // [dependencies.name]
            if let Some((before, name)) = table.rsplit_once('.')
                && before.ends_with("dependencies")
            {
                found.insert(name.trim_matches('"').to_owned());
            }
        } else if inside && !line.starts_with('#') && line.contains('=') {
            let key = line.split(['=', '.']).next().unwrap_or_default();
            found.insert(key.trim().trim_matches('"').to_owned());
        }
    }
    found
}

#[test]
fn every_room_imports_only_rooms_below_it() {
    for (room, below) in ROOMS {
        let manifest = read(&house().join(room).join("Cargo.toml"));
        assert!(manifest.contains(&format!("name = \"{}\"", package(room))), "{room} has another name");
        let allowed: BTreeSet<_> = below.iter().map(|room| package(room)).collect();
        for dependency in dependencies(&manifest) {
            let ours = dependency == "pagetide" || dependency.starts_with("pagetide-");
            assert!(
                !ours || allowed.contains(&dependency),
                "{room}/ imports {dependency}, which is not below it"
            );
        }
    }
}

#[test]
fn every_room_is_known() {
    let manifest = read(&house().join("Cargo.toml"));
    let members =
        manifest.lines().find(|line| line.starts_with("members")).expect("the workspace has members");
    let names: BTreeSet<_> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, ROOMS.map(|(room, _)| room).into());
}

#[test]
fn rooms_without_unsafe_forbid_it() {
    for room in SAFE {
        let lib = read(&house().join(room).join("src/lib.rs"));
        assert!(lib.lines().any(|line| line == "#![forbid(unsafe_code)]"), "{room}/src/lib.rs allows unsafe");
    }
}

#[test]
fn dependencies_are_found_in_every_kind_of_table() {
    let manifest = "[dependencies]\na.workspace = true\nb = \"1\"\n# c = 1\n[dev-dependencies]\nd = { version = \"1\" }\n\
                    [features]\nx = []\n[target.'cfg(unix)'.dependencies]\ne = \"1\"\n[dependencies.f]\npath = \"..\"\n";
    assert_eq!(dependencies(manifest), ["a", "b", "d", "e", "f"].map(String::from).into());
}

/// Where a text occurs in the sources of a room, tests left out: file names, each as often as it is there.
fn occurrences(room: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![house().join(room).join("src")];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            if name == "tests.rs" {
                continue;
            }
            let source = read(&path);
            let source = source.split("#[cfg(test)]").next().unwrap();
            found.extend(source.matches(text).map(|_| name.to_owned()));
        }
    }
    found.sort();
    found
}

/// Whoever wants the bytes of a swapped page has a transfer, and only swapin makes those.
#[test]
fn nothing_reads_a_place_but_for_a_transfer_of_swapin() {
    // The words of a transfer are private to the file that makes it: by one verb, and cut in two by another.
    assert_eq!(
        occurrences("swap", "Transfer {"),
        ["swapin.rs"; 3],
        "its definition, methods, and one place that makes one"
    );
    let swap: String = read(&house().join("swap/src/swap/swapin.rs")).split_whitespace().collect();
    for reader in ["pubfnload(&self,transfer:&Transfer,", "pubfnopen(&self,transfer:&Transfer,"] {
        assert!(swap.contains(reader), "{reader}");
    }
    // The pool's entries are read for a transfer, and for writeback; blocks for a fault, ahead of one, and by swapoff.
    assert_eq!(occurrences("swap", "zswap.load("), ["swapin.rs", "writeback.rs"]);
    assert_eq!(occurrences("engine", ".load(&transfer"), ["bring_in.rs"; 2]);
    assert_eq!(occurrences("engine", "direction: Direction::Read"), ["bring_in.rs"]);
    assert_eq!(occurrences("engine", "zswap().load("), [""; 0]);
}
