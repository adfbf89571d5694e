//! Builds the library that the program preloads, and has the program carry it: `cargo install` installs programs alone,
//! and cargo cannot embed another package's library.
//!
//! Only optimized builds carry it, and with PAGETIDE_CARRY=no none does: whoever develops has the library of the
//! workspace beside the program, and need not have it built twice.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages of which the library is linked.
const PACKAGES: [&str; 6] = ["page", "sys", "swap", "device", "engine", "preload"];
const PROFILE: &str = "dist";
const SWITCH: &str = "PAGETIDE_CARRY";

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}

/// Builds the library in a target folder of its own: this build holds the lock of the usual one.
fn build(house: &Path, out: &Path) -> PathBuf {
    let (target, triple) = (out.join("library"), variable("TARGET"));
    let mut command = Command::new(variable("CARGO"));
    command
        .current_dir(house)
        .args(["build", "--package", "pagetide-preload", "--profile", PROFILE, "--target", &triple])
        .arg("--target-dir")
        .arg(&target)
        // Where builds share a folder for what lies between, this build holds its lock.
        .env("CARGO_BUILD_BUILD_DIR", &target);
    if house.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        status.success(),
        "the library that the program is to carry cannot be built: {command:?}: {status}"
    );
    target.join(triple).join(PROFILE).join("libpagetide_preload.so")
}

fn main() {
    let house = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let out = PathBuf::from(variable("OUT_DIR"));
    let parts =
        PACKAGES.iter().flat_map(|package| ["src", "Cargo.toml"].map(|part| format!("{package}/{part}")));
    for part in parts.chain(["preload/build.rs", "Cargo.toml", "Cargo.lock"].map(str::to_owned)) {
        println!("cargo::rerun-if-changed={}", house.join(part).display());
    }
    println!("cargo::rerun-if-env-changed={SWITCH}");
    let is_wanted = env::var_os(SWITCH).is_none_or(|value| value != "no");
    // A packaged crate has no neighbours.
    let carries = is_wanted && variable("PROFILE") == "release" && house.join("preload/Cargo.toml").exists();
    let library = carries.then(|| build(&house, &out));
    let bytes = library.map_or("None".to_owned(), |path| format!("Some(include_bytes!({path:?}))"));
    let code = format!(
        "/// The library, if this program carries it.\npub(crate) const LIBRARY: Option<&[u8]> = {bytes};\n"
    );
    fs::write(out.join("library.rs"), code).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}
