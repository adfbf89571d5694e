//! What help and manual pages say beside the options of each command.

use super::section::{Body, Section};

const fn examples(lines: &'static [(&'static str, &'static str)]) -> Section {
    Section { title: "Examples", in_help: true, body: Body::Examples(lines) }
}

const fn exit_status(terms: &'static [(&'static str, &'static str)]) -> Section {
    Section { title: "Exit status", in_help: true, body: Body::Terms(terms) }
}

const fn see_also(terms: &'static [&'static str]) -> Section {
    Section { title: "See also", in_help: false, body: Body::Text(terms) }
}

/// The sections of `pagetide(1)` that `pagetide --help` shows.
pub(super) const EXAMPLES: &[Section] = &[examples(&[
    ("pagetide run --memory 512M -- python3 train.py", "Run a job in 512 MiB:"),
    ("pagetide stat --watch 1", "See how it fares, again every second:"),
    ("pagetide doctor", "Ask whether it works here, and what to mend:"),
])];

/// The sections of `pagetide(1)` that only the manual has.
const GENERAL: &[Section] = &[
    Section {
        title: "Permission",
        in_help: false,
        body: Body::Text(&[
            "Pagetide needs a full userfaultfd, one that serves faults from system calls too. One of these gives it: \
             root or CAP_SYS_PTRACE, in every process that is to swap; the sysctl `vm.unprivileged_userfaultfd` set to \
             1; read and write access to `/dev/userfaultfd` (Linux 6.1); a broker that hands out that device. `pagetide doctor` \
             says which of them are there, and `sudo pagetide setup` gives permission once and for good.",
            "Linux 5.7 or later, x86-64 and glibc are needed. UFFDIO_POISON (6.6), PAGEMAP_SCAN (6.7) and UFFDIO_MOVE \
             (6.8) are used where they are.",
        ]),
    },
    Section {
        title: "Files",
        in_help: false,
        body: Body::Terms(&[
            (
                "`libpagetide_preload.so`",
                "The library that is preloaded, of the same version. It lies beside `pagetide` or in \
                 `../lib/pagetide/` from there. Where it is in neither place `pagetide` writes the one that it carries to \
                 `pagetide/` in `/var/cache` (for root), `$XDG_CACHE_HOME`, `~/.cache` or `$XDG_RUNTIME_DIR`.",
            ),
            (
                "The swap file",
                "Lies in `--swap-dir` without a name, with mode 0600, and is gone when the last process that has it open \
                 is. It is encrypted under a random key that is never written, unless `--no-encrypt` is given.",
            ),
        ]),
    },
    Section {
        title: "Environment",
        in_help: false,
        body: Body::Terms(&[
            ("`TMPDIR`", "First default of `--swap-dir`."),
            ("`PAGETIDE_PRELOAD`", "Path of the library, if it is not where `pagetide` looks for it."),
            (
                "`PAGETIDE_KEEP`",
                "0: programs that are started with an environment of their own get nothing added to it, and run without \
                 Pagetide if what names the run is missing there. Else that is put back.",
            ),
            (
                "`PAGETIDE_DUMP`",
                "If set, a fatal signal brings everything in before it ends the program, beyond the cap, so that its core \
                 dump is whole.",
            ),
            (
                "`PAGETIDE_REMOTE_PASSWORD`",
                "The password of the server that `--remote` names. CMD does not see it.",
            ),
            ("`PAGETIDE_BROKER`", "Path of the broker's socket, if it is not `/run/pagetide/broker.socket`."),
            ("`PAGETIDE_VERBOSE`", "If set, a process that cannot join its run says why."),
            (
                "`PAGETIDE_LOG`",
                "LEVEL or LEVEL:FILE, with a level of `off`, `error`, `info` or `debug`: what the launcher and the engines \
                 write down of what happens.",
            ),
            (
                "`LD_PRELOAD`",
                "What is there stays in front of Pagetide's library: an allocator of the user's own wins.",
            ),
            (
                "`PAGETIDE_GROUP`, `PAGETIDE_RUN`",
                "Set for CMD: the run, and where its launcher hands out descriptors. Do not set them.",
            ),
            (
                "`PAGETIDE_MASK`",
                "For tests. Ways in which pages are not to leave or come back: a comma-separated list of `remap`, `move`, \
                 `copy`, `ring`, `scan` and `pool`.",
            ),
            ("`PAGETIDE_FAIL`", "For tests. NAME:N makes every N-th occasion of one kind fail."),
        ]),
    },
    Section {
        title: "Bugs",
        in_help: false,
        body: Body::Text(&[
            "Calls that go past the C library and unmap, move or drop managed memory, or fork, are not noticed. vmsplice \
             copies, and sockets have no SO_ZEROCOPY. Core dumps have holes where pages are out. At most 250 processes may \
             belong to a run at one time. `docs/limits.md` of the source has all limits.",
        ]),
    },
    see_also(&[
        "`pagetide-run(1)`, `pagetide-top(1)`, `pagetide-stat(1)`, `pagetide-dump(1)`, `pagetide-set(1)`, `pagetide-swapoff(1)`, \
         `pagetide-swapon(1)`, `pagetide-replay(1)`, `pagetide-doctor(1)`, `pagetide-setup(1)`, `pagetide-broker(1)`, \
         `userfaultfd(2)`, `mremap(2)`, `cgroups(7)`, `ld.so(8)`",
    ]),
];

