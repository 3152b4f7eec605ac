//! Bounds of a courier with a hostile remote or repository: time, processor time, memory, and files of the store.

use super::server::Host;
use super::{COMMIT, bare, host, push, refused, task};
use crate::support::{Lab, Task, is_root};
use rustix::process::Signal;
use std::cell::RefCell;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A server that takes connections and never sends a byte.
struct Silent {
    url: String,
    listener: TcpListener,
    clients: RefCell<Vec<TcpStream>>,
}

impl Silent {
    fn new() -> Silent {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // the kernel takes connections, and no process answers
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://127.0.0.1:{}/app.git", listener.local_addr().unwrap().port());
        Silent { url, listener, clients: RefCell::default() }
    }

    /// Waits until one more task fetches.
    #[track_caller]
    fn is_asked(&self) {
        crate::support::eventually("a task fetches", || {
            let client = self.listener.accept().map(|(client, _)| self.clients.borrow_mut().push(client));
            client.is_ok()
        });
    }

    fn task<'lab>(&self, lab: &'lab Lab) -> Task<'lab> {
        lab.task().args(["--network", "egress", "--repo", &self.url])
    }
}

/// Files, folders and links below a folder.
fn entries(folder: &Path) -> usize {
    let inside = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    inside.map(|entry| 1 + if entry.file_type().unwrap().is_dir() { entries(&entry.path()) } else { 0 }).sum()
}

#[test]
fn silent_remote_ends_with_the_wall_limit_of_the_task() {
    let lab = Lab::new();
    let silent = Silent::new();
    let run = silent.task(&lab).args(["--wall", "3s"]).sh("echo ran");
    refused(&run, &["fetch the repository", "time that the task has left (`--wall`)"]);
    assert!(run.elapsed < Duration::from_secs(15), "{:?}", run.elapsed);
    // The attack: without the limit the task is still there.
    let mut held = silent.task(&lab).args(["--wall", "3s"]).weakened("courier-limits").start_sh("echo ran");
    std::thread::sleep(Duration::from_secs(15));
    assert!(!held.has_ended(), "the control: a courier with limits of its own");
    held.signal(Signal::TERM);
    held.finish();
}

#[test]
fn wait_for_a_mirror_ends_with_the_wall_limit_and_at_a_signal() {
    let lab = Lab::new();
    let silent = Silent::new();
    let holder = silent.task(&lab).start_sh("echo ran");
    silent.is_asked();
    let run = silent.task(&lab).args(["--wall", "2s"]).sh("echo ran");
    refused(&run, &["another task used the repository", "--wall"]);
    let waiting = silent.task(&lab).start_sh("echo ran");
    std::thread::sleep(Duration::from_millis(1500));
    let began = Instant::now();
    waiting.signal(Signal::INT);
    assert_eq!(waiting.finish().outcome(), "cancelled");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    holder.signal(Signal::INT);
    assert_eq!(holder.finish().outcome(), "cancelled");
}

#[test]
fn stop_and_kill_reach_a_task_that_fetches_or_waits_for_a_fetch() {
    let lab = Lab::new();
    let silent = Silent::new();
    let holder = silent.task(&lab).start_sh("echo ran");
    silent.is_asked();
    let waiting = silent.task(&lab).start_sh("echo ran");
    crate::support::eventually("the second task is known", || lab.ids().len() == 2);
    let ids = lab.ids();
    for (id, task, words) in [(&ids[1], waiting, ["stop", "--grace=5s"]), (&ids[0], holder, ["kill", "KILL"])] {
        let began = Instant::now();
        let request = if words[0] == "stop" { ["task", "stop", words[1], id] } else { ["task", "kill", id, words[1]] };
        lab.brig(request).succeeded();
        assert_eq!(task.finish().outcome(), "cancelled", "{words:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{words:?}: {:?}", began.elapsed());
    }
}

