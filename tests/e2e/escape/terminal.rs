//! Attacks of an agent on the terminal that shows its output.

use super::{attacker, task};
use crate::support::Lab;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// Runs a command on a terminal, and returns the terminal's output.
fn on_a_terminal(mut command: Command) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let stream = |end: &OwnedFd| Stdio::from(end.try_clone().unwrap());
    let mut child = command.stdin(stream(&slave)).stdout(stream(&slave)).stderr(stream(&slave)).spawn().unwrap();
    drop((slave, command)); // the command keeps copies of its streams
    let mut shown = Vec::new();
    // EIO of the master: the last user of the other side is gone.
    let _ = std::fs::File::from(master).read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

/// Clears the screen, sets the title, requests an answer; once with ESC, once with the one-character forms.
const EVIL: &str = r"printf '\033[2J\033]0;owned\007\302\2332J\2332J\n'; printf '\033[6n' >&2";

fn is_harmless(text: &str) -> bool {
    text.chars().all(|character| !character.is_control() || matches!(character, '\n' | '\r' | '\t'))
}

#[test]
fn escape_sequences_do_not_reach_a_terminal() {
    let lab = Lab::new();
    let shown = on_a_terminal(task(&lab).plain().args(["--no-tty"]).command_for(["sh", "-c", EVIL]));
    assert!(
        is_harmless(&shown) && shown.contains(r"^[[2J^[]0;owned^G\u{9b}2J\x9b2J") && shown.contains("^[[6n"),
        "{shown:?}"
    );
    // They are real: a pipe gets them unchanged, as data.
    let raw = task(&lab).plain().sh(EVIL);
    assert!(raw.stdout.contains("\x1b[2J") && !is_harmless(&raw.stdout), "{raw:#?}");
}

#[test]
fn escape_sequences_of_a_log_do_not_reach_a_terminal() {
    let lab = Lab::new();
    task(&lab).sh(EVIL).succeeded();
    let logs = || {
        let mut command = Command::new(task(&lab).command().get_program());
        command.args(["task", "logs", &lab.ids()[0]]).env("BRIG_STORE", lab.store());
        command
    };
    let shown = on_a_terminal(logs());
    assert!(is_harmless(&shown) && shown.contains("^[[2J"), "{shown:?}");
    assert!(!is_harmless(&String::from_utf8_lossy(&logs().output().unwrap().stdout)));
}

#[test]
fn escape_sequences_of_names_do_not_reach_errors_receipts_and_lists() {
    let lab = Lab::new();
    let run = task(&lab).plain().run(["\u{1b}[2Jx\u{9b}2J"]);
    assert_eq!(run.status, Some(127), "{run:#?}");
    assert!(is_harmless(&run.stderr) && run.stderr.contains("[2Jx"), "{run:#?}");
    for words in [&["task", "ls"][..], &["task", "show", &lab.ids()[0]], &["task", "show", "--json", &lab.ids()[0]]] {
        let run = lab.brig(words);
        assert!(is_harmless(&run.stdout) && run.stdout.contains("[2Jx"), "{run:#?}");
    }
}

#[test]
fn a_terminal_of_the_caller_is_not_given_to_a_command_without_one() {
    let lab = Lab::new();
    let shown = on_a_terminal(task(&lab).plain().args(["--no-tty"]).command_for([
        "sh",
        "-c",
        "readlink /proc/self/fd/0; (: < /dev/tty) 2>&1",
    ]));
    assert!(shown.contains("/dev/null") && shown.contains("No such device"), "{shown:?}");
}

#[test]
fn a_command_with_a_terminal_has_its_own_one_in_its_own_session() {
    let lab = Lab::new();
    let work = attacker(&lab);
    let script = "tty; [ -w $(tty) ] && echo writable; echo session $(cut -d' ' -f6 /proc/$$/stat) of $$; ./attacker tiocsti; ls /dev/pts | tr '\\n' ' '";
    let go = |weak: &str| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        on_a_terminal(task.plain().args(["--tty", "--dir"]).args([&work]).command_for(["sh", "-c", script]))
    };
    let shown = go("");
    for words in ["/dev/pts/0", "writable", "session 2 of 2", "EPERM", "0 ptmx"] {
        assert!(shown.contains(words), "{words}: {shown:?}");
    }
    // Without the filter the kernel decides by its sysctl dev.tty.legacy_tiocsti.
    assert!(!go("seccomp").contains("EPERM"));
}