/// The sections of `pagetide-run(1)`.
pub(super) const RUN: &[Section] = &[
    Section {
        title: "Values",
        in_help: true,
        body: Body::Terms(&[
            (
                "SIZE",
                "A number with K, M, G or T (binary), or a percentage of the memory that this process may have: the \
                 smallest limit on its cgroup path, or the machine's memory. Without a unit it is bytes.",
            ),
            ("TIME", "A number with ms, s, m or h. Without a unit it is seconds."),
        ]),
    },
    Section {
        title: "Signals",
        in_help: false,
        body: Body::Text(&[
            "A signal that is sent to the launcher is sent on to CMD. When CMD is stopped the launcher stops too; \
             continuing either continues both. When the launcher is killed, so is CMD.",
        ]),
    },
    exit_status(&[
        ("that of CMD", "CMD exited."),
        ("128 + N", "Signal N ended CMD. 137 is also what `--strict` ends a run with."),
        ("125", "Pagetide failed, was used wrongly, or ended the run because of `--max-stall`."),
        ("126", "CMD was found and cannot be executed."),
        ("127", "CMD was not found."),
    ]),
    examples(&[
        ("pagetide run --memory 512M -- python3 train.py", "In 512 MiB, with a swap file in /var/tmp:"),
        (
            "pagetide run -m 60% --swap-dir /mnt/nvme --stats run.json -- make -j4",
            "On a disk of its own, with statistics:",
        ),
        ("pagetide run -m 2G --no-disk --compressor zstd -- ./simulate", "In compressed memory alone:"),
        (
            "pagetide run -m 512M --remote redis://cache.internal:6379 -- python3 train.py",
            "Where there is no disk, in the memory of another machine:",
        ),
        ("pagetide run -m 1G --max-stall 60s -- ./job", "Given up when it only waits for its pages:"),
    ]),
    see_also(&[
        "`pagetide(1)`, `pagetide-stat(1)`, `pagetide-dump(1)`, `pagetide-set(1)`, `pagetide-replay(1)`",
    ]),
];

