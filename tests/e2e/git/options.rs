//! Portions of a repository's history, their speed, and that the agent's sandbox has nothing of the credential.

use super::server::{Host, PASSWORD};
use super::{COMMIT, host, of_many_files, prepared_in, push};
use crate::support::{Lab, is_root};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn a_shallow_clone_has_the_last_commits_and_is_pushed_from() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let shallow = far.known_task(&lab, &url).args(["--depth", "1", "--push-branch", "x"]);
    let run = shallow.sh(&format!("git rev-list --count HEAD; git rev-parse --is-shallow-repository; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("1\ntrue\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(host(&remote, "git rev-list --count x; git fsck --strict 2>&1"), "3");
    // A task without a depth gets all of it, from a separate mirror.
    let whole = far.known_task(&lab, &url).sh("git rev-list --count HEAD; git rev-parse --is-shallow-repository");
    assert!(whole.stderr.contains("2\nfalse\n"), "{whole:#?}");
    // The same of a path.
    let near = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--depth", "1"]);
    let near = near.sh("git rev-list --count HEAD");
    assert!(near.stderr.starts_with("1\n"), "{near:#?}");
}

#[test]
fn a_partial_clone_has_the_commits_and_only_the_contents_it_needs() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    host(&remote, "git config uploadpack.allowFilter true; git config uploadpack.allowAnySHA1InWant true");
    let url = far.url("app.git");
    let part = far.known_task(&lab, &url).args(["--filter", "blob:none", "--push-branch", "x"]);
    let run = part.sh(&format!(
        "cat file; git rev-list --count HEAD; git rev-list --objects --all --missing=print | grep -c '^?'; git status --short; {COMMIT}"
    ));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("two\n2\n1\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(host(&remote, "git rev-list --count x; git show x:file; git fsck --strict 2>&1"), "3\ntwo\nmore");
    lab.task().plain().args(["--repo", &url, "--filter", "tree:0"]).sh("echo ran").refused(125, &["`tree:0`"]);
}

#[test]
fn submodules_and_lfs_are_not_fetched_unless_asked_for() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let other = far.world.address;
    let script = format!(
        "git clone -q host/repositories/app.git with; cd with; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; \
         printf '[submodule \"sub\"]\\n\\tpath = sub\\n\\turl = https://{other}:8443/x.git\\n' >.gitmodules; \
         printf '*.bin filter=lfs diff=lfs merge=lfs -text\\n' >.gitattributes; printf 'version https://git-lfs.github.com/spec/v1\\n' >a.bin; \
         git add .gitmodules .gitattributes a.bin; git commit -qm sub; git push -q origin main"
    );
    host(lab.path(), &script);
    let run = far.known_task(&lab, &far.url("app.git")).sh("ls sub | wc -l; cat a.bin; git log -1 --format=%s");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("0\nversion https://git-lfs.github.com/spec/v1\nsub\n"), "{run:#?}");
}

#[test]
fn tens_of_thousands_of_files_come_over_https_once() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let path = far.root.join("big.git");
    fs::create_dir(&path).unwrap();
    of_many_files(&lab, &path, |number| 1 + number % 40);
    let url = far.url("big.git");
    let first = far.known_task(&lab, &url).sh("find . -name .git -prune -o -type f -print | wc -l");
    first.ended_as("succeeded", 0);
    assert!(first.stderr.contains("30000"), "{first:#?}");
    let second = far.known_task(&lab, &url).args(["--push-branch", "x"]).sh(&format!("rm -r d7; {COMMIT}"));
    second.ended_as("succeeded", 0);
    assert_eq!(host(&path, "git ls-tree -r x | wc -l"), "29702");
    println!("30000 files: {:.2} s, and {:.2} s when they are there", prepared_in(&first), prepared_in(&second));
    assert!(prepared_in(&second) * 2.0 < prepared_in(&first), "{} after {}", prepared_in(&second), prepared_in(&first));
}

/// Whether a process's memory contains these bytes. `false` for an ended process.
fn remembers(pid: i32, words: &[u8]) -> bool {
    let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return false };
    let Ok(memory) = fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().filter(|line| !line.contains("[v")).any(|line| {
        let range = line.split(' ').next().unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (number(end) - number(start)) as usize];
        let read = memory.read_at(&mut bytes, number(start)).unwrap_or(0);
        bytes[..read].windows(words.len()).any(|each| each == words)
    })
}

/// All processes below one.
fn below(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .flat_map(|each| [vec![each], below(each)].concat())
        .collect()
}

/// Searches every file, environment and memory that the agent may read for the password. The script does not contain
/// it.
const SEARCH: &str = r#"
import os, re
word = re.compile(rb"correct\.horse/[b]attery\+staple")
def look(what, read):
    try:
        data = read()
    except OSError:
        return
    if word.search(data):
        print("FOUND in", what)
