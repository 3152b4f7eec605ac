//! Ways to more rights: set-id programs, capabilities, keys, and rights of the caller that the sandbox must not
//! inherit.

use super::{answer, attack, attacker, executable, host, stopped, task};
use crate::support::{Lab, Task, is_root};

#[test]
fn every_capability_set_is_empty_and_no_new_privileges_can_come() {
    let lab = Lab::new();
    let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t '";
    let run = task(&lab).sh(script);
    let none = |name: &str| format!("Cap{name}:0000000000000000");
    for line in
        [none("Inh"), none("Prm"), none("Eff"), none("Bnd"), none("Amb"), "NoNewPrivs:1".into(), "Seccomp:2".into()]
    {
        assert!(run.stderr.contains(&line), "{line}: {run:#?}");
    }
    let run = task(&lab).weakened("capabilities,no-new-privs,seccomp,landlock").sh(script);
    assert!(
        run.stderr.contains("NoNewPrivs:0") && run.stderr.contains("Seccomp:0") && !run.stderr.contains(&none("Bnd")),
        "{run:#?}"
    );
}

#[test]
fn no_other_user_can_be_become() {
    let free = if is_root() { "capabilities" } else { "" };
    for words in ["set-user 0", "set-user 65533"] {
        stopped(&[attack(words, "EPERM|EINVAL", free).root_gets("done")]); // all are of the sandbox's own ids
    }
}

/// A root with the host's programs and two of the attacker's: one set-uid root, one with every file capability.
fn armed(lab: &Lab) -> std::path::PathBuf {
    let work = attacker(lab);
    let root = lab.directory("root");
    for name in ["setuid", "filecaps"] {
        std::fs::copy(work.join("attacker"), root.join(name)).unwrap();
    }
    executable(&root.join("setuid"), 0o4755);
    executable(&root.join("filecaps"), 0o755);
    host("setcap", &["all+ep", root.join("filecaps").to_str().unwrap()]);
    root
}

#[test]
fn set_uid_programs_of_the_root_file_system_give_nothing() {
    let Some(lab) = Lab::root() else { return };
    let root = armed(&lab);
    let run = |weak: &str, program: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        task.args(["--rootfs".as_ref(), root.as_os_str()]).run([program, "whoami"]).stderr
    };
    assert!(run("", "/setuid").contains("euid=1000"));
    assert!(run("nosuid", "/setuid").contains("euid=1000"), "no_new_privs is enough");
    // Landlock and seccomp need no_new_privs, so they go with it.
    let free = "no-new-privs,landlock,seccomp";
    assert!(run(free, "/setuid").contains("euid=1000"), "nosuid is enough");
    assert!(run(&format!("nosuid,{free}"), "/setuid").contains("euid=0"), "without both it is a root, of the sandbox");
}

#[test]
fn file_capabilities_of_the_root_file_system_give_nothing() {
    let Some(lab) = Lab::root() else { return };
    let root = armed(&lab);
    let effective = |weak: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        let text = task.args(["--rootfs".as_ref(), root.as_os_str()]).run(["/filecaps", "whoami"]).stderr;
        let line = text.lines().find(|line| line.starts_with("CapEff:"));
        // A kernel that refuses to run it (EPERM) gave no rights either.
        line.map_or("0".to_owned(), |line| line.split_whitespace().nth(1).unwrap().trim_start_matches('0').to_owned())
    };
    for weak in ["", "nosuid", "no-new-privs,landlock,seccomp", "nosuid,no-new-privs,landlock,seccomp"] {
        let found = effective(weak);
        assert!(matches!(found.as_str(), "" | "0"), "{weak}: {found}");
    }
    // The bounding set is empty too, and only a file system that the sandbox's root mounted gives capabilities inside.
}

#[test]
fn set_uid_files_in_a_folder_run_as_no_other_user_after_copying_up() {
    let lab = Lab::new();
    let work = attacker(&lab);
    executable(&work.join("attacker"), 0o6755);
    let run = task(&lab)
        .args(["--dir".as_ref(), work.as_os_str()])
        .sh("echo >> attacker; chmod 6755 attacker; ./attacker whoami");
    assert!(run.stderr.contains("euid=1000"), "{run:#?}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(work.join("attacker")).unwrap());
    assert_eq!(mode & 0o7777, 0o6755, "the folder itself was written");
}

#[test]
fn the_callers_keys_are_out_of_reach() {
    // In a new session keyring: the key goes away with this test.
    let lab = Lab::new();
    let work = attacker(&lab);
    let key = keys::add_to_new_session();
    let go = |weak: &str| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        answer(&task.args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "key", &key.to_string()]))
    };
    assert_eq!(go(""), "EPERM");
    assert_eq!(go("seccomp"), "EACCES", "a keyring of its own is enough");
    assert_eq!(go("seccomp,keyring"), "done");
}