/// The sections of `pagetide-stat(1)`.
pub(super) const STAT: &[Section] = &[
    exit_status(&[
        ("0", "A run was shown."),
        ("1", "There is no such run, or there are several and none was named."),
        ("125", "Wrong usage."),
    ]),
    examples(&[
        ("pagetide stat 1234", "The run of launcher 1234:"),
        ("pagetide stat --watch 1", "Again every second:"),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`"]),
];

/// The sections of `pagetide-report(1)`.
pub(super) const REPORT: &[Section] = &[
    exit_status(&[
        ("0", "The page was written; lines that are no statistics are left out, with a message."),
        ("1", "FILE.jsonl has no statistics, or cannot be read, or the page cannot be written."),
        ("125", "Wrong usage."),
    ]),
    examples(&[
        ("pagetide run -m 512M --stats job.jsonl -- python3 job.py", "Keep what a run was, every second:"),
        ("pagetide report job.jsonl", "Make job.html of it:"),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`, `pagetide-replay(1)`"]),
];

/// The sections of `pagetide-jupyter(1)`.
pub(super) const JUPYTER: &[Section] = &[
    exit_status(&[
        ("0", "The kernel was added, or removed."),
        (
            "125",
            "Wrong usage; PROGRAM has no ipykernel; the folder cannot be written, or has no kernel of Pagetide.",
        ),
    ]),
    examples(&[
        ("pagetide jupyter install --memory 4G", "Notebooks of at most 4 GiB:"),
        ("pagetide jupyter remove", "Take the kernel away:"),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`"]),
];

/// The sections of `pagetide-remote(1)`.
pub(super) const REMOTE: &[Section] = &[
    exit_status(&[
        ("0", "All was looked at; what was deleted is said."),
        ("1", "The server cannot be reached."),
        ("125", "Wrong usage."),
    ]),
    examples(&[("pagetide remote gc redis://cache.internal:6379", "Delete what killed runs have left:")]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`, `pagetide-doctor(1)`"]),
];

/// The sections of `pagetide-ps(1)`.
pub(super) const PS: &[Section] = &[
    exit_status(&[("0", "The runs were shown, or there is none."), ("125", "Wrong usage.")]),
    see_also(&["`pagetide(1)`, `pagetide-stat(1)`"]),
];

/// The sections of `pagetide-top(1)`.
pub(super) const TOP: &[Section] = &[
    Section {
        title: "Keys",
        in_help: true,
        body: Body::Terms(&[
            ("`q`, `Esc`", "Leave."),
            ("`m`", "Change the cap, after a confirmation."),
            ("`s`", "Change a setting of `pagetide set`; `Tab` goes to the next one."),
            ("`?`", "Say what is shown."),
        ]),
    },
    Section {
        title: "Environment",
        in_help: false,
        body: Body::Terms(&[(
            "`NO_COLOR`",
            "If set, nothing is coloured. Fillings tell the parts apart in any case.",
        )]),
    },
    exit_status(&[
        ("0", "The run has ended, or was left."),
        ("1", "There is no such run, or there are several and none was named."),
        ("125", "Wrong usage, or standard output is no terminal."),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-stat(1)`, `pagetide-set(1)`"]),
];

/// The sections of `pagetide-dump(1)`.
pub(super) const DUMP: &[Section] = &[
    exit_status(&[
        ("0", "A run was shown."),
        ("1", "There is no such run, process or page, or there are several runs and none was named."),
        ("125", "Wrong usage."),
    ]),
    examples(&[
        ("pagetide dump", "The run of this session:"),
        ("pagetide dump 1234 --page 7f0012345000", "A page of the run or process 1234:"),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-stat(1)`"]),
];

/// What may be changed of a run, with the values that each may have.
const SETTINGS: Section = Section {
    title: "Settings",
    in_help: true,
    body: Body::Terms(&[
        (
            "`memory=SIZE`",
            "The cap on all processes of the run: `512M`, `1.5G`, `60%`, 16M at least. What is in memory above a lower cap \
             leaves first; a program goes on meanwhile.",
        ),
        ("`enabled=on|off`", "Whether pages are stored in the pool. What is there stays readable."),
        ("`compressor=NAME`", "`lzpage`, `lz4`, `zstd`, `zstd:LEVEL` (-7 to 19) or `none`, from now on."),
        (
            "`recompressor=NAME`",
            "The same for pages that the compressor refuses, while the pool is small or they can go nowhere else; `none`: not at all.",
        ),
        ("`max_compression_ratio=N`", "Pages that compress to more than N percent do not go to the pool."),
        ("`max_pool_percent=N`", "Share of the cap that the pool may take at most, 1 to 90."),
        (
            "`accept_threshold_percent=N`",
            "A pool that was full takes pages again below N percent of its limit.",
        ),
        ("`shrinker=SCHEME`", "`second-chance`, `decay` or `none`, as of `run`."),
        ("`fixed_share=on|off`", "Whether the pool may take its share whatever misses cost."),
    ]),
};

/// The sections of `pagetide-set(1)`.
pub(super) const SET: &[Section] = &[
    SETTINGS,
    exit_status(&[
        ("0", "The changes were made, or the values shown."),
        ("1", "There is no such run, or there are several and none was named."),
        ("2", "There is no such setting, or no such value."),
        ("125", "Wrong usage."),
    ]),
    examples(&[(
        "pagetide set compressor=zstd:3 max_pool_percent=50",
        "Compress better, in half of the cap:",
    )]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`"]),
];

/// The sections of `pagetide-swapoff(1)`.
pub(super) const SWAPOFF: &[Section] = &[
    exit_status(&[
        ("0", "Nothing is left in the swap file."),
        ("1", "There is no such run, it has no swap file, or there is no room: the file stays in use."),
        ("125", "Wrong usage."),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-swapon(1)`"]),
];

/// The sections of `pagetide-swapon(1)`.
pub(super) const SWAPON: &[Section] = &[
    exit_status(&[
        ("0", "The swap file is in use."),
        ("1", "There is no such run, or it has no swap file."),
        ("125", "Wrong usage."),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-swapoff(1)`"]),
];

/// The sections of `pagetide-replay(1)`.
pub(super) const REPLAY: &[Section] = &[
    exit_status(&[
        ("0", "The trace was replayed; one that is cut off or damaged, up to there."),
        ("1", "FILE is no trace, or cannot be read or written."),
        ("125", "Wrong usage."),
    ]),
    examples(&[
        ("pagetide run -m 200M --trace job.trace -- python3 job.py", "Record in little memory:"),
        (
            "pagetide replay job.trace -m 300M --plot job.svg",
            "Replay in more, and draw misses against memory:",
        ),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-run(1)`"]),
];

/// The sections of `pagetide-doctor(1)`.
pub(super) const DOCTOR: &[Section] = &[
    exit_status(&[
        ("0", "A run is possible here."),
        ("1", "No run is possible here."),
        ("125", "Wrong usage, or `--fix` could not mend it."),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-setup(1)`"]),
];

/// The sections of `pagetide-setup(1)`.
pub(super) const SETUP: &[Section] = &[
    Section {
        title: "Files",
        in_help: false,
        body: Body::Terms(&[
            ("`/etc/udev/rules.d/60-pagetide.rules`", "Gives `/dev/userfaultfd` to the group, at each boot."),
            (
                "`/etc/systemd/system/pagetide-broker.socket`, `pagetide-broker.service`",
                "Have systemd start the broker when somebody asks.",
            ),
            (
                "`/usr/local/lib/pagetide/pagetide`",
                "A copy of this program for the broker, made if the program lies where another user than root may change it.",
            ),
        ]),
    },
    exit_status(&[
        ("0", "All of it is there; or, with `--undo`, gone."),
        ("125", "Wrong usage, not root, or a step failed: which one is said."),
    ]),
    examples(&[
        ("sudo pagetide setup", "Permission for yourself:"),
        ("sudo pagetide setup --user ada --user grace", "For others:"),
        ("sudo pagetide setup --undo", "As it was before:"),
    ]),
    see_also(&["`pagetide(1)`, `pagetide-broker(1)`, `pagetide-doctor(1)`, `udev(7)`, `systemd.socket(5)`"]),
];

/// The sections of `pagetide-broker(1)`.
pub(super) const BROKER: &[Section] = &[
    exit_status(&[
        ("0", "A broker that the service manager started: nobody has come for a minute."),
        ("125", "Wrong usage, the device cannot be opened, or the socket cannot be made."),
    ]),
    examples(&[("pagetide broker", "Without systemd, as root:")]),
    see_also(&["`pagetide(1)`, `pagetide-setup(1)`, `unix(7)`, `sd_listen_fds(3)`"]),
];

/// Returns the sections of the manual page of a command, of `pagetide` itself by that name.
pub fn sections(command: &str) -> Vec<Section> {
    match command {
        "run" => RUN,
        "ps" => PS,
        "stat" => STAT,
        "top" => TOP,
        "dump" => DUMP,
        "set" => SET,
        "swapoff" => SWAPOFF,
        "swapon" => SWAPON,
        "report" => REPORT,
        "jupyter" => JUPYTER,
        "replay" => REPLAY,
        "doctor" => DOCTOR,
        "setup" => SETUP,
        "broker" => BROKER,
        _ => {
            let (see_also, general) = GENERAL.split_last().expect("it has sections");
            return [general, EXAMPLES, &[*see_also]].concat();
        }
    }
    .to_vec()
}
