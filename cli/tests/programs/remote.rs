//! Pages on a Redis server, which each test starts for itself: `redis-server` of Debian, on loopback.

use crate::common::*;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// All that leaves goes to the server: the pool takes a hundredth of the cap.
const POOL: [&str; 2] = ["--max-pool-percent", "1"];

/// A port that is free now, and nobody else's for a while.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What `lost` says of its 64 MiB in the end.
const NONE_LOST: &str = "0 of 16384 pages lost\n";

/// A server that holds what it is given, and nothing on disk.
struct Server {
    port: u16,
    child: Child,
    options: Vec<String>,
    /// What `redis-cli` has to know beside the port: something with TLS only.
    client: Vec<String>,
}

/// A directory of a server's own: a replica writes there, and another server would read it.
fn own_folder(port: u16) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{port}-{}", std::process::id()))
}

impl Server {
    fn start(options: &[&str]) -> Self {
        Self::start_at(free_port(), options, &[])
    }

    /// A server that speaks TLS only, with a certificate of this authority for `localhost`.
    fn start_tls(authority: &Authority) -> Self {
        let (port, file) = (free_port(), |name| authority.file(name));
        let (tls_port, certificate, key) = (port.to_string(), file("server.crt"), file("server.key"));
        let options = ["--port", "0", "--tls-port", &tls_port, "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let (trusted, client) = (file("authority.crt"), ["--tls", "--cacert"]);
        let options = [&options[..], &files, &["--tls-ca-cert-file", &trusted]].concat();
        Self::start_at(port, &options, &[&client[..], &[&trusted, "-h", "localhost"]].concat())
    }

    fn start_at(port: u16, options: &[&str], client: &[&str]) -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let options = owned(options);
        Self { port, child: Self::spawn(port, &options), options, client: owned(client) }
    }

