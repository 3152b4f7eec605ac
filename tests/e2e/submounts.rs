//! File systems below the host's folders in a sandbox: shown read-only, or named.

use crate::escape::WITHOUT_GROUP;
use crate::support::{Lab, Run, Task, skip};
use std::path::Path;

/// The ordinary user of a root test, with mounts that root has made.
const USER: u32 = 54_321;

/// Starts brig after a script, in a separate mount namespace.
fn after<'lab>(task: Task<'lab>, script: &str) -> Task<'lab> {
    let script = format!("set -e; {script}; exec \"$@\"");
    task.by(["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"])
}

/// The same as an ordinary user, with a copy of the program that this user can reach.
fn as_user<'lab>(lab: &'lab Lab, task: Task<'lab>, script: &str) -> Task<'lab> {
    let at = lab.path().display();
    let become_user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all -- {at}/brig");
    let script = format!(
        "set -e; cp \"$1\" {at}/brig; shift; chown -R {USER}:{USER} {at}; {script}; exec env HOME={at} {become_user} \"$@\""
    );
    let prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    task.by(prefix).args(["--allow-degraded", WITHOUT_GROUP])
}

/// Mounts a memory file system below the workspace, and one of the kernel.
fn below_workspace(work: &Path) -> String {
    let work = work.display();
    format!(
        "mkdir -p {work}/data {work}/kernel; mount -t tmpfs none {work}/data; echo inside > {work}/data/file; chmod 777 {work}/data; \
         mkdir {work}/data/more; mount -t tmpfs none {work}/data/more; echo deeper > {work}/data/more/file; mount -t proc none {work}/kernel"
    )
}

#[test]
fn mounts_below_the_workspace_are_read_only_or_named() {
    let Some(lab) = Lab::root() else { return };
    let work = lab.file("work/own", "own\n").parent().unwrap().to_path_buf();
    let task = || after(lab.task().args(["--dir".as_ref(), work.as_os_str()]), &below_workspace(&work));
    let run = task().sh(
        "cat data/file data/more/file own; ls -A kernel | wc -l; touch data/new data/more/new; echo changed > own; \
                         grep -E ' [^ ]*/data(/more)? ' /proc/self/mountinfo | grep -c ' ro,nosuid,nodev'",
    );
    run.ended_as("succeeded", 0);
    for words in ["inside\ndeeper\nown\n0\n", "data/new': Read-only", "data/more/new': Read-only", "\n2\n"] {
        assert!(run.stderr.contains(words), "{words}: {run:#?}");
    }
    for words in
        ["/data` is another file system: it is read-only", "/kernel` is another file system (proc) and is not shown"]
    {
        assert!(run.stderr.contains(words), "{words}: {run:#?}");
    }
    let run = task().plain().args(["--explain"]).sh("true");
    assert!(run.stdout.contains("/kernel` is another file system (proc)"), "{run:#?}");
}

#[test]
fn sockets_of_the_host_below_the_workspace_are_not_reached() {
    let Some(lab) = Lab::root() else { return };
    let work = lab.file("work/own", "own\n").parent().unwrap().to_path_buf();
    let listen =
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); time.sleep(10)";
    let data = work.join("data").display().to_string();
    let script = format!(
        "mkdir -p {data}; mount -t tmpfs none {data}; chmod 777 {data}; timeout 10 python3 -c '{listen}' {data}/socket > /dev/null 2>&1 & \
         for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; [ ! -S {data}/socket ] || break; done; chmod 777 {data}/socket"
    );
    let attack = "import socket, sys
try: socket.socket(socket.AF_UNIX).connect('data/socket'); print('reached', file=sys.stderr)
except OSError as error: print(error, file=sys.stderr)";
    let task = || lab.task().args(["--dir".as_ref(), work.as_os_str()]);
    let run = after(task(), &script).run(["python3", "-c", attack]);
    assert!(run.stderr.contains("Connection refused"), "{run:#?}");
    let run = after(task().weakened("submount-overlay"), &script).run(["python3", "-c", attack]);
    assert!(run.stderr.contains("reached"), "{run:#?}");
}

