//! `pagetide setup`: gives users of this machine permission, once; and takes it back.

use crate::failure::Failure;
use crate::out;
use crate::permission::device::ask_broker;
use crate::permission::{GROUP, SOCKET, members, remedy, steps};
use pagetide_cli::options::SetupArgs;
use pagetide_sys::uffd::DEVICE;
use std::path::Path;

const RULES: &str = include_str!("../../files/60-pagetide.rules");
const SOCKET_UNIT: &str = include_str!("../../files/pagetide-broker.socket");
const SERVICE_UNIT: &str = include_str!("../../files/pagetide-broker.service");
/// The program that the service unit names.
const UNIT_PROGRAM: &str = "/usr/bin/pagetide";

const RULES_FILE: &str = "/etc/udev/rules.d/60-pagetide.rules";
const RULES_OF_PACKAGE: &str = "/usr/lib/udev/rules.d/60-pagetide.rules";
const UNITS: &str = "/etc/systemd/system";
const UNITS_OF_PACKAGE: &str = "/usr/lib/systemd/system";
const SOCKET_NAME: &str = "pagetide-broker.socket";
const SERVICE_NAME: &str = "pagetide-broker.service";
const COPY: &str = "/usr/local/lib/pagetide/pagetide";
/// Where systemd, and udev, are known to run.
const SYSTEMD_RUNS: &str = "/run/systemd/system";
const UDEV_RUNS: &str = "/run/udev/control";

/// Makes all of it, or removes it.
pub(crate) fn setup(args: &SetupArgs) -> Result<u8, Failure> {
    if !rustix::process::geteuid().is_root() {
        let undo = if args.undo { " --undo" } else { "" };
        return Err(format!("setup changes the machine: sudo {} setup{undo}", remedy::own_program()).into());
    }
    let result = if args.undo { undo() } else { make(args) };
    result
        .map_err(|problem| {
            format!("{problem}. What was done before stays: setup may be run again, or --undo").into()
        })
        .map(|()| 0)
}

/// Says what a step has brought about.
fn tell(what: &str, state: &str) -> Result<(), String> {
    out::print(&format!("{what:30} {state}\n")).map(drop).map_err(|failure| failure.message)
}

/// Returns the users to be added, each with its number. All of them are known.
fn users(args: &SetupArgs) -> Result<Vec<(String, u32)>, String> {
    let caller = std::env::var("SUDO_USER").ok().filter(|name| name != "root");
    let names = if args.user.is_empty() { caller.into_iter().collect() } else { args.user.clone() };
    let number = |name: String| match members::user_named(&name) {
        Ok(Some(user)) => Ok((name, user.uid.as_raw())),
        Ok(None) => Err(format!("--user: there is no user {name:?}")),
        Err(error) => Err(format!("the users cannot be read: {error}")),
    };
    names.into_iter().map(number).collect()
}

fn make(args: &SetupArgs) -> Result<(), String> {
    let users = users(args)?;
    steps::make_node()?;
    let group = steps::make_group()?;
    tell(&format!("group {GROUP}"), &format!("is there, number {group}"))?;
    for (name, number) in &users {
        steps::add_member(name, *number)?;
        tell(&format!("user {name}"), "is a member")?;
    }
    make_rule(group)?;
    let answers = make_broker()?;
    if users.is_empty() {
        return tell("nobody was added", "--user NAME adds a user");
    }
    let names: Vec<_> = users.into_iter().map(|(name, _)| name).collect();
    let names = names.join(", ");
    // Without a broker who is logged in already lacks the group.
    match answers {
        true => tell("permitted from now on", &names),
        false => tell("permitted", &format!("{names}, after the next login or in `newgrp {GROUP}`")),
    }
}

