//! Programs that run without Pagetide: their names, the reasons, and messages about them.

use crate::processes::program::{self, Format};
use crate::units::{PAGE, show_bytes};
use pagetide::group::ENVIRONMENT;
use pagetide_sys::procfs::{self, Stat};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fs::{self, File};

/// The most programs named when they are seen, and named at the end; of more the number is told.
const TOLD: usize = 20;
const SUMMARIZED: usize = 8;
/// The most different programs that are noted.
const MOST: usize = 4096;
/// Ticks of processor time after which a program has loaded its libraries.
const TICKS: u64 = 100;
/// AT_SECURE: the tag in `/proc/PID/auxv` of the word by which the loader distrusts its environment.
const AT_SECURE: u64 = 23;

/// The reason why a program runs without Pagetide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The program has no dynamic loader.
    Static,
    /// The program is for 32 bits, or for another processor.
    Foreign,
    /// The loader takes no library from the environment, since the program gained privileges.
    Privileged,
    /// The environment does not name the run.
    Environment,
    /// The library was not loaded, or has not joined the run.
    Silent,
}

impl Reason {
    /// Returns the words for it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Static => "it is statically linked",
            Self::Foreign => "it is for another kind of machine (32 bits, or another processor)",
            Self::Privileged => {
                "it gained privileges when it started (set-user-ID, set-group-ID or file capabilities)"
            }
            Self::Environment => "it was started without LD_PRELOAD or PAGETIDE_GROUP in its environment",
            Self::Silent => "Pagetide's library did not answer in it",
        }
    }

    /// Finds the reason for a process that has called exec, as far as its file, its loader and its environment tell.
    /// `None` if it may be about to join the run.
    fn for_sure(pid: u32) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/exe")).ok();
        match file.and_then(|mut file| Format::of(&mut file).ok()) {
            Some(Format::Static) => return Some(Self::Static),
            Some(Format::Foreign) => return Some(Self::Foreign),
            _ => {}
        }
        if fs::read(format!("/proc/{pid}/auxv")).is_ok_and(|auxv| is_secure(&auxv)) {
            return Some(Self::Privileged);
        }
        // An environment is empty while a process ends or is in the midst of exec; it has no stack then.
        let stack = || Stat::of(pid).map(|stat| stat.stack).filter(|&stack| stack != 0);
        let before = stack()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        (stack() == Some(before) && !program::is_told_of_a_run(&environment, ENVIRONMENT))
            .then_some(Self::Environment)
    }

    /// Does the same for a process without a slot; `for_long` says that it has been there for a while.
    pub(crate) fn of(pid: u32, for_long: bool) -> Option<Self> {
        Self::for_sure(pid).or_else(|| {
            let Stat { state, ticks, .. } = Stat::of(pid)?;
            // A process that sleeps, or has computed for a while, has loaded its libraries.
            let loaded = for_long && state == b'S' || ticks >= TICKS;
            loaded.then_some(Self::Silent)
        })
    }
}

fn is_secure(auxv: &[u8]) -> bool {
    let mut pairs = auxv.chunks_exact(16).map(|pair| pair.split_at(8));
    pairs.any(|(tag, value)| tag == AT_SECURE.to_ne_bytes() && value != [0; 8])
}

/// A program that runs without Pagetide, in one process or in several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// Its path, or its name where the path cannot be read.
    pub(crate) name: String,
    /// The pid of the process in which it was seen first.
    pub(crate) pid: u32,
    /// The reason.
    pub(crate) reason: Reason,
    /// Pages charged for all its processes, and how many processes these are.
    pub(crate) pages: u64,
    pub(crate) processes: usize,
    /// The most pages charged for them, and for how many that was.
    pub(crate) peak: u64,
    peak_processes: usize,
}

impl Program {
    fn warning(&self) -> String {
        let Self { name, pid, reason, .. } = self;
        format!("{name} (pid {pid}) runs without Pagetide: {}", reason.text())
    }

    fn summary(&self) -> String {
        let Self { name, pid, reason, peak, peak_processes, .. } = self;
        let (most, of) = (show_bytes(peak * PAGE), of_several(*peak_processes));
        format!("without Pagetide: {name} (pid {pid}), {most} at most{of}: {}", reason.text())
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "pid": self.pid,
            "reason": self.reason.text(),
            "bytes": self.pages * PAGE,
            "processes": self.processes,
            "peak_bytes": self.peak * PAGE,
            "peak_processes": self.peak_processes,
        })
    }
}

/// Returns words for the number of processes that memory is of, where they are several.
pub(crate) fn of_several(processes: usize) -> String {
    if processes > 1 { format!(" in {processes} processes") } else { String::new() }
}

/// The programs of a run without Pagetide.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outside {
    programs: Vec<Program>,
    /// The number of programs of which the user was told.
    told: usize,
}