/// Checks the answers of an attack on /usr/local; each stream has its own order.
#[track_caller]
fn is_read_only(run: &Run) {
    for words in ["local\n", "\n0\n", "Read-only file system\n", "\n1\n"] {
        assert!(run.stderr.contains(words), "{words}: {run:#?}");
    }
}

#[test]
fn mounts_below_usr_are_shown_read_only() {
    let Some(lab) = Lab::root() else { return };
    let script = "mount -t tmpfs none /usr/local; chmod 777 /usr/local; mkdir /usr/local/kernel; echo local > /usr/local/file; \
                  mount -t proc none /usr/local/kernel";
    let attack = "cat /usr/local/file; ls -A /usr/local/kernel | wc -l; echo x > /usr/local/new && echo wrote; \
                  grep ' /usr/local ' /proc/self/mountinfo | grep -c ' ro,nosuid,nodev'";
    let run = after(lab.task(), script).sh(attack);
    is_read_only(&run);
}

#[test]
fn an_ordinary_user_sees_mounts_below_usr_read_only_and_none_of_the_kernel() {
    let Some(lab) = Lab::root() else { return };
    if !Path::new("/usr/bin/setpriv").exists() {
        return skip("needs setpriv");
    }
    let script = "mount -t tmpfs none /usr/local; chmod 1777 /usr/local; mkdir /usr/local/kernel; echo local > /usr/local/file; \
                  mount -t proc none /usr/local/kernel";
    let attack = "cat /usr/local/file; ls -A /usr/local/kernel | wc -l; echo x > /usr/local/new && echo wrote; \
                  grep ' /usr/local ' /proc/self/mountinfo | grep -c ' ro,nosuid,nodev'";
    let run = as_user(&lab, lab.task(), script).sh(attack);
    is_read_only(&run);
    let run = as_user(&lab, lab.task().weakened("submount-attributes,landlock"), script).sh(attack);
    assert!(run.stderr.contains("wrote\n"), "{run:#?}");
    let run = as_user(&lab, lab.task().weakened("submount-kinds"), script).sh(attack);
    assert!(!run.stderr.contains("local\n0\n"), "{run:#?}");
}

#[test]
fn an_ordinary_users_workspace_with_mounts_below_it_is_refused_with_their_names() {
    let Some(lab) = Lab::root() else { return };
    if !Path::new("/usr/bin/setpriv").exists() {
        return skip("needs setpriv");
    }
    let work = lab.file("work/own", "own\n").parent().unwrap().to_path_buf();
    let task = lab.task().plain().args(["--dir".as_ref(), work.as_os_str()]);
    as_user(&lab, task, &below_workspace(&work)).sh("true").refused(125, &["/data` is another file system"]);
}

/// Enters an overlay over the machine's root, as in a container of Docker.
fn in_overlay(lab: &Lab) -> String {
    let at = lab.path().join("overlay").display().to_string();
    format!(
        "mkdir -p {at}; mount -t tmpfs none {at}; mkdir {at}/upper {at}/work {at}/root; \
         mount -t overlay overlay -o lowerdir=/,upperdir={at}/upper,workdir={at}/work {at}/root; \
         for folder in proc sys dev tmp; do mount --rbind /$folder {at}/root/$folder; done; \
         mkdir {at}/root/old; cd {at}/root; pivot_root . old; umount -l /old; cd /"
    )
}

#[test]
fn root_on_an_overlay_is_told_to_run_as_an_ordinary_user_and_that_works() {
    let Some(lab) = Lab::root() else { return };
    if !Path::new("/usr/bin/setpriv").exists() {
        return skip("needs setpriv");
    }
    let run = after(lab.task().plain(), &in_overlay(&lab)).sh("true");
    run.refused(125, &["show `/usr`"]);
    assert!(run.stderr.contains("as an ordinary user (setpriv"), "{run:#?}");
    as_user(&lab, lab.task(), &in_overlay(&lab)).sh("ls /usr").ended_as("succeeded", 0);
}
