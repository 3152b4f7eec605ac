use super::lab::{Lab, give_to_user, is_root, listing};
use super::{Form, Limits, Reason};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

const FORMS: [Form; 2] = [Form::Trusted, Form::User];

fn skipped(changes: &super::Changes) -> Vec<String> {
    let mut all: Vec<_> =
        changes.skipped.iter().map(|each| format!("{} {:?}", super::escape(&each.path.0), each.reason)).collect();
    all.sort();
    all
}

fn check(base: &str, agent: &str, expected: &[&str]) {
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        lab.shell("base", &format!("umask 022; {base}"));
        lab.agent(agent);
        assert_eq!(listing(&lab.collect()), expected, "{form:?}: {agent}");
    }
}

#[test]
fn files_are_added_modified_and_deleted() {
    check(
        "echo a >a; echo b >b; echo c >c; mkdir d; echo e >d/e; echo f >d/f; ln -s a l; ln -s a m",
        "echo new >n; echo more >>a; rm b; chmod 755 c; echo n >d/n; rm d/e; ln -sf b l; rm m; ln -s nowhere o",
        &[
            "modified a file 0644 7",
            "deleted b",
            "modified c file 0755 2",
            "deleted d/e",
            "added d/n file 0644 2",
            "modified l symlink b",
            "deleted m",
            "added n file 0644 4",
            "added o symlink nowhere",
        ],
    );
}

#[test]
fn what_was_only_copied_up_is_no_change() {
    check(
        "mkdir -p d/e; echo a >d/e/a; echo b >b",
        "touch d/e/a b; echo x >b; echo b >b; chmod 600 b; chmod 644 b",
        &[],
    );
}

#[test]
fn an_opaque_directory_deletes_what_it_hides() {
    check(
        "mkdir -p d/sub d/again/deep; echo a >d/a; echo b >d/b; echo c >d/sub/c; echo e >d/again/deep/e; echo f >d/again/f",
        "rm -r d; mkdir d; echo changed >d/a; echo n >d/n; mkdir -p d/again/deep; echo f >d/again/f",
        &[
            "modified d/a file 0644 8",
            "deleted d/again/deep/e",
            "deleted d/b",
            "added d/n file 0644 2",
            "deleted d/sub",
            "deleted d/sub/c",
        ],
    );
}

#[test]
fn a_path_can_change_its_type() {
    check(
        "mkdir -p d/e; echo a >d/e/a; echo f >f; echo g >g; ln -s f l",
        "rm -r d; echo d >d; rm f; mkdir f; echo x >f/x; rm g; ln -s d g; rm l; echo l >l",
        &[
            "modified d file 0644 2",
            "deleted d/e",
            "deleted d/e/a",
            "modified f directory 0755",
            "added f/x file 0644 2",
            "modified g symlink d",
            "modified l file 0644 2",
        ],
    );
}

#[test]
fn whole_directories_come_and_go() {
    check(
        "mkdir -p old/deep; echo a >old/deep/a; mkdir stays",
        "rm -r old; mkdir -p new/deep; echo b >new/deep/b; chmod 700 stays",
        &[
            "added new directory 0755",
            "added new/deep directory 0755",
            "added new/deep/b file 0644 2",
            "deleted old",
            "deleted old/deep",
            "deleted old/deep/a",
            "modified stays directory 0700",
        ],
    );
}