impl Outside {
    /// Notes a process of such a program. Returns the number of the program.
    pub(crate) fn note(&mut self, pid: u32, reason: Reason) -> usize {
        let name = fs::read_link(format!("/proc/{pid}/exe")).map_or_else(
            |_| procfs::small(&format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned(),
            |path| path.to_string_lossy().into_owned(),
        );
        self.note_named(name, pid, reason)
    }

    fn note_named(&mut self, name: String, pid: u32, reason: Reason) -> usize {
        let same = |program: &Program| program.name == name && program.reason == reason;
        if let Some(known) = self.programs.iter().position(same) {
            return known;
        }
        if self.programs.len() < MOST {
            let (pages, processes, peak, peak_processes) = (0, 0, 0, 0);
            self.programs.push(Program { name, pid, reason, pages, processes, peak, peak_processes });
        }
        self.programs.len() - 1
    }

    /// Notes a process that has ended without an answer of our library, if it is not known yet.
    pub(crate) fn note_silent(&mut self, name: &str, pid: u32) {
        if self.programs.iter().all(|program| program.pid != pid) {
            self.note_named(name.to_owned(), pid, Reason::Silent);
        }
    }

    /// Sets the pages charged for each program; `charges` are pairs of the number of a program and pages, one a process.
    pub(crate) fn charge(&mut self, charges: impl Iterator<Item = (usize, u64)>) {
        self.programs.iter_mut().for_each(|program| (program.pages, program.processes) = (0, 0));
        for (number, pages) in charges.filter(|&(_, pages)| pages > 0) {
            let program = &mut self.programs[number];
            (program.pages, program.processes) = (program.pages + pages, program.processes + 1);
        }
        for program in self.programs.iter_mut().filter(|program| program.pages > program.peak) {
            (program.peak, program.peak_processes) = (program.pages, program.processes);
        }
    }

    /// Returns warnings about programs noted since the last call.
    pub(crate) fn news(&mut self) -> Vec<String> {
        let (first, count) = (self.told, self.programs.len());
        self.told = count;
        let mut news: Vec<String> =
            self.programs[first.min(TOLD)..count.min(TOLD)].iter().map(Program::warning).collect();
        if first <= TOLD && count > TOLD {
            news.push("more programs run without Pagetide; they are not named one by one".to_owned());
        }
        news
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Returns all of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter()
    }

    /// Returns lines for the end of a run, about the programs that held most.
    pub(crate) fn summary(&self) -> Vec<String> {
        let mut programs: Vec<&Program> = self.programs.iter().collect();
        programs.sort_by_key(|program| Reverse(program.peak));
        let more = programs.len().saturating_sub(SUMMARIZED);
        let named = programs.iter().take(SUMMARIZED).map(|program| program.summary());
        let rest = (more > 0).then(|| format!("without Pagetide: {more} more programs"));
        named.chain(rest).collect()
    }

    /// Returns all of them as JSON.
    pub(crate) fn json(&self) -> Value {
        self.programs.iter().map(Program::json).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_is_said_once_for_each_reason() {
        let mut outside = Outside::default();
        assert_eq!(outside.note_named("/a".into(), 7, Reason::Static), 0);
        assert_eq!(outside.note_named("/b".into(), 8, Reason::Foreign), 1);
        assert_eq!(outside.note_named("/a".into(), 9, Reason::Static), 0);
        outside.note_silent("b", 8);
        let said = outside.news();
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "/a (pid 7) runs without Pagetide: it is statically linked");
        outside.note_silent("c", 10);
        assert_eq!(
            outside.news(),
            ["c (pid 10) runs without Pagetide: Pagetide's library did not answer in it"]
        );
        outside.charge([(0, 100), (1, 256), (0, 156)].into_iter());
        outside.charge([(1, 3)].into_iter());
        assert_eq!(
            outside.iter().map(|program| (program.pages, program.peak)).collect::<Vec<_>>(),
            [(0, 256), (3, 256), (0, 0)]
        );
        assert_eq!(
            outside.summary()[0],
            "without Pagetide: /a (pid 7), 1 MiB at most in 2 processes: it is statically linked"
        );
        assert!(outside.summary()[1].contains("1 MiB at most: "), "{:?}", outside.summary());
        assert_eq!(outside.json()[1]["peak_bytes"], 1 << 20);
    }

    #[test]
    fn of_many_programs_the_number_is_said() {
        let mut outside = Outside::default();
        let all = TOLD + 30;
        for number in 0..all {
            outside.note_named(number.to_string(), number as u32, Reason::Static);
        }
        assert_eq!((outside.news().len(), outside.news().len()), (TOLD + 1, 0));
        let summary = outside.summary();
        assert_eq!(summary.len(), SUMMARIZED + 1);
        assert!(summary[SUMMARIZED].contains(&format!("{} more", all - SUMMARIZED)), "{summary:?}");
    }

    #[test]
    fn who_gained_privileges_is_told_by_the_kernels_word() {
        let auxv = |secure: u64| [[6u64, 4096], [AT_SECURE, secure], [0, 0]].as_flattened().to_vec();
        let bytes = |secure| auxv(secure).iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        assert!(is_secure(&bytes(1)));
        assert!(!is_secure(&bytes(0)) && !is_secure(&fs::read("/proc/self/auxv").unwrap()));
    }

    #[test]
    fn a_program_whose_environment_was_cleared_is_known() {
        let told = [("LD_PRELOAD", ""), ("A", "1")];
        for environment in [&[][..], &told[..], &told[1..]] {
            let mut command = Command::new("sleep");
            let mut child = command.arg("100").env_clear().envs(environment.iter().copied()).spawn().unwrap();
            // It may be in the midst of exec.
            while Stat::of(child.id()).unwrap().stack == 0 {
                std::thread::yield_now();
            }
            assert_eq!(Reason::of(child.id(), false), Some(Reason::Environment), "{environment:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn that_the_library_does_not_answer_is_said_of_who_had_the_time() {
        let mut child = Command::new("sleep")
            .arg("100")
            .envs([("LD_PRELOAD", "libm.so.6"), (ENVIRONMENT, "/proc/1/fd/3")])
            .spawn()
            .unwrap();
        // In the midst of exec it has no environment.
        for _ in 0..1000 {
            assert_eq!(Reason::of(child.id(), false), None);
        }
        while Stat::of(child.id()).unwrap().state != b'S' {
            std::thread::yield_now();
        }
        assert_eq!(Reason::of(child.id(), true), Some(Reason::Silent));
        child.kill().unwrap();
        assert_eq!(Reason::of(0, true), None);
        child.wait().unwrap();
    }
}