for folder, names, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys")):
        names[:] = []
        continue
    if folder.startswith("/usr/"):
        names[:] = []
        continue
    for name in files:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.path.getsize(path) < 1 << 24:
            look(path, lambda: open(path, "rb").read())
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "stat"):
        look(f"/proc/{pid}/{name}", lambda: open(f"/proc/{pid}/{name}", "rb").read())
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
        if pid == "1":
            print("FOUND a way into pid 1")
    except OSError:
        continue
    for line in maps:
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if "[v" not in line:
            look(f"/proc/{pid}/mem", lambda: (memory.seek(start), memory.read(end - start))[1])
"#;

#[test]
fn the_agents_sandbox_has_the_credential_nowhere() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let search = format!(
        "cat >/tmp/search.py <<'END'\n{SEARCH}\nEND\npython3 /tmp/search.py; echo searched; until [ -e /tmp/go ]; do sleep 0.05; done"
    );
    for (is_variable, is_weakened) in [(true, false), (false, false), (true, true)] {
        let task = far.task(&lab, &url).args(["--allow", "b.test:8443", "--push-branch", "x"]);
        let task = if is_weakened { task.weakened("gateway-environment") } else { task };
        let task = match is_variable {
            true => task.env("GIT_TOKEN", format!("me:{PASSWORD}")).args(["--git-credential", "env:GIT_TOKEN"]),
            false => task.args(["--git-credential", &format!("file:{}", far.credential.display())]),
        };
        let mut started = task.start_sh(&search);
        started.wait_for("searched");
        assert!(!started.output().contains("FOUND"), "{}", started.output());
        if is_root() {
            let all = below(started.pid());
            assert!(all.len() >= 3, "pid 1, its command and the gateway: {all:?}");
            let found = all.iter().filter(|pid| remembers(**pid, PASSWORD.as_bytes())).count();
            assert_eq!(found, usize::from(is_weakened), "the gateway alone has it, without its guard: {all:?}");
            // The control: the same search finds the variable with the password.
            assert_eq!(remembers(started.pid(), PASSWORD.as_bytes()), is_variable);
        }
        assert!(!started.has_ended());
        let id = lab.ids().pop().unwrap();
        // The task may end before its answer.
        let _ = lab.brig(["task", "exec", &id, "--", "touch", "/tmp/go"]);
        started.finish().ended_as("succeeded", 0);
    }
}

#[test]
fn the_credential_is_in_no_argument_and_no_variable_of_a_courier() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let mut started = far.known_task(&lab, &far.url("app.git")).args(["--push-branch", "x"]).start_sh(COMMIT);
    let marker = lab.store().display().to_string();
    let (mut seen, mut of_git) = (0, 0);
    while !started.has_ended() {
        for pid in [vec![started.pid()], below(started.pid())].concat() {
            for name in ["cmdline", "environ"] {
                let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains(PASSWORD), "{name} of {pid}: {text}");
                seen += usize::from(text.contains(&marker));
                of_git += usize::from(name == "cmdline" && text.contains("credential.https://a.test:9443.helper"));
            }
        }
    }
    started.finish().ended_as("succeeded", 0);
    assert!(seen > 0 && of_git > 0, "brig and the git of its couriers were looked at: {seen} {of_git}");
}

#[test]
fn a_mirror_that_is_fetched_often_has_few_packs_and_every_commit() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    host(&remote, "git config uploadpack.allowFilter true; git config uploadpack.allowAnySHA1InWant true");
    let url = far.url("app.git");
    host(lab.path(), &format!("git clone -q {} often", remote.display()));
    for filter in [&[][..], &["--filter", "blob:limit=100k"]] {
        let (mut most, mut was_tidied, mut before) = (0, false, 0);
        for round in 0..13 {
            host(
                &lab.path().join("often"),
                &format!("echo {round} {} >>file; git commit -qam {round}; git push -q origin HEAD:main", filter.len()),
            );
            let run = far.known_task(&lab, &url).args(filter).sh("git rev-list --count HEAD; git fsck --strict");
            run.ended_as("succeeded", 0);
            let count = host(&remote, "git rev-list --count main");
            assert!(run.stderr.starts_with(&format!("{count}\n")), "{run:#?}");
            let script = "for each in store/mirrors/*/; do ls $each/objects/pack | grep -c 'pack$' || true; done | sort -n | tail -n 1";
            let now: usize = host(lab.path(), script).parse().unwrap();
            (most, was_tidied, before) = (most.max(now), was_tidied || now < before, now);
        }
        assert!(most <= 10 && was_tidied, "{most} packs at most");
        host(lab.path(), "rm -rf store/mirrors/*");
    }
}