#[test]
fn a_mirror_that_grows_too_large_ends_its_fetch() {
    let lab = Lab::new();
    let silent = Silent::new();
    // A remote with many large files, in a moment.
    let grow = |lab: &Lab| {
        silent.is_asked();
        let mirror = fs::read_dir(lab.store().join("mirrors"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.is_dir());
        let folder = mirror.unwrap().join("objects/many");
        fs::create_dir_all(&folder).unwrap();
        (0..10_001).for_each(|number| drop(fs::File::create(folder.join(number.to_string())).unwrap()));
    };
    let task = silent.task(&lab).args(["--wall", "10m"]).start_sh("echo ran");
    grow(&lab);
    let began = Instant::now();
    let run = task.finish();
    refused(&run, &["its mirror had", "at most 10000 files"]);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(entries(&lab.store().join("mirrors")) < 10, "the mirror is removed");
    // The attack: without the count the task still fetches.
    let weak = Lab::new();
    let mut held = silent.task(&weak).weakened("courier-growth").start_sh("echo ran");
    grow(&weak);
    std::thread::sleep(Duration::from_secs(4));
    assert!(!held.has_ended(), "the control: a mirror that is counted after the fetch");
    held.signal(Signal::TERM);
    held.finish();
}

#[test]
fn couriers_have_the_memory_and_the_processor_time_of_the_task() {
    let lab = Lab::new();
    let remote = bare(&lab);
    // Random contents: the pack is as large as the files.
    host(
        &lab.directory("large"),
        &format!(
            "git init -q -b big .; git config user.name h; git config user.email h@h; head -c 48M /dev/urandom >a; git add .; git commit -qm big; \
             git push -q {} big",
            remote.display()
        ),
    );
    let run = task(&lab, &remote, &["--ref", "big", "--cpu-time", "1s"], "echo ran");
    assert!(["prepare_failed", "cpu_time"].contains(&run.outcome().as_str()), "{run:#?}");
    let run = task(&lab, &remote, &["--ref", "big", "--memory", "16M"], "echo ran");
    // Without root the courier's disk is in memory, and is full first.
    let words = if is_root() { "memory that the task has left (`--memory`)" } else { "git" };
    refused(&run, &[words]);
}

#[test]
fn names_of_a_remote_are_one_file_of_the_store_and_bounded() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let names = |count: usize| {
        let commit = host(&remote, "git rev-parse main");
        let other = host(&remote, "git rev-parse other");
        let mut packed = format!("{commit} refs/heads/main\n{other} refs/heads/other\n");
        (0..count).for_each(|number| packed += &format!("{commit} refs/tags/a/{}/t{number}\n", number % 7));
        host(&remote, "rm -rf refs/heads/* refs/tags/*");
        fs::write(remote.join("packed-refs"), packed).unwrap();
    };
    names(12_000);
    let run = far.known_task(&lab, &url).args(["--disk", "64M"]).sh("git tag | wc -l; git rev-parse a/3/t3");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("12000\n"), "{run:#?}");
    let found = entries(&lab.store());
    assert!(found < 300, "{found} files, folders and links in the store");
    // A name removed on the remote is removed here, and the mirror is used again.
    names(3);
    let run = far.known_task(&lab, &url).sh("git tag | wc -l; git log --format=%s");
    run.ended_as("succeeded", 0);
    names(50_001);
    let run = far.known_task(&lab, &url).sh("echo ran");
    refused(&run, &["more than 50000 branches and tags"]);
    assert!(entries(&lab.store()) < 400);
    // The attack: without the bound each name is a file of the store.
    let weak = Lab::new();
    names(2_000);
    let run = far.known_task(&weak, &url).weakened("courier-names").sh("true");
    run.ended_as("succeeded", 0);
    assert!(entries(&weak.store()) > 2_000, "the control");
}

#[test]
fn crafted_history_does_not_slow_a_push() {
    let lab = Lab::new();
    let remote = bare(&lab);
    // Two contents of two million lines each, by turns: a search through the differences compares them for every
    // commit.
    let history = "seq 1 2000000 >file; git add .; one=$(git write-tree); seq 4000000 -2 2 >file; git add .; other=$(git write-tree); \
         last=$(git rev-parse HEAD); for n in $(seq 80); do last=$(git commit-tree -p $last -m $n $one); last=$(git commit-tree -p $last -m $n $other); done; \
         printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%064d\\nsize 5\\n' 7 >'a b.bin'; git reset -q $last; git add 'a b.bin'; git commit -qm last";
    let limit = ["--cpu-time", "60s"];
    let run =
        lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "x"]).args(limit).sh(history);
    run.ended_as("succeeded", 0);
    assert_eq!(push(&run)["state"], "pushed");
    assert_eq!(push(&run)["left_behind"], serde_json::json!(["the contents of the large file a b.bin"]));
    let receipt = run.receipt();
    let steps = receipt["steps"].as_array().unwrap();
    let took = steps.iter().find(|step| step["step"] == "hand_back").unwrap()["seconds"].as_f64().unwrap();
    assert!(took < 30.0, "{took} s");
    // The attack: a search through the differences is still on its way.
    let weak = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "y"]).args(limit);
    let mut held = weak.weakened("courier-search").start_sh(history);
    std::thread::sleep(Duration::from_secs(25));
    assert!(!held.has_ended(), "the control: a search that compares the contents of each commit");
    held.signal(Signal::TERM);
    held.finish();
}

/// The usual soft limit on descriptors.
const FEW: [&str; 4] = ["sh", "-c", "ulimit -Sn 1024; exec \"$@\"", "sh"];

#[test]
fn wide_and_deep_repository_needs_no_more_than_the_usual_descriptors() {
    let lab = Lab::new();
    let remote = bare(&lab);
    host(
        &lab.path().join("seed"),
        "blob=$(git rev-parse HEAD:file); deep=$(printf 'd/%.0s' $(seq 1300)); \
         { for n in $(seq 1500); do echo \"100644 $blob 0\tw$n/file\"; done; echo \"100644 $blob 0\t${deep}file\"; } | git update-index --add --index-info; \
         git commit -qm 'wide and deep'; git push -q ../remote.git main",
    );
    let script = format!("find . -name file | wc -l; rm -r d w7; {COMMIT}");
    let run = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "x"]).by(FEW).sh(&script);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("1502\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(host(&remote, "git ls-tree -r x | wc -l"), "1501");
    std::thread::sleep(Duration::from_millis(1100));
    let program = crate::support::program();
    let prune = [program.as_os_str(), "task".as_ref(), "prune".as_ref(), "--older-than=1s".as_ref()];
    let pruned = Command::new(FEW[0]).args(&FEW[1..]).args(prune).env("BRIG_STORE", lab.store()).output().unwrap();
    assert!(pruned.status.success(), "{pruned:?}");
    assert_eq!(lab.ids(), [] as [&str; 0]);
    let left = fs::read_dir(lab.store().join("bases")).unwrap().filter(|each| each.as_ref().unwrap().path().is_dir());
    assert_eq!(left.count(), 0, "the checkout is gone");
}
