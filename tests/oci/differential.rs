//! Random bundles and command lines by brig and by runc, each in a fresh root. Statuses, streams, state, cgroups, and
//! the container's view of itself must be the same lines in the same order. The bundles follow from a seed, which every
//! failure names.
//!
//! `BRIG_DIFFERENTIAL_SEED` is another seed, `BRIG_DIFFERENTIAL_COUNT` another number of bundles,
//! `BRIG_DIFFERENTIAL_ONLY` runs one of them. `observed` removes the intended differences (docs/oci.md); `bundles` has
//! the choices.

mod bundles;
mod console;
mod observed;

use crate::beside::has_runc;
use crate::support::{Lab, finish};
use bundles::{Flow, Plan};
use console::Console;
use observed::{Container, groups};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bundles of an ordinary run: on two idle cores, less than 40 seconds.
const COUNT: u64 = 70;
/// The seed of an ordinary run.
const SEED: u64 = 19;
/// The number of bundles that run in parallel.
const THREADS: usize = 3;
/// The time limit for a container's program, on a busy machine.
const END: Duration = Duration::from_secs(60);

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is not a number")))
}

/// Numbers that follow from a seed: splitmix64.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of so many.
    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// True once in so many times.
    pub fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// Each of these with the probability of one half.
    pub fn some_of<'a>(&mut self, all: &[&'a str]) -> Vec<&'a str> {
        all.iter().filter(|_| self.once_in(2)).copied().collect()
    }
}

/// The runtime that runs a bundle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Brig,
    Runc,
}

/// A bundle under one of the runtimes.
struct Trial {
    lab: Lab,
    runtime: Runtime,
    seen: Vec<String>,
    /// The runtime's complaints, which are not compared.
    words: Vec<String>,
}

impl Trial {
    fn command(&self, arguments: &[&str]) -> Command {
        let ours = self.lab.command(arguments); // writes config.json
        if self.runtime == Runtime::Brig {
            return ours;
        }
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.lab.path().join("runc")).args(arguments);
        command.current_dir(self.lab.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command into files, since a container may keep its output open; returns its status.
    fn run(&mut self, arguments: &[&str]) -> i32 {
        let file = |name: &str| File::options().append(true).create(true).open(self.lab.path().join(name)).unwrap();
        let mut command = self.command(arguments);
        command.stdout(file("out")).stderr(file("err"));
        let status = command.status().unwrap().code().unwrap_or(-1);
        self.ended(arguments, status)
    }

    fn ended(&mut self, arguments: &[&str], status: i32) -> i32 {
        let verb = arguments.iter().find(|word| !word.starts_with('-')).unwrap_or(&"");
        self.seen.push(format!("{verb} ends with {status}"));
        status
    }

    /// Runs a command in the foreground of a terminal; the container has a terminal too.
    fn run_in_terminal(&mut self, arguments: &[&str]) -> i32 {
        let command = self.command(arguments);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
        let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
        let line = format!("exec {} >> out 2>> err", words.join(" "));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).current_dir(self.lab.path()).stdout(Stdio::null());
        // The end of its input would be typed into the container's terminal.
        let mut child = script.stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let status = child.wait().unwrap().code().unwrap_or(-1);
        drop(input);
        self.ended(arguments, status)
    }

    /// Runs `create` or `run --detach`. A terminal of the container is read from its socket.
    fn detach(&mut self, plan: &Plan, verb: &[&str]) -> (i32, Option<Console>) {
        let console = plan.terminal.then(|| Console::listen(self.lab.path()));
        let socket: &[&str] = if plan.terminal { &["--console-socket", "console"] } else { &[] };
        let id = self.id();
        let all = [&plan.global()[..], verb, &["--pid-file", "pid"], socket, &plan.options(), &[id.as_str()]].concat();
        let status = self.run(&all);
        (status, console)
    }

    /// Adds the standard output of a verb, without numbers that differ in each run. Returns its exit status.
    fn print(&mut self, arguments: &[&str]) -> i32 {
        let done = finish(&mut self.command(arguments));
        self.ended(arguments, done.status);
        for line in observed::printed(arguments[0], &done.out, &self.lab) {
            self.seen.push(format!("{} prints {line}", arguments[0]));
        }
        done.status
    }

    fn id(&self) -> String {
        self.lab.id.clone()
    }

    fn pid(&self) -> String {
        std::fs::read_to_string(self.lab.path().join("pid")).unwrap_or_default()
    }

    /// Adds the output of `state`.
    fn look(&mut self) {
        let done = finish(&mut self.command(&["state", &self.id()]));
        let state = observed::state(&done.out, &self.lab);
        self.seen.push(format!("state ends with {}: {state}", done.status));
    }

