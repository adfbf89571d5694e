//! Permission for users and containers that may not open the device: `pagetide setup`, and the broker.
//!
//! Needs root; and what containers need ([`crate::containers`]).

use crate::common::turn;
use crate::containers::{Image, finding, run};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(name)
}

/// Runs a command that says itself what is wrong.
fn expect(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}\n{}", said[0], said[1]);
}

#[test]
fn setup_permits_a_user_and_its_undoing_leaves_nothing() {
    let _turn = turn();
    let image = Image::new("setup");
    expect(Command::new("unshare").arg("--mount").arg(script("setup.sh")).arg(image.program()));
}

#[test]
fn the_broker_gives_the_device_to_members_and_nothing_to_anybody_else() {
    let _turn = turn();
    expect(Command::new(script("broker.py")).arg(env!("CARGO_BIN_EXE_pagetide")));
}

struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_container_without_the_device_runs_by_the_broker_of_its_machine() {
    let _turn = turn();
    let image = Image::new("broker");
    let volume = image.volume();
    let socket = volume.join("socket");
    let (volume, socket) = (volume.to_str().unwrap(), socket.to_str().unwrap());
    let mut command = Command::new(image.program());
    let broker = command.args(["broker", "--anyone", "--socket", socket]).stderr(Stdio::null()).spawn();
    let _broker = Broker(broker.unwrap());
    while !Path::new(socket).exists() {
        std::thread::yield_now();
    }
    for user in ["65534", "0"] {
        let options = ["--user", user, "--volume", volume];
        let without = image.pagetide(&options, &run(&["--swap-dir", volume]));
        assert_eq!(without.status.code(), Some(125), "{}", String::from_utf8_lossy(&without.stderr));
        let doctor = image.pagetide_beside(socket, &options, &["doctor", "--json", "--swap-dir", volume]);
        assert!(doctor.status.success(), "{}", String::from_utf8_lossy(&doctor.stdout));
        for (name, state) in [
            ("userfaultfd: system call", "missing"),
            ("userfaultfd: device", "missing"),
            ("userfaultfd: broker", "ok"),
        ] {
            assert_eq!(finding(&doctor, name).0, state, "{name}");
        }
        let ended = image.pagetide_beside(socket, &options, &run(&["--swap-dir", volume]));
        let said = String::from_utf8_lossy(&ended.stderr);
        // Of two processes each may overdraw half a MiB, which is more than 40 MiB bear without a warning.
        assert!(ended.status.success() && said.contains("pagetide: out "), "{said}");
    }
}
