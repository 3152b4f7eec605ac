//! The library, as a program with threads uses it.

use crate::support::{Lab, eventually, program_under_test};
use brig::container::{ContainerId, Containers, Creation, Execution};
use brig::error::Kind;
use brig::task::{Definition, Store, Watcher};
use brig::{Options, Output, Sandbox, Task};
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

fn options(lab: &Lab) -> Options {
    Options::new().program(program_under_test()).store(lab.store())
}

#[test]
fn a_sandbox_is_worked_in_by_several_threads_and_leaves_nothing() {
    let lab = Lab::new();
    let sandbox = Sandbox::start(&options(&lab).env("MINE", "a b").limit("memory", "512M")).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let input = vec![b'x'; 300_000];
                let done = sandbox.exec(["sh", "-c", "wc -c; echo oops >&2; exit 3"], Some(&input)).unwrap();
                assert_eq!((done.status, done.output, done.error), (3, b"300000\n".to_vec(), b"oops\n".to_vec()));
                let path = format!("/workspace/file-{number}");
                sandbox.write_file(&path, &input).unwrap();
                assert_eq!(sandbox.read_file(&path).unwrap(), input);
            });
        }
    });
    let names: Vec<_> = sandbox.list("/workspace").unwrap().into_iter().map(|entry| (entry.name, entry.size)).collect();
    assert_eq!(names.len(), 4);
    assert!(names.contains(&("file-2".to_owned(), 300_000)), "{names:?}");
    assert!(sandbox.env().unwrap().contains(&("MINE".into(), "a b".into())));
    let usage = sandbox.usage().unwrap();
    assert_eq!((usage.memory_limit, usage.paused), (512 << 20, false));
    let error = sandbox.read_file("/workspace/none").unwrap_err();
    assert_eq!((error.kind(), error.retryable()), (Kind::NotFound, false));
    let receipt = sandbox.stop().unwrap();
    assert_eq!((receipt.outcome.word(), receipt.cleanup.left.len()), ("cancelled", 0));
    // Dropped, it is gone as well.
    let sandbox = Sandbox::start(&options(&lab)).unwrap();
    let id = sandbox.id().to_owned();
    drop(sandbox);
    let run = lab.brig(["task", "wait", "--json", &id]);
    assert_eq!(run.outcome(), "cancelled");
}

#[test]
fn a_command_ends_without_what_it_leaves_behind_and_its_output_is_bounded() {
    let lab = Lab::new();
    let sandbox = Sandbox::start(&options(&lab)).unwrap();
    let begun = Instant::now();
    let done = sandbox.exec(["sh", "-c", "sleep 300 & echo x; exit 3"], None).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let error = Vec::new();
    assert_eq!(done, Output { status: 3, output: b"x\n".to_vec(), error, truncated: false });
    let done = sandbox.exec(["sh", "-c", "head -c 300M /dev/zero; echo all is read >&2"], None).unwrap();
    assert_eq!((done.status, done.output.len(), done.error.as_slice()), (0, 256 << 20, &b"all is read\n"[..]));
    assert!(done.truncated);
    sandbox.stop().unwrap();
}

#[test]
fn a_sandbox_that_waits_for_its_turn_starts_later() {
    let lab = Lab::new();
    let options = options(&lab).flag("--max-parallel", "1");
    let first = Sandbox::start(&options).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Sandbox::start(&options));
        eventually("the second one waits", || lab.ids().len() == 2);
        std::thread::sleep(Duration::from_millis(300));
        first.stop().unwrap();
        let second = second.join().unwrap().unwrap();
        assert_eq!(second.exec(["true"], None).unwrap().status, 0);
        second.stop().unwrap();
    });
}

#[test]
fn a_program_that_dies_leaves_no_sandbox() {
    const STORE: &str = "BRIG_TEST_STORE_OF_A_PROGRAM_THAT_DIES";
    if let Some(store) = std::env::var_os(STORE) {
        let _sandbox = Sandbox::start(&Options::new().program(program_under_test()).store(store)).unwrap();
        std::process::abort();
    }
    let lab = Lab::new();
    let test = "library::a_program_that_dies_leaves_no_sandbox";
    let mut program = Command::new(std::env::current_exe().unwrap());
    let died = program.args(["--exact", test]).env(STORE, lab.store()).output().unwrap();
    assert_eq!(died.status.signal(), Some(6), "{died:?}");
    let id = &lab.ids()[0];
    eventually("it ends", || lab.store().join("tasks").join(id).join("receipt.json").exists());
}

#[test]
fn a_task_is_begun_watched_and_waited_for() {
    let lab = Lab::new();
    let task =
        Task::start(&options(&lab), ["sh", "-c", "echo hello; while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 2"])
            .unwrap();
    assert!(task.wait_for(Duration::from_millis(50)).unwrap().is_none());
    task.live().unwrap().write_file("/tmp/go".as_ref(), 0o600, &mut &b""[..]).unwrap();
    let receipt = task.wait().unwrap();
    assert_eq!((receipt.outcome.word(), receipt.retryable, receipt.exit_status), ("failed", false, 2));
    assert_eq!(task.log().unwrap(), b"hello\n");
    assert!(task.events().unwrap().available().unwrap().unwrap().len() >= 3);
    assert_eq!(task.live().unwrap_err().kind(), Kind::State);
}

#[test]
fn a_mistake_is_an_error_with_its_kind_and_its_hint() {
    let lab = Lab::new();
    let error = Task::start(&options(&lab).directory("/no/such"), ["true"]).unwrap_err();
    assert_eq!(error.kind(), Kind::Workspace);
    assert!(error.advice().is_some() && error.to_string().contains("/no/such"), "{error}");
    let error = Sandbox::start(&Options::new().program("/no/such/brig")).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(lab.ids().is_empty());
}

struct Quiet;

impl Watcher for Quiet {
    fn began(&mut self, _: &str) {}
    fn output(&mut self, _: bool, _: &[u8]) {}
    fn gate(&self, _: bool) -> Option<BorrowedFd<'_>> {
        None
    }
    fn forward_input(&self) -> bool {
        false
    }
}

#[test]
fn a_program_with_threads_is_refused_before_it_is_copied() {
    // A copy of the process has other threads' locks: a few of a hundred such tasks hung, and their processes stayed.
    let lab = Lab::new();
    let (hold, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv());
    let (store, definition) = (Store::at(lab.store()), Definition::new(vec!["true".into()]));
    let id: ContainerId = ContainerId::new("threads").unwrap();
    let containers = Containers::new(Some(lab.store()));
    let errors = [
        brig::task::run(&store, &definition, &mut Quiet).map(drop),
        brig::task::run_detached(&store, &definition, false).map(drop),
        containers.create(&id, &Creation::default()).map(drop),
        containers.exec(&id, &Execution::default()).map(drop),
        brig::task::export_bundle(&store, "none").map(drop),
    ];
    for refused in errors {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("has threads"), "{error}");
        assert!(error.advice().is_some_and(|hint| hint.contains("brig::Task")), "{error}");
    }
    assert!(lab.ids().is_empty());
    drop(hold);
    thread.join().unwrap().unwrap_err();
}
