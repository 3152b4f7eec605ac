use super::record::Content;
use super::{Base, BaseWriter, Changes, Entry, KnownContent, Node, Snapshot, TreePath, copy};
use crate::task::output::handback::{open_tree, worktree_of};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

struct Lab {
    lab: tempfile::TempDir,
}

impl Lab {
    /// The files are older than the index.
    fn new() -> Lab {
        let lab = Lab { lab: tempfile::tempdir().unwrap() };
        fs::create_dir(lab.folder()).unwrap();
        lab.shell("mkdir sub; for name in a b sub/c; do echo $name >$name; done; chmod 600 a; git init -q");
        lab.commit();
        lab
    }

    fn folder(&self) -> PathBuf {
        self.lab.path().join("folder")
    }

    fn shell(&self, script: &str) {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-euc", script]).current_dir(self.folder());
        let told = shell.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(told.status.success(), "{script}: {}", String::from_utf8_lossy(&told.stderr));
    }

    /// Commits all files as 10 seconds old.
    fn commit(&self) {
        let script = "find . -name .git -prune -o -type f -exec touch -d '10 seconds ago' {} +; git add -A; \
                      git -c user.name=x -c user.email=x@localhost commit -qm x --allow-empty";
        self.shell(script);
    }

    fn begin(&self) -> Option<Snapshot> {
        std::thread::sleep(Duration::from_millis(50));
        let started = SystemTime::now();
        std::thread::sleep(Duration::from_millis(20));
        self.begin_at(started)
    }

    fn begin_at(&self, started: SystemTime) -> Option<Snapshot> {
        let worktree = worktree_of(&fs::canonicalize(self.folder()).unwrap());
        let folder = open_tree(&self.folder()).unwrap();
        Snapshot::begin(folder, worktree.as_ref(), tempfile::tempfile().ok(), started)
    }

    fn take(&self) -> Snapshot {
        let mut snapshot = self.begin().unwrap();
        snapshot.advance(Instant::now() + Duration::from_secs(30));
        snapshot
    }
}

/// The user wrote these files while the agent ran.
fn written(paths: &[&str]) -> Changes {
    let digest = copy::digest_of(b"");
    let entry = |path: &&str| Entry {
        path: TreePath::new(*path).unwrap(),
        now: Some(Node::File { mode: 0o644, size: 0, sha256: digest }),
        base: Some(Base::File { mode: 0o644, size: 1, content: Content::Sha256(digest) }),
        base_is_newer: true,
    };
    let mut entries: Vec<_> = paths.iter().map(entry).collect();
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Changes { entries, complete: true, ..Changes::default() }
}

/// `path mode blob|copied size` of each base.
fn found(snapshot: &Snapshot, paths: &[&str]) -> Vec<String> {
    let describe = |known: super::KnownBase| {
        let kind = match &known.content {
            KnownContent::Blob(_) => "blob",
            KnownContent::Copied(_) => "copied",
        };
        format!("{} {:o} {kind} {}", known.path, known.mode, known.size)
    };
    snapshot.find(&written(paths)).into_iter().map(describe).collect()
}

const ALL: [&str; 4] = ["a", "b", "sub/c", "untracked"];

#[test]
fn a_clean_file_has_its_blob_and_another_small_text_a_copy() {
    let lab = Lab::new();
    lab.shell("echo dirty >b; chmod 755 b; echo x >untracked");
    let snapshot = lab.take();
    assert_eq!(found(&snapshot, &ALL), ["a 600 blob 2", "b 755 copied 6", "sub/c 644 blob 6"]);
    assert!(found(&snapshot, &["absent", "sub"]).is_empty());
    // A user's later commit is not the base.
    lab.shell("for name in a b sub/c; do echo later >$name; done");
    lab.commit();
    assert_eq!(found(&snapshot, &ALL).len(), 3);
    let bases = snapshot.find(&written(&["a", "b"]));
    assert!(
        matches!(&bases[0].content, KnownContent::Blob(name) if name == "78981922613b2afb6025042ff6bd878ac1994e85")
    );
    assert!(matches!(&bases[1].content, KnownContent::Copied(bytes) if bytes == b"dirty\n"));
}

#[test]
fn a_file_that_may_not_be_what_the_agent_began_with_has_no_base() {
    let check = |change: &str, expected: &[&str]| {
        let lab = Lab::new();
        std::thread::sleep(Duration::from_millis(50));
        let started = SystemTime::now();
        std::thread::sleep(Duration::from_millis(20));
        lab.shell(change);
        let mut snapshot = lab.begin_at(started).unwrap();
        snapshot.advance(Instant::now() + Duration::from_secs(30));
        let found = found(&snapshot, &ALL);
        assert_eq!(found, expected, "{change}");
    };
    check("echo later >a", &["b 644 blob 2", "sub/c 644 blob 6"]);
    check("echo later >a; git add a; touch -d '10 seconds ago' a", &["b 644 blob 2", "sub/c 644 blob 6"]);
    check("chmod 644 a; rm b; ln -s a b; mv sub away", &[]);
    // The same content in a file that git has not read.
    check("cp -a sub other; rm -r sub; mv other sub", &["a 600 blob 2", "b 644 blob 2"]);
}

