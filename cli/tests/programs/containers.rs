//! What a container gives: `pagetide doctor` and `pagetide run` as a runtime starts them (tests/container.py).
//!
//! Needs root, the device controller of cgroup version 1, Debian's python3-seccomp and
//! golang-github-containers-common (`./test` installs them).

use crate::common::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where everybody may read the program, and everybody may write into `volume`.
pub(crate) struct Image(PathBuf);

impl Image {
    pub(crate) fn new(name: &str) -> Self {
        let image = Self(PathBuf::from(format!("/var/tmp/pagetide-{name}-{}", std::process::id())));
        fs::create_dir_all(image.volume()).unwrap();
        for (path, mode) in [(image.0.clone(), 0o755), (image.volume(), 0o777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        for name in ["pagetide", "libpagetide_preload.so"] {
            let built = Path::new(env!("CARGO_BIN_EXE_pagetide")).with_file_name(name);
            fs::copy(built, image.0.join(name)).unwrap();
        }
        image
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.0.join("volume")
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.0.join("pagetide")
    }

    /// Runs `pagetide` in a container.
    pub(crate) fn pagetide(&self, options: &[&str], arguments: &[&str]) -> Output {
        self.pagetide_beside("", options, arguments)
    }

    /// The same, with the socket of a broker.
    pub(crate) fn pagetide_beside(&self, broker: &str, options: &[&str], arguments: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/container.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).args(options).arg("--").arg(self.program()).args(arguments);
        command.env("PAGETIDE_BROKER", broker);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("container.py: "), "the container cannot be made: {said}");
        output
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Several times the cap, read again, also by a child, in a process that is not to be dumped.
const JOB: &str = include_str!("../../../tests/jobs/undumpable.py");

pub(crate) fn run<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--memory", "40M"], options, &["--", "/usr/bin/python3", "-c", JOB]].concat()
}

pub(crate) fn finding(doctor: &Output, name: &str) -> (String, String) {
    let said: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let found = said["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    (text("state"), text("remedy"))
}

#[test]
fn a_container_that_has_the_device_can_run_as_anybody() {
    let _turn = turn();
    let image = Image::new("device");
    let volume = image.volume();
    let volume = volume.to_str().unwrap();
    for user in ["65534", "0"] {
        let options = ["--user", user, "--device", "/dev/userfaultfd", "--volume", volume];
        let doctor = image.pagetide(&options, &["doctor", "--json", "--swap-dir", volume]);
        assert!(doctor.status.success(), "{}", String::from_utf8_lossy(&doctor.stdout));
        assert_eq!(finding(&doctor, "userfaultfd: system call").0, "missing", "is the profile loaded?");
        for name in ["userfaultfd", "userfaultfd: device", "swap file"] {
            assert_eq!(finding(&doctor, name).0, "ok", "{name}");
        }
        assert!(finding(&doctor, "io_uring").1.contains("seccomp profile"));
        let ended = image.pagetide(&options, &run(&["--swap-dir", volume]));
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            "True 0\n",
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        assert!(ended.status.success());
    }
}

#[test]
fn a_container_without_the_device_is_told_what_to_start_it_with() {
    let _turn = turn();
    let image = Image::new("closed");
    for user in ["65534", "0"] {
        let options = ["--user", user];
        let doctor = image.pagetide(&options, &["doctor", "--json"]);
        assert_eq!(doctor.status.code(), Some(1));
        let (state, remedy) = finding(&doctor, "userfaultfd");
        assert_eq!((&*state, remedy.contains("--device /dev/userfaultfd")), ("FATAL", true), "{remedy}");
        assert_eq!(finding(&doctor, "UFFDIO_MOVE").0, "unknown");
        let ended = image.pagetide(&options, &run(&["--no-disk"]));
        assert_eq!(ended.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&ended.stderr).contains("--device /dev/userfaultfd"));
        assert!(ended.stdout.is_empty(), "the program has not run");
    }
}

#[test]
fn where_nothing_can_be_written_pages_go_to_compressed_memory() {
    let _turn = turn();
    let image = Image::new("readonly");
    let options = ["--device", "/dev/userfaultfd"];
    let doctor = image.pagetide(&options, &["doctor", "--json"]);
    assert!(doctor.status.success());
    assert_eq!(finding(&doctor, "swap file"), ("missing".to_owned(), "--swap-dir DIR".to_owned()));
    let ended = image.pagetide(&options, &run(&[]));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("Read-only file system") && said.contains("--swap-dir"), "{said}");
    assert_eq!(
        (&*String::from_utf8_lossy(&ended.stdout), ended.status.success()),
        ("True 0\n", true),
        "{said}"
    );
}

/// Each names itself as its own `/proc` has it. To the launcher it has another name.
#[test]
fn processes_in_pid_namespaces_of_their_own_live_as_long_as_they_do() {
    let _turn = turn();
    // Needs root.
    let (python, first, namespaces) = (python(), job("first.py"), job("namespaces.py"));
    for mask in first_mask(["", "pool"]) {
        println!("PAGETIDE_MASK={mask}");
        let run = start(pagetide("48M", mask, &["--swap-size", "1G"], &[&python, &namespaces]));
        assert_eq!(run.end().succeeds(), "True True True\n");
    }
    // By exec: one that sees the launcher's `/proc`, one that does not.
    for mount in [&[][..], &["--mount-proc"]] {
        println!("unshare {mount:?}");
        let command = [&["unshare", "--fork", "--pid"], mount, &[&*python, &first]].concat();
        let run = start(pagetide("48M", "", &["--swap-size", "1G"], &command));
        assert_eq!(run.end().succeeds(), "1 True True\n");
    }
}
