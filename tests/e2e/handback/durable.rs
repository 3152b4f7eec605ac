//! Work where the store's disk is nearly full, and what a power cut may leave of an apply.

use super::{folder, id};
use crate::support::Lab;

#[test]
fn a_copy_that_finds_no_room_in_the_store_costs_no_other_work() {
    let Some(lab) = Lab::root() else { return };
    let folder = folder(&lab);
    std::fs::create_dir_all(lab.store()).unwrap();
    let store = lab.store().display().to_string();
    // The sandbox's disk is a sparse file of that disk, and `b` is written to it late.
    let inside = "echo a > a; echo c > c; head -c 400M /dev/urandom > b";
    let script = format!(
        "mount -t tmpfs -o size=450M none {store}; \"$@\"; echo status $?; \
         {{ cat {store}/tasks/*/receipt.json; ls {store}/tasks/*/changes/files {store}/tasks/*/artifacts; }} 2>&1"
    );
    let prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let words = ["--artifact", "b", "--artifact", "c", "--dir", folder.to_str().unwrap()];
    let run = lab.task().plain().by(prefix).args(words).sh(inside);
    for words in ["status 0", "a\nc\n", "\"not_taken\""] {
        assert!(run.stdout.contains(words), "`{words}`: {run:#?}");
    }
}

#[test]
fn what_is_applied_is_written_out_before_anything_is_replaced() {
    let lab = Lab::new();
    let folder = folder(&lab);
    lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh("echo new > file; echo more > more").succeeded();
    let trace = lab.path().join("trace");
    let words = ["strace", "-f", "-qq", "-e", "trace=syncfs,renameat2", "-o", trace.to_str().unwrap()];
    lab.command(["task", "apply", &id(&lab)]).by(words).run([""; 0]).succeeded();
    let trace = std::fs::read_to_string(trace).unwrap();
    let calls: Vec<_> = trace.lines().filter_map(|line| line.split_whitespace().nth(1)?.split('(').next()).collect();
    assert_eq!(calls.iter().filter(|&&call| call == "renameat2").count(), 2, "{trace}");
    assert_eq!(calls[0], "syncfs", "{trace}");
}