#[test]
fn what_the_caller_may_is_not_what_the_sandbox_may() {
    let lab = Lab::new();
    let run =
        task(&lab).sh("tr -s ' ' < /proc/self/limits; echo umask $(umask); echo oom $(cat /proc/self/oom_score_adj)");
    for line in ["Max realtime priority 0 0", "Max nice priority 0 0", "Max core file size 1 1", "umask 0022"] {
        assert!(run.stderr.lines().any(|each| each.starts_with(line)), "{line}: {run:#?}");
    }
    let score = run.stderr.lines().find_map(|line| line.strip_prefix("oom ")).unwrap();
    assert!(score.parse::<i32>().unwrap() >= 0, "{run:#?}");
}

#[test]
fn a_real_time_priority_of_the_caller_is_not_the_sandboxs() {
    let Some(lab) = Lab::root() else { return };
    let run = |wrapper: &[&str], task: Task<'_>, words: &[&str]| {
        let command = task.plain().command_for(words.iter().copied());
        let mut wrapped = std::process::Command::new(wrapper[0]);
        wrapped.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        String::from_utf8(wrapped.output().unwrap().stdout).unwrap()
    };
    let policy = |task| run(&["chrt", "--fifo", "1"], task, &["cut", "-d", " ", "-f", "41", "/proc/self/stat"]); // proc_pid_stat(5)
    assert_eq!(policy(lab.task()), "0\n");
    // With v1 groups for real time, a group without a share refuses a process with such a priority.
    let weak = policy(lab.task().weakened("real-time"));
    assert!(["1\n", ""].contains(&weak.as_str()), "{weak:?}");
    let class = |task| run(&["ionice", "--class", "realtime", "--classdata", "2"], task, &["ionice"]);
    assert_eq!(class(lab.task()), "best-effort: prio 4\n");
    assert_eq!(class(lab.task().weakened("real-time")), "realtime: prio 2\n");
}

#[test]
fn signals_that_the_caller_ignores_are_not_ignored_inside() {
    // SIGCHLD among them: pid 1 would never notice the command's end.
    let lab = Lab::new();
    let command = task(&lab).plain().command_for(["sh", "-c", "grep SigIgn /proc/self/status; exit 7"]);
    let script = "$SIG{$_} = 'IGNORE' for qw(CHLD TERM HUP INT USR1); exec @ARGV";
    let done = std::process::Command::new("perl")
        .args(["-e", script])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(7), "{done:?}");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let ignored = u64::from_str_radix(text.split_whitespace().nth(1).unwrap(), 16).unwrap();
    // 32 and 33 are the C library's own, and it refuses to change them.
    assert_eq!(ignored & !0x1_8000_0000, 0, "{done:?}");
}

#[test]
fn a_callers_mask_does_not_lock_the_sandbox_out_of_its_own_folders() {
    let lab = Lab::new();
    let command = task(&lab).plain().command_for([
        "sh",
        "-c",
        "cat /etc/passwd /etc/hosts > /dev/null && umask && touch /tmp/x ~/y",
    ]);
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_str().unwrap().to_owned())
        .collect();
    for mask in ["077", "000"] {
        let script = format!("umask {mask}; exec \"$@\"");
        let done = std::process::Command::new("sh")
            .args(["-c", &script, "sh"])
            .args(&words)
            .env("BRIG_STORE", lab.store())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(String::from_utf8_lossy(&done.stdout).contains("0022"), "{done:?}");
    }
}

#[test]
fn the_environment_and_the_home_are_empty() {
    let lab = Lab::new();
    let run = task(&lab)
        .env("AWS_SECRET_ACCESS_KEY", "hunter2")
        .env("SSH_AUTH_SOCK", "/tmp/agent")
        .sh("env | cut -d= -f1 | sort | tr '\\n' ' '; ls -A ~ | wc -l");
    let expected = "BRIG_EVENTS_FD GIT_CONFIG_SYSTEM HOME LANG LOGNAME PATH PWD TERM USER 0";
    assert_eq!(run.stderr.lines().next(), Some(expected), "{run:#?}");
}

mod keys {
    //! keyctl(2) of the host.

    const SESSION: i32 = -3;
    const JOIN_SESSION: libc::c_int = 1;

    pub fn add_to_new_session() -> i64 {
        // SAFETY: a null name asks for an anonymous keyring; the strings are NUL-terminated and as long as is said.
        let key = unsafe {
            libc::syscall(libc::SYS_keyctl, JOIN_SESSION, std::ptr::null::<libc::c_char>());
            libc::syscall(libc::SYS_add_key, c"user".as_ptr(), c"brig-test".as_ptr(), c"secret".as_ptr(), 6, SESSION)
        };
        assert!(key > 0, "{}", std::io::Error::last_os_error());
        key
    }
}