#[test]
fn odd_names_are_kept_byte_by_byte() {
    check(
        "true",
        r#"a=$(printf 'new\nline'); echo 1 >"$a"; b=$(printf '\377\033[2J'); echo 2 >"$b"; echo 3 >'a b"c\d'"#,
        &[r#"added a b"c\\d file 0644 2"#, r"added new\x0aline file 0644 2", r"added \xff\x1b[2j file 0644 2"],
    );
}

#[test]
fn a_workspace_without_a_base_is_all_new_and_has_no_marks() {
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell("upper", "umask 022; mkdir d; echo a >d/a; : >empty");
    if is_root() {
        lab.shell(
            "upper",
            "mknod dev c 0 0; setfattr -n user.overlay.whiteout -v y empty; setfattr -n trusted.overlay.opaque -v y d",
        );
    }
    let changes = lab.collect();
    assert_eq!(listing(&changes), ["added d directory 0755", "added d/a file 0644 2", "added empty file 0644 0"]);
    assert_eq!(skipped(&changes), if is_root() { vec!["dev Device"] } else { vec![] });
}

#[test]
fn an_agent_cannot_forge_the_marks_of_the_other_form() {
    let Some(lab) = Lab::new(Form::Trusted) else { return };
    lab.shell("base", "umask 022; mkdir d; echo a >d/a; echo b >b");
    lab.agent("echo n >d/n; setfattr -n user.overlay.opaque -v y d; : >b; setfattr -n user.overlay.whiteout -v y b");
    assert_eq!(listing(&lab.collect()), ["modified b file 0644 0", "added d/n file 0644 2"]);
}

#[test]
fn an_empty_file_with_the_mark_is_a_deletion_and_x_is_not_opaque() {
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        let prefix = if form == Form::User { "user" } else { "trusted" };
        lab.shell("base", "mkdir d; echo a >d/a; echo b >d/b");
        let marks =
            format!("setfattr -n {prefix}.overlay.whiteout -v y d/a; setfattr -n {prefix}.overlay.opaque -v x d");
        lab.shell("upper", &format!("mkdir d; : >d/a; {marks}"));
        lab.agent("test -e d/b && test ! -e d/a");
        assert_eq!(listing(&lab.collect()), ["deleted d/a"], "{form:?}");
    }
}

#[test]
fn an_overlay_that_hides_content_elsewhere_is_refused() {
    let Some(lab) = Lab::new(Form::Trusted) else { return };
    for (mark, option) in [("redirect", "redirect_dir=off"), ("metacopy", "metacopy=off")] {
        let what = if mark == "redirect" { "mkdir x" } else { "rmdir x; echo a >x" };
        lab.shell("upper", &format!("{what}; setfattr -n trusted.overlay.{mark} -v y x"));
        let error = lab.collect_with(&Limits::default()).unwrap_err();
        assert!(error.advice().is_some_and(|hint| hint.ends_with(option)), "{error}");
        fs::remove_dir_all(lab.at("out")).unwrap();
    }
}

#[test]
fn nothing_but_files_directories_and_links_is_taken_and_no_link_is_followed() {
    let lab = Lab::new(Form::Plain).unwrap();
    fs::write(lab.at("secret"), "host").unwrap();
    let nodes = if is_root() { "mknod disk b 7 0; mknod mem c 1 1;" } else { "" };
    lab.shell("upper", &format!("umask 022; mkfifo fifo; {nodes} mkdir d; ln -s ../secret link; ln -s ../.. d/up"));
    std::os::unix::net::UnixListener::bind(lab.at("upper/socket")).unwrap();
    let changes = lab.collect();
    assert_eq!(
        listing(&changes),
        ["added d directory 0755", "added d/up symlink ../..", "added link symlink ../secret"]
    );
    let expected: &[&str] = if is_root() {
        &["disk Device", "fifo Fifo", "mem Device", "socket Socket"]
    } else {
        &["fifo Fifo", "socket Socket"]
    };
    assert_eq!(skipped(&changes), expected);
    assert!(!lab.at("out/files/link").exists());
}

#[test]
fn a_link_of_the_base_is_not_followed_when_the_agent_makes_it_a_directory() {
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        lab.shell(".", "mkdir outside; echo secret >outside/a; ln -s ../outside base/d");
        lab.agent("rm d; mkdir d; echo x >d/a");
        let changes = lab.collect();
        assert_eq!(listing(&changes), ["modified d directory 0755", "added d/a file 0644 2"], "{form:?}");
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    if is_root() {
        crate::files::skip("what_cannot_be_read_is_said: needs an ordinary user");
        return;
    }
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell("upper", "echo a >a; chmod 0 a; mkdir d; echo b >d/b; chmod 0 d; echo c >c");
    let changes = lab.collect();
    assert_eq!(skipped(&changes), ["a Unreadable", "d Unreadable"]);
}

