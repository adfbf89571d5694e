//! The units of systemd and the rule of udev that `pagetide setup` writes say what systemd and udev understand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("files").join(name)
}

/// Needs Debian's package systemd.
#[test]
fn systemd_understands_the_units() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("units-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let names = ["pagetide-broker.socket", "pagetide-broker.service"];
    let paths = names.map(|name| {
        // A program that is there: it is looked for.
        let text = fs::read_to_string(file(name)).unwrap();
        let path = folder.join(name);
        fs::write(&path, text.replace("/usr/bin/pagetide", env!("CARGO_BIN_EXE_pagetide"))).unwrap();
        path
    });
    let verify = |paths: &[PathBuf]| {
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).args(paths).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (good, said) = verify(&paths);
    // Units of the machine that it reads on the way are not ours to mend.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("pagetide")).collect();
    assert!(good && ours.is_empty(), "{said}");
    // It does say what it does not understand.
    let text = fs::read_to_string(&paths[1]).unwrap();
    fs::write(&paths[1], text.replace("DevicePolicy=closed", "DevicePolicy=ajar")).unwrap();
    assert!(verify(&paths).1.contains("ajar"));
    let _ = fs::remove_dir_all(&folder);
}

/// The rule is one line of matches and assignments that udev knows; its effect is not tested.
#[test]
fn the_rule_names_the_device_and_the_group() {
    let text = fs::read_to_string(file("60-pagetide.rules")).unwrap();
    let rules: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let rule = "KERNEL==\"userfaultfd\", SUBSYSTEM==\"misc\", GROUP=\"pagetide\", MODE=\"0660\"";
    assert_eq!(rules, [rule]);
}