fn make_rule(group: u32) -> Result<(), String> {
    let of_package = Path::new(RULES_OF_PACKAGE).exists();
    if !of_package {
        steps::write_file(Path::new(RULES_FILE), RULES.as_bytes(), 0o644)?;
    }
    let lasts = if Path::new(UDEV_RUNS).exists() {
        steps::run("udevadm", &["control", "--reload"])?;
        steps::run("udevadm", &["trigger", "--settle", "--action=change", DEVICE])?;
        Some(steps::is_node_for(group))
    } else {
        None
    };
    steps::give_node(Some(group))?;
    let state = match lasts {
        Some(true) => "at each boot, by udev",
        Some(false) => "until the next boot: udev did not apply the rule",
        None => "until the next boot: udev does not run here",
    };
    tell(DEVICE, &format!("belongs to the group, {state}"))
}

/// Returns whether a broker answers.
fn make_broker() -> Result<bool, String> {
    if !Path::new(SYSTEMD_RUNS).exists() {
        tell("broker", "systemd does not run here: have `pagetide broker` started as root")?;
        return Ok(false);
    }
    let of_package = Path::new(UNITS_OF_PACKAGE).join(SOCKET_NAME).exists();
    if !of_package {
        let program = steps::program_for_root(Path::new(COPY))?;
        let program = program
            .to_str()
            .filter(|path| !path.contains(char::is_whitespace))
            .ok_or_else(|| format!("{}: a unit of systemd cannot name this path", program.display()))?;
        let units = Path::new(UNITS);
        steps::write_file(&units.join(SOCKET_NAME), SOCKET_UNIT.as_bytes(), 0o644)?;
        let service = SERVICE_UNIT.replace(UNIT_PROGRAM, program);
        steps::write_file(&units.join(SERVICE_NAME), service.as_bytes(), 0o644)?;
        tell("broker", &format!("runs {program}"))?;
    }
    steps::run("systemctl", &["daemon-reload"])?;
    steps::run("systemctl", &["enable", "--now", SOCKET_NAME])?;
    let given = ask_broker(Path::new(SOCKET));
    given.map_err(|error| {
        format!("the broker at {SOCKET} does not give the device: {}", std::io::Error::from(error))
    })?;
    tell("broker", &format!("answers at {SOCKET}"))?;
    Ok(true)
}

fn undo() -> Result<(), String> {
    let systemd_runs = Path::new(SYSTEMD_RUNS).exists();
    let units = [Path::new(UNITS), Path::new(UNITS_OF_PACKAGE)].map(|units| units.join(SOCKET_NAME).exists());
    if systemd_runs && units.contains(&true) {
        steps::run("systemctl", &["disable", "--now", SOCKET_NAME])?;
        steps::run("systemctl", &["stop", SERVICE_NAME])?;
    }
    let mut was_there = false;
    for name in [SOCKET_NAME, SERVICE_NAME] {
        was_there |= steps::remove_file(&Path::new(UNITS).join(name))?;
    }
    if systemd_runs && was_there {
        steps::run("systemctl", &["daemon-reload"])?;
    }
    steps::remove_file(Path::new(COPY))?;
    steps::remove_file(Path::new(SOCKET))?;
    // Folders that hold something else stay.
    let _ = std::fs::remove_dir(Path::new(COPY).parent().expect("an absolute path"));
    let _ = std::fs::remove_dir(Path::new(SOCKET).parent().expect("an absolute path"));
    let [_, of_package] = units;
    let state = match (was_there, of_package) {
        (true, _) => "removed",
        (false, true) => "switched off: its units belong to the package",
        (false, false) => "was not set up",
    };
    tell("broker", state)?;
    if steps::remove_file(Path::new(RULES_FILE))? && Path::new(UDEV_RUNS).exists() {
        steps::run("udevadm", &["control", "--reload"])?;
    }
    let group = members::group_named(GROUP).map_err(|error| format!("the groups cannot be read: {error}"))?;
    if group.is_some_and(steps::is_node_for) {
        steps::give_node(None)?;
        tell(DEVICE, "belongs to root alone")?;
    }
    let removed = steps::remove_group()?;
    tell(&format!("group {GROUP}"), if removed { "removed" } else { "was not there" })?;
    if Path::new(RULES_OF_PACKAGE).exists() {
        tell(RULES_OF_PACKAGE, "stays: it belongs to the package")?;
    }
    tell("what runs", "keeps the permission that it has")
}