#[test]
fn limits_hold_and_are_said() {
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell("upper", "umask 022; mkdir -p d/d/d/d; truncate -s 10G huge; echo ab >x; echo cd >y; echo ef >z");
    let limits = Limits { depth: 3, total_bytes: 6, ..Limits::default() };
    let changes = lab.collect_with(&limits).unwrap();
    assert_eq!(skipped(&changes), ["d/d/d TooDeep", "huge TooLarge", "z OverTotal"]);
    assert!(!changes.complete, "a part was not looked at");
    fs::remove_dir_all(lab.at("out")).unwrap();
    let changes = lab.collect_with(&Limits { names: 3, skipped: 0, ..Limits::default() }).unwrap();
    assert!(!changes.complete && changes.skipped.is_empty() && changes.skipped_more > 0 && changes.entries.len() <= 3);
}

#[test]
fn names_and_targets_are_taken_as_long_as_the_record_has_room_for_them() {
    let lab = Lab::new(Form::Plain).unwrap();
    // `a` is 3 bytes of JSON with quotes, one `\xff` is 7, and a target counts like a name.
    lab.shell("upper", "for n in a b c; do : >$n; done; ln -s $(printf '%0100d' 0) d; : >e; : >f");
    let check = |path_bytes, taken: usize| {
        let changes = lab.collect_with(&Limits { path_bytes, ..Limits::default() }).unwrap();
        assert_eq!((changes.entries.len(), changes.complete), (taken, taken == 6), "{path_bytes}");
        assert_eq!(skipped(&changes), if taken == 6 { Vec::new() } else { vec![". TooMany"] }, "{path_bytes}");
        let copies = fs::read_dir(lab.at("out/files")).unwrap().count();
        assert_eq!(copies, taken.min(3) + taken.saturating_sub(4), "nothing is copied that is in no entry");
        fs::remove_dir_all(lab.at("out")).unwrap();
    };
    check(3 * 6 + 102, 6);
    check(3 * 6 + 101, 5);
    check(3 * 4 + 101, 3);
    check(3 * 2, 2);
    check(0, 0);
    lab.shell("upper", "rm *; for n in 1 2 3 4 5 6; do mkfifo $n; done");
    let changes = lab.collect_with(&Limits { skipped_bytes: 8, ..Limits::default() }).unwrap();
    assert_eq!((changes.skipped.len(), changes.skipped_more, changes.complete), (3, 3, true));
}

#[test]
fn a_nest_deeper_than_any_path_ends() {
    let lab = Lab::new(Form::Plain).unwrap();
    // Each level is made from inside its parent: the whole path is too long for one call.
    let mut directory = lab.open("upper");
    for _ in 0..3000 {
        rustix::fs::mkdirat(&directory, "deep", rustix::fs::Mode::RWXU).unwrap();
        directory = super::tree::directory(std::os::fd::AsFd::as_fd(&directory), b"deep").unwrap();
    }
    let changes = lab.collect();
    assert_eq!((changes.entries.len(), changes.complete), (200, false));
    assert_eq!(changes.skipped[0].reason, Reason::TooDeep);
    lab.shell("upper", "rm -r deep");
}

#[test]
fn copies_are_plain() {
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell(
        "upper",
        "echo a >a; chmod 6755 a; setfattr -n user.x -v y a; truncate -s 100M s; echo end >>s; : >none; chmod 0 none",
    );
    give_to_user(&lab.at("upper/a"));
    lab.shell("upper", if is_root() { "chmod 6755 a" } else { "true" });
    let changes = lab.collect();
    let status = fs::metadata(lab.at("out/files/a")).unwrap();
    assert_eq!((status.mode() & 0o7777, status.uid()), (0o755, rustix::process::geteuid().as_raw()));
    assert!(rustix::fs::getxattr(lab.at("out/files/a"), "user.x", &mut [0_u8; 8][..]).is_err());
    assert!(fs::metadata(lab.at("out/files/s")).unwrap().blocks() < 1000, "the hole was filled");
    assert!(skipped(&changes).contains(&"a SetIdBits".to_owned()));
    if is_root() {
        assert_eq!(fs::metadata(lab.at("out/files/none")).unwrap().permissions().mode() & 0o777, 0o400);
    }
}