#[test]
fn a_file_that_came_with_another_folder_is_not_copied() {
    let lab = Lab::new();
    lab.shell("cp -r sub other; echo 'a dirty one' >sub/c; echo 'another one' >other/c");
    std::thread::sleep(Duration::from_millis(50));
    let started = SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    lab.shell("mv sub away; mv other sub");
    let mut snapshot = lab.begin_at(started).unwrap();
    snapshot.advance(Instant::now() + Duration::from_secs(30));
    assert_eq!(found(&snapshot, &ALL), ["a 600 blob 2", "b 644 blob 2"]);
}

#[test]
fn what_has_no_content_in_the_index_is_copied_or_unknown() {
    let lab = Lab::new();
    lab.shell("echo new >new; git add -N new; printf 'x\\0y' >binary; head -c 2000000 /dev/zero | tr '\\0' x >large");
    lab.shell("git add -N binary large; printf 'crlf\\r\\n' >b; git -c core.autocrlf=input add b");
    lab.shell("touch -d '10 seconds ago' b; git update-index --refresh -q || true");
    let paths = ["a", "b", "new", "binary", "large"];
    let snapshot = lab.take();
    let found = found(&snapshot, &paths);
    assert!(found.contains(&"new 644 copied 4".to_owned()), "{found:?}");
    assert!(!found.iter().any(|each| each.starts_with("binary") || each.starts_with("large")), "{found:?}");
    // A converted file's blob has another size: it is refused at its write (`BaseWriter`).
    assert!(found.iter().any(|each| each.starts_with("b 644")), "{found:?}");
}

#[test]
fn an_index_that_does_not_have_all_files_or_is_too_large_is_not_used() {
    let check = |change: &str, expected: usize| {
        let lab = Lab::new();
        lab.shell(change);
        let snapshot = lab.begin().map(|mut snapshot| {
            snapshot.advance(Instant::now() + Duration::from_secs(30));
            snapshot
        });
        assert_eq!(snapshot.map_or(0, |snapshot| found(&snapshot, &ALL).len()), expected, "{change}");
    };
    check("git update-index --index-version 4", 3);
    check("git update-index --split-index", 0);
    check("rm .git/index", 0);
    check("rm -r .git", 0);
    check("echo x >.git/index", 0);
    check("mv .git/index i; ln -s ../i .git/index", 0);
    // An extension that git would skip.
    let extended = |length: u32| {
        let lab = Lab::new();
        let path = lab.folder().join(".git/index");
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 20);
        bytes.extend(b"TEST");
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + length as usize + 20, 0);
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, bytes).unwrap();
        lab.begin().is_some()
    };
    assert!(extended(1 << 20) && !extended(33 << 20));
}

#[test]
fn a_snapshot_that_is_not_finished_knows_the_first_files() {
    let lab = Lab::new();
    let mut snapshot = lab.begin().unwrap();
    assert!(found(&snapshot, &ALL).is_empty());
    snapshot.advance(Instant::now());
    assert!(found(&snapshot, &ALL).is_empty());
    snapshot.advance(Instant::now() + Duration::from_secs(30));
    assert_eq!(found(&snapshot, &ALL).len(), 3);
}

#[test]
fn copies_are_bounded_in_all() {
    let lab = Lab::new();
    lab.shell("for i in $(seq 1 20); do head -c 1000000 /dev/zero | tr '\\0' x >f$i; done; git add -N .");
    let names: Vec<_> = (1..=20).map(|number| format!("f{number}")).collect();
    let found = found(&lab.take(), &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found.len(), 16, "{found:?}");
}

#[test]
fn a_base_is_written_only_if_it_is_what_is_known() {
    let lab = Lab::new();
    lab.shell("echo dirty >b");
    let snapshot = lab.take();
    let into = tempfile::tempdir().unwrap();
    fs::create_dir_all(into.path().join("files")).unwrap();
    fs::create_dir_all(into.path().join("bases")).unwrap();
    for name in ["files/a", "files/b", "bases/a"] {
        fs::write(into.path().join(name), "").unwrap();
    }
    let digest = copy::digest_of(b"dirty\n");
    let mut changes = written(&["a", "b"]);
    changes.entries[1].now = Some(Node::File { mode: 0o644, size: 6, sha256: digest });
    fs::set_permissions(lab.folder().join("b"), fs::Permissions::from_mode(0o644)).unwrap();
    changes.save(&into.path().join("changes.json")).unwrap();
    let known = snapshot.find(&changes);
    let put = |most: u64, bytes: &[&[u8]]| {
        let mut writer = BaseWriter::open(into.path(), most).unwrap();
        known.iter().zip(bytes).for_each(|(known, bytes)| writer.put(known, bytes).unwrap());
        let (_, untouched) = writer.finish().unwrap();
        (untouched.len(), Changes::load(&into.path().join("changes.json")).unwrap())
    };
    for wrong in [&b"a\r\n"[..], b"b\n", b""] {
        assert_eq!(put(100, &[wrong, b"dirtz\n"]), (0, changes.clone()));
    }
    assert_eq!(put(1, &[b"a\n"]), (0, changes.clone()));
    let (untouched, after) = put(8, &[b"a\n", b"dirty\n"]);
    // The agent left `b` as it was.
    assert_eq!((untouched, after.entries.len()), (1, 1));
    assert!(!after.entries[0].base_is_newer && !into.path().join("files/b").exists());
    let base = Base::File { mode: 0o600, size: 2, content: Content::Sha256(copy::digest_of(b"a\n")) };
    assert_eq!(after.entries[0].base, Some(base));
    assert_eq!(fs::read(into.path().join("bases/a")).unwrap(), b"a\n");
}