    fn spawn(port: u16, options: &[String]) -> Child {
        let folder = own_folder(port);
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("redis-server");
        command.arg("--dir").arg(&folder);
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let child = command.args(options).stdout(Stdio::null()).spawn().expect("redis-server is installed");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < GUARD, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    fn url(&self) -> String {
        match &*self.client {
            [] => format!("redis://127.0.0.1:{}", self.port),
            _ => format!("rediss://localhost:{}", self.port),
        }
    }

    fn says(&self, words: &[&str]) -> String {
        let mut client = Command::new("redis-cli");
        let output =
            client.args(["-p", &self.port.to_string()]).args(&self.client).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// How many keys it has.
    fn keys(&self) -> usize {
        self.says(&["dbsize"]).parse().unwrap()
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }

    /// Kills it, with all that it holds, and starts it anew.
    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(self.port, &self.options);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(own_folder(self.port));
    }
}

/// An authority that signs certificates, made for one test by `openssl`.
struct Authority(PathBuf);

impl Authority {
    fn create(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let this = Self(folder);
        let make = |words: &[&str], key: &str, certificate: &str| {
            let files = ["-keyout", key, "-out", certificate];
            let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
            let mut command = Command::new("openssl");
            command.current_dir(&this.0).args(request).args(files).args(words);
            let ended = command.output().expect("openssl is installed");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        };
        make(&["-subj", &format!("/CN={name}")], "authority.key", "authority.crt");
        let signed = ["-CA", "authority.crt", "-CAkey", "authority.key", "-subj", "/CN=localhost"];
        let names =
            ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"];
        make(&[&signed[..], &names].concat(), "server.key", "server.crt");
        this
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(memory: &str, server: &Server, options: &[&str], command: &[&str]) -> Command {
    let url = server.url();
    let options: Vec<_> = [&["--remote", &url][..], options].concat();
    pagetide(memory, "", &options, command)
}

/// Reads its memory, of which a quarter fits, so many times, and says which pages were lost.
fn lost(server: &Server, options: &[&str], rounds: &str) -> Command {
    run("16M", server, options, &[&program("lost"), "--mib", "64", "--rounds", rounds])
}

#[test]
fn pages_come_back_from_a_server_as_they_left_and_none_stay_there() {
    let _turn = turn();
    let server = Server::start(&[]);
    let (random, integrity, forks) = (program("incompressible"), program("integrity"), program("forks"));
    let commands: [&[&str]; 3] = [
        &[&random, "--mib", "64", "--threads", "2", "--passes", "1"],
        &[&integrity, "--mib", "40", "--threads", "2", "--ops", "6000", "--dir", "/var/tmp"],
        &[&forks, "--mib", "24"],
    ];
    for command in commands {
        println!("{}", command[0]);
        start(run("32M", &server, &POOL, command)).end().succeeds();
        assert_eq!(server.keys(), 0, "what the run had there is deleted at its end");
    }
    let written = server.says(&["info", "commandstats"]);
    assert!(written.contains("cmdstat_set") && written.contains("cmdstat_getrange"), "{written}");
}

#[test]
fn a_server_that_will_not_do_is_refused_with_what_mends_it() {
    let _turn = turn();
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru", "--requirepass", "secret"]);
    let refused = |url: &str, password: &str, said: &str| {
        let mut command = pagetide("32M", "", &["--remote", url, "--remote-timeout", "1s"], &["true"]);
        let ended = start(match password {
            "" => command,
            _ => {
                command.env("PAGETIDE_REMOTE_PASSWORD", password);
                command
            }
        })
        .end();
        assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
        assert!(ended.stderr.contains("--remote") && ended.stderr.contains(said), "{}", ended.stderr);
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    };
    let url = server.url();
    refused(&url, "", "NOAUTH");
    refused(&url, "wrong", "Password authentication failed");
    refused(&url, "secret", "config set maxmemory-policy noeviction");
    refused(&url.replace("://", "://:secret@"), "", "PAGETIDE_REMOTE_PASSWORD");
    refused("redis://127.0.0.1:1", "", "cannot reach");
    refused("127.0.0.1", "", "redis://HOST:PORT");
}

#[test]
fn over_tls_a_server_is_used_if_its_certificate_is_trusted() {
    let _turn = turn();
    let (authority, other) = (Authority::create("authority"), Authority::create("other"));
    let (encrypted, plain) = (Server::start_tls(&authority), Server::start(&[]));
    let trusting = |authority: &Authority, mut command: Command| {
        start({
            command.env("SSL_CERT_FILE", authority.file("authority.crt"));
            command
        })
        .end()
    };
    assert_eq!(trusting(&authority, lost(&encrypted, &POOL, "1")).succeeds(), NONE_LOST);
    assert!(encrypted.says(&["info", "commandstats"]).contains("cmdstat_set"), "pages went there");
    assert_eq!(encrypted.keys(), 0);
    let url = encrypted.url();
    let cases = [
        (&other, url.clone(), "certificate"),
        (&authority, url.replace("localhost", "127.0.0.1"), "certificate"),
        (&authority, url.replace("rediss:", "redis:"), "cannot reach"),
        (&authority, plain.url().replace("redis:", "rediss:"), "cannot reach"),
    ];
    for (authority, url, said) in cases {
        let ended = trusting(
            authority,
            pagetide("16M", "", &["--remote", &url, "--remote-timeout", "2s"], &["true"]),
        );
        assert_eq!(ended.status.code(), Some(125), "{url}: {}", ended.stderr);
        assert!(ended.stderr.contains("--remote") && ended.stderr.contains(said), "{url}: {}", ended.stderr);
    }
}

#[test]
fn beside_a_swap_file_a_server_takes_what_that_has_no_room_for() {
    let _turn = turn();
    let server = Server::start(&[]);
    let stats = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("beside-{}.json", std::process::id()));
    let (random, forks) = (program("incompressible"), program("forks"));
    let commands: [&[&str]; 2] =
        [&[&random, "--mib", "64", "--threads", "2", "--passes", "1"], &[&forks, "--mib", "24"]];
    for command in commands {
        let options = [&POOL[..], &["--swap-size", "6M", "--stats", stats.to_str().unwrap()]].concat();
        start(run("32M", &server, &options, command)).end().succeeds();
        assert_eq!(server.keys(), 0, "what the run had there is deleted at its end");
        let said: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        let (most, peak) = (&said["swap_file"]["may_grow_to"], &said["bytes"]["peak"]);
        assert_eq!(most, 6 << 20, "{said}");
        let [all, on_server] = ["disk", "on_server"].map(|name| peak[name].as_u64().unwrap());
        assert!(on_server > 0 && said["remote"]["written_bytes"].as_u64().unwrap() > 0, "{said}");
        assert!(all > on_server, "some of it is in the file: {said}");
    }
    let small = start(run("32M", &server, &["--swap-size", "1M"], &["true"])).end();
    assert!(small.status.code() == Some(125) && small.stderr.contains("2 MiB at least"), "{}", small.stderr);
}

#[test]
fn beside_a_swap_file_a_server_that_stands_still_loses_nothing() {
    let _turn = turn();
    let server = Server::start(&[]);
    let options = [&POOL[..], &["--swap-size", "24M"]].concat();
    let run = start(lost(&server, &options, "2"));
    run.until("pages on the server", || server.keys() > 20);
    server.signal("-STOP");
    std::thread::sleep(Duration::from_secs(3));
    server.signal("-CONT");
    assert_eq!(run.end().succeeds(), NONE_LOST);
    assert_eq!(server.keys(), 0);
}

#[test]
fn the_program_does_not_see_the_password() {
    let _turn = turn();
    let server = Server::start(&["--requirepass", "secret"]);
    let shell = "tr '\\0' '\\n' < /proc/$PPID/cmdline; env; echo";
    let mut command = run("64M", &server, &[], &["sh", "-c", shell]);
    command.env("PAGETIDE_REMOTE_PASSWORD", "secret");
    let said = start(command).end().succeeds();
    assert!(said.contains("--remote") && !said.contains("secret"), "{said}");
}

#[test]
fn a_server_that_stands_still_is_waited_for() {
    let _turn = turn();
    let server = Server::start(&[]);
    let run = start(lost(&server, &POOL, "2"));
    run.until("pages on the server", || server.keys() > 20);
    server.signal("-STOP");
    std::thread::sleep(Duration::from_secs(5));
    server.signal("-CONT");
    let ended = run.end();
    let said = ended.stderr.clone();
    assert_eq!(ended.succeeds(), NONE_LOST);
    assert!(said.contains("does not answer") && said.contains("answers again"), "{said}");
}

#[test]
fn a_replica_that_stands_still_or_is_gone_costs_no_page() {
    let _turn = turn();
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let mut replica = Server::start(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let started = Instant::now();
    while !server.says(&["info", "replication"]).contains("state=online") {
        assert!(started.elapsed() < GUARD, "the replica does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = start(lost(&server, &POOL, "2"));
    run.until("pages on both servers", || replica.keys() > 20);
    // As long as it is connected, no page counts as written that it has not.
    replica.signal("-STOP");
    std::thread::sleep(Duration::from_secs(3));
    replica.child.kill().unwrap();
    assert_eq!(run.end().succeeds(), NONE_LOST);
    assert_eq!(server.keys(), 0);
    assert!(server.says(&["info", "commandstats"]).contains("cmdstat_wait"), "no replica was waited for");
}

#[test]
fn pages_of_a_server_that_comes_back_empty_are_lost_and_no_others() {
    let _turn = turn();
    let mut server = Server::start(&[]);
    let run = start(lost(&server, &POOL, "2"));
    run.until("pages on the server", || run.said()[1].contains("checking"));
    server.restart();
    let ended = run.end();
    let said = ended.stderr.clone();
    let done = ended.succeeds();
    let lost: usize = done.split(' ').next().unwrap().parse().unwrap();
    assert!(lost > 0 && lost < 16384, "{done}{said}");
    assert!(said.contains("on the remote server cannot be read"), "{said}");
}

/// A program that lost pages, and found nowhere else to put what it made of them: it ends for want of memory, and says so.
fn ends_without_a_place(ended: Ended, why: &str) {
    let said = ended.stderr;
    assert_eq!(ended.status.code(), Some(137), "{}{said}", ended.stdout);
    assert!(said.contains(why) && said.contains("out of memory: nothing more can leave it"), "{said}");
    assert!(said.contains("is lost: read error") && said.contains("--remote"), "{said}");
    assert!(!said.contains("swap file"), "{said}");
}

#[test]
fn a_server_that_is_gone_for_good_ends_what_needs_it() {
    let _turn = turn();
    let server = Server::start(&[]);
    let options = [&POOL[..], &["--remote-timeout", "2s"]].concat();
    let run = start(lost(&server, &options, "2"));
    run.until("pages on the server", || run.said()[1].contains("checking"));
    server.signal("-KILL");
    ends_without_a_place(run.end(), "the remote server does not answer");
}

#[test]
fn a_run_ends_though_the_server_is_silent() {
    let _turn = turn();
    let server = Server::start(&[]);
    let run = start(lost(&server, &POOL, "1000"));
    run.until("pages on the server", || run.said()[1].contains("checking"));
    server.signal("-STOP");
    run.until("silence", || run.said()[1].contains("does not answer"));
    assert!(Command::new("kill").args(["-TERM", &run.child.id().to_string()]).status().unwrap().success());
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    server.signal("-CONT");
}

#[test]
fn who_outlives_both_launcher_and_connection_hangs_on_no_page() {
    let _turn = turn();
    let server = Server::start(&[]);
    let starts = ["sh", "-c", "\"$@\"; exit", "sh", &program("lost"), "--rounds", "20"];
    let mut run = start(run("24M", &server, &POOL, &starts));
    run.until("pages on the server", || run.said()[1].contains("checking"));
    let (group, connected) = (run.child.id(), connected(&run).expect("a process that has the connection"));
    let pids = [connected.to_string(), group.to_string()];
    assert!(Command::new("kill").arg("-KILL").args(&pids).status().unwrap().success());
    run.child.wait().unwrap();
    run.until("its end", || living(group).is_empty());
    let said = &run.said()[1];
    assert!(said.contains("is lost: read error"), "{said}");
}

#[test]
fn a_server_that_is_full_takes_no_pages_until_it_has_room() {
    let _turn = turn();
    let server = Server::start(&[]);
    let used: u64 = server
        .says(&["info", "memory"])
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    server.says(&["config", "set", "maxmemory", &(used + (6 << 20)).to_string()]);
    // A half of what it has does not compress, and the pool has room for the rest.
    let integrity = program("integrity");
    let command = [&*integrity, "--mib", "40", "--threads", "1", "--ops", "5000", "--dir", "/var/tmp"];
    let run = start(run("32M", &server, &["--max-pool-percent", "20"], &command));
    run.until("a full server", || run.said()[1].contains("the remote server is full"));
    server.says(&["config", "set", "maxmemory", "0"]);
    run.end().succeeds();
    assert_eq!(server.keys(), 0);
}

/// The pid of the process of a run that has the connection.
fn connected(run: &Run) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.child.id())).ok()?;
    let is_remote = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "pagetide-remote")
    };
    children.split_ascii_whitespace().find(is_remote)?.parse().ok()
}