    /// Waits for the end of the first process.
    fn wait(&self, pid: &str) {
        let end = Instant::now() + END;
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        while runs() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Whether a signal ends the first process. In a new PID namespace it gets no signal that it does not handle.
    fn is_killed_by(&self, words: &[&str]) -> bool {
        let namespaces = self.lab.config["linux"]["namespaces"].as_array().unwrap();
        let is_first = namespaces.iter().any(|each| each["type"] == "pid");
        !is_first && !words.iter().any(|word| ["0", "NOPE", "WINCH"].contains(word))
    }

    /// Carries out the plan; returns the observed lines.
    fn carry_out(mut self, plan: &Plan) -> (Vec<String>, Vec<String>) {
        let id = self.id();
        let mut consoles = Vec::new();
        match &plan.flow {
            Flow::Run => {
                let all = [&plan.global()[..], &["run"], &plan.options(), &[id.as_str()]].concat();
                _ = if plan.terminal { self.run_in_terminal(&all) } else { self.run(&all) };
            }
            Flow::Start => {
                let (status, console) = self.detach(plan, &["create"]);
                consoles.extend(console);
                if status == 0 {
                    let pid = self.pid();
                    self.look();
                    self.seen.extend(groups(&pid));
                    self.run(&["start", &id]);
                    self.wait(&pid);
                    self.look();
                    self.run(&["start", &id]);
                }
            }
            Flow::Exec(options) => {
                let (status, console) = self.detach(plan, &["run", "--detach"]);
                consoles.extend(console);
                if status == 0 {
                    let pid = self.pid();
                    self.look();
                    self.seen.extend(groups(&pid));
                    let options: Vec<&str> = options.iter().map(String::as_str).collect();
                    let probe = "/bin/probe";
                    std::fs::write(self.lab.root(probe), format!("#!/bin/sh\n{}", bundles::PROBE)).unwrap();
                    finish(Command::new("chmod").arg("755").arg(self.lab.root(probe))).succeeded();
                    let all = [&["exec"], &options[..], &[id.as_str(), probe]].concat();
                    if options.contains(&"--tty") {
                        self.run_in_terminal(&all)
                    } else {
                        self.run(&all)
                    };
                    self.run(&["exec", &id, "/nope"]);
                    self.run(&["kill", &id, "KILL"]);
                    self.wait(&pid);
                    self.look();
                }
            }
            Flow::Verbs(all) => {
                let (status, console) = self.detach(plan, &["run", "--detach"]);
                consoles.extend(console);
                if status == 0 {
                    let pid = self.pid();
                    let (mut is_paused, mut has_old_limits) = (false, true);
                    for words in all {
                        let words: Vec<&str> =
                            words.iter().map(|word| if word == bundles::ID { &id } else { word.as_str() }).collect();
                        // Otherwise it ends some time later.
                        if words[0] == "kill" && self.is_killed_by(&words) {
                            continue;
                        }
                        // docs/oci.md: runc 1.1 thaws it.
                        if is_paused && words.contains(&"--all") {
                            continue;
                        }
                        let status = if words.contains(&"--detach") {
                            self.run(&words) // its process keeps the streams
                        } else {
                            self.print(&words)
                        };
                        match (words[0], status) {
                            ("pause", 0) => is_paused = true,
                            ("resume", 0) => is_paused = false,
                            // docs/oci.md: runc 1.1 leaves what it has changed before.
                            ("update", 1..) => has_old_limits = false,
                            _ => {}
                        }
                        if has_old_limits {
                            self.seen.extend(groups(&pid));
                        }
                    }
                    self.look();
                    // SIGKILL does not reach a process of a frozen v1 group.
                    self.print(&["resume", &id]);
                    self.run(&["kill", &id, "KILL"]);
                    self.wait(&pid);
                    self.look();
                }
            }
        }
        self.run(&["delete", "--force", &id]);
        self.run(&["delete", &id]);
        // The output of the container's first terminal.
        for console in consoles {
            let text = console.text();
            File::options()
                .append(true)
                .create(true)
                .open(self.lab.path().join("out"))
                .unwrap()
                .write_all(&text)
                .unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(self.lab.path().join(name)).unwrap_or_default();
        let (out, err) = (read("out"), read("err"));
        // runc 1.1 changes its foreground terminal right after the start: earlier output sometimes has carriage
        // returns.
        if self.runtime == Runtime::Brig || !plan.in_foreground() {
            self.seen.push(format!("lines end with a return: {}", out.contains('\r')));
        } else {
            self.seen.push("lines end with a return: false".into());
        }
        let container = Container::of(&self.lab, matches!(plan.flow, Flow::Exec(_)));
        self.words = err
            .lines()
            .filter(|line| line.contains("level=") || line.starts_with("panic:"))
            .map(|line| observed::replaced(line, &self.lab))
            .collect();
        self.seen.extend(container.lines(&out));
        self.seen.extend(container.complaints(&err));
        (self.seen, self.words)
    }
}

/// The result of one runtime for a bundle.
struct Observation {
    seen: Vec<String>,
    words: Vec<String>,
    plan: Plan,
    config: String,
}

/// Runs a bundle; nothing without root.
fn observe(runtime: Runtime, seed: u64) -> Option<Observation> {
    let mut lab = Lab::new()?;
    let plan = bundles::plan(&mut lab, &mut Random(seed));
    let config = lab.config.to_string();
    let (seen, words) = Trial { lab, runtime, seen: Vec::new(), words: Vec::new() }.carry_out(&plan);
    Some(Observation { seen, words, plan, config })
}

/// The lines of `one` without those of `other`, each as often as it occurs.
fn only(mark: &str, one: &[String], other: &[String]) -> Vec<String> {
    let mut rest: Vec<&String> = other.iter().collect();
    let mut lines = Vec::new();
    for line in one {
        match rest.iter().position(|each| *each == line) {
            Some(index) => _ = rest.swap_remove(index),
            None => lines.push(format!("  {mark} {line}")),
        }
    }
    lines
}

/// The lines that one side has alone or more often, or the first line at another position. If a command ended
/// differently, only statuses and complaints.
fn differences(ours: &Observation, theirs: &Observation) -> Vec<String> {
    let mut found = [only("brig", &ours.seen, &theirs.seen), only("runc", &theirs.seen, &ours.seen)].concat();
    if found.is_empty() {
        let moved = ours.seen.iter().zip(&theirs.seen).find(|(ours, theirs)| ours != theirs);
        return moved
            .map(|(ours, theirs)| format!("  order: brig {ours}\n         runc {theirs}"))
            .into_iter()
            .collect();
    }
    let users = ours.config.contains("uidMappings");
    if observed::is_intended(&ours.words, &theirs.words, users) {
        return Vec::new();
    }
    if found.iter().any(|line| line.contains(" ends with ")) {
        found.retain(|line| line.contains(" ends with "));
        found.extend(ours.words.iter().chain(&theirs.words).map(|line| format!("  {line}")));
    }
    found
}

#[test]
fn doubles_and_another_order_are_differences() {
    let observation = |seen: &[&str]| Observation {
        seen: seen.iter().map(|&line| line.to_owned()).collect(),
        words: Vec::new(),
        plan: Plan::empty(),
        config: String::new(),
    };
    let found = |ours: &[&str], theirs: &[&str]| differences(&observation(ours), &observation(theirs)).len();
    assert_eq!(found(&["a", "b"], &["a", "b"]), 0);
    assert_eq!(found(&["a", "a"], &["a"]), 1);
    assert_eq!(found(&["a"], &["a", "a"]), 1);
    assert_eq!(found(&["a", "b"], &["b", "a"]), 1);
    assert_eq!(found(&["a", "b"], &["a", "c"]), 2);
}

#[test]
fn random_bundles_are_run_as_by_runc() {
    if !has_runc() {
        return;
    }
    let seed = number("BRIG_DIFFERENTIAL_SEED").unwrap_or(SEED);
    let count = number("BRIG_DIFFERENTIAL_COUNT").unwrap_or(COUNT);
    let only = number("BRIG_DIFFERENTIAL_ONLY");
    let begin = Instant::now();
    let (next, found) = (AtomicU64::new(only.unwrap_or(0)), Mutex::new(Vec::new()));
    let end = only.map_or(count, |only| only + 1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= end {
                        return;
                    }
                    let seed = Random(seed.wrapping_mul(1_000_003).wrapping_add(index)).next();
                    let both = observe(Runtime::Brig, seed).zip(observe(Runtime::Runc, seed));
                    let Some((ours, theirs)) = both else { return };
                    let lines = differences(&ours, &theirs);
                    if only.is_some() {
                        println!("{}\n{}", ours.config, ours.seen.join("\n"));
                    }
                    if !lines.is_empty() {
                        let text = format!("bundle {index}, {}:\n{}", ours.plan.words.join(", "), lines.join("\n"));
                        found.lock().unwrap().push(text);
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let seconds = begin.elapsed().as_secs();
    println!("seed {seed}, {count} bundles: {} differ, {seconds} s", found.len());
    assert!(found.is_empty(), "seed {seed}: {} of {count} bundles differ\n{}", found.len(), found.join("\n"));
}

/// The directory of a bundle that may be a mount's source.
pub fn source(lab: &Lab) -> PathBuf {
    let path = lab.path().join("source");
    std::fs::create_dir_all(path.join("below")).unwrap();
    std::fs::write(path.join("file"), "other:x:77:77::/home:/bin/sh\n").unwrap();
    path
}