#[test]
fn an_edit_of_the_users_during_the_run_is_marked() {
    let Some(lab) = Lab::new(Form::User) else { return };
    lab.shell("base", "echo a >a; echo b >b");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let started = Some(std::time::SystemTime::now());
    std::thread::sleep(std::time::Duration::from_millis(20));
    lab.agent("echo x >>a; echo y >>b");
    lab.shell("base", "echo edit >b");
    let (upper, base) = (lab.open("upper"), lab.open("base"));
    let workspace = super::Workspace {
        hidden: None,
        upper: upper.as_fd(),
        lower: Some(base.as_fd()),
        above: None,
        worktree: None,
        form: lab.form,
        started,
    };
    let changes = super::collect(workspace, &lab.at("out"), &Limits::default()).unwrap();
    // `give_to_user` changes both files, so as root only the edited file is asserted.
    let newer: Vec<_> =
        changes.entries.iter().filter(|entry| entry.base_is_newer).map(|entry| entry.path.to_string()).collect();
    assert!(newer.contains(&"b".to_owned()));
    assert!(is_root() || newer == ["b"]);
}

#[test]
fn a_symlink_as_the_store_is_refused() {
    let lab = Lab::new(Form::Plain).unwrap();
    fs::create_dir(lab.at("out")).unwrap();
    symlink("../base", lab.at("out/files")).unwrap();
    lab.shell("upper", "echo a >a");
    assert!(lab.collect_with(&Limits::default()).is_err());
    assert!(!lab.at("base/a").exists());
}

#[test]
fn a_directory_that_becomes_a_link_under_the_walk_is_not_followed() {
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell(".", "mkdir secrets; i=0; while [ $i -lt 50 ]; do echo host >secrets/$i; i=$((i+1)); done; mkdir upper/d upper/e; echo a >upper/d/mine");
    symlink("../secrets", lab.at("link")).unwrap();
    let (here, there) = (lab.at("upper/d"), lab.at("link"));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let stop = stop.clone();
        move || {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let mut leaked = Vec::new();
    for _ in 0..400 {
        let changes = lab.collect();
        leaked.extend(
            changes
                .entries
                .iter()
                .map(|entry| entry.path.to_string())
                .filter(|path| path.starts_with("d/") && path != "d/mine"),
        );
        fs::remove_dir_all(lab.at("out")).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(leaked.is_empty(), "files of the host were taken: {leaked:?}");
}

#[test]
fn names_of_a_hard_link_are_links_in_the_store_and_where_they_are_applied() {
    let Some(lab) = Lab::new(Form::User) else { return };
    lab.shell("base", "echo b >b; echo c >name-7");
    lab.shell(".", "cp -a base target");
    lab.agent("head -c 1000000 /dev/urandom >a; i=0; while [ $i -lt 40 ]; do ln -f a name-$i; i=$((i+1)); done");
    let changes = lab.collect_with(&Limits { disk_bytes: 2 << 20, total_bytes: 3 << 20, ..Limits::default() }).unwrap();
    assert_eq!((changes.entries.len(), skipped(&changes)), (41, Vec::new()));
    let is_one_file = |tree: &str| {
        let first = fs::metadata(lab.at(tree).join("a")).unwrap();
        let status = |number: usize| fs::metadata(lab.at(tree).join(format!("name-{number}"))).unwrap();
        assert!((0..40).all(|number| status(number).ino() == first.ino()), "copies in `{tree}`");
    };
    is_one_file("out/files");
    let applied =
        super::apply(&changes, &lab.at("out"), (None, lab.open("target").as_fd()), super::Options::default()).unwrap();
    assert_eq!(applied.changed.len(), 41);
    is_one_file("target");
    lab.shell("target", "cmp a name-7; cmp a name-39; test \"$(cat b)\" = b");
}

#[test]
fn copies_take_no_more_than_the_disk_limit_and_the_walk_no_more_than_its_time() {
    let lab = Lab::new(Form::Plain).unwrap();
    lab.shell("upper", "head -c 600000 /dev/zero >a; head -c 600000 /dev/zero >b; truncate -s 100M holes");
    let changes = lab.collect_with(&Limits { disk_bytes: 1 << 20, ..Limits::default() }).unwrap();
    assert_eq!(skipped(&changes), ["b OverDisk"]);
    assert_eq!(changes.entries.len(), 2);
    fs::remove_dir_all(lab.at("out")).unwrap();
    let changes = lab.collect_with(&Limits { time: std::time::Duration::ZERO, ..Limits::default() }).unwrap();
    assert_eq!((changes.complete, changes.entries.len()), (false, 0));
    assert_eq!(skipped(&changes), [". OutOfTime"]);
}