#[test]
fn without_the_process_that_has_the_connection_pages_there_are_lost() {
    let _turn = turn();
    let server = Server::start(&[]);
    let run = start(lost(&server, &POOL, "2"));
    run.until("pages on the server", || run.said()[1].contains("checking"));
    let pid = connected(&run).expect("a process that has the connection");
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    ends_without_a_place(run.end(), "the process of the remote tier has ended");
    // Nobody deletes what the run had: `pagetide remote gc` does, once it is known to be over.
    let left = server.keys();
    assert!(left > 1);
    let gc = || {
        start({
            let mut command = Command::new(PAGETIDE);
            command.args(["remote", "gc", &server.url()]);
            command
        })
    };
    assert!(gc().end().succeeds().starts_with("0 values of runs that are over deleted"));
    let sign = server.says(&["--scan", "--pattern", "pagetide-run:*"]);
    server.says(&["del", &sign]);
    let said = gc().end().succeeds();
    assert!(said.starts_with(&format!("{} values", left - 1)), "{said}");
    assert_eq!(server.keys(), 0);
}

#[test]
fn who_outlives_a_killed_launcher_keeps_its_pages_on_the_server() {
    let _turn = turn();
    let server = Server::start(&[]);
    let starts = ["sh", "-c", "\"$@\"; exit", "sh", &python(), &job("orphan.py")];
    let mut command = run("40M", &server, &[&POOL[..], &["--remote-size", "1G"]].concat(), &starts);
    command.stdin(Stdio::piped());
    let mut run = start(command);
    run.until("its pages", || run.said()[0] == "ready\n");
    outlives_launcher(&mut run);
    run.until("an empty server", || server.keys() == 0);
}

#[test]
fn the_doctor_says_what_a_server_is_and_what_a_fault_costs() {
    let server = Server::start(&["--maxmemory", "100mb"]);
    let doctor = |words: &[&str]| Command::new(PAGETIDE).arg("doctor").args(words).output().unwrap();
    let said = String::from_utf8(doctor(&["--remote", &server.url()]).stdout).unwrap();
    for wanted in ["redis 7", "noeviction", "of 100 MiB", "for a page that is there", "without replicas"] {
        assert!(said.contains(wanted), "no {wanted:?} in\n{said}");
    }
    assert_eq!(server.keys(), 0);
    let said = String::from_utf8(doctor(&["--remote", "redis://127.0.0.1:1"]).stdout).unwrap();
    assert!(said.contains("no page can go there"), "{said}");
}
