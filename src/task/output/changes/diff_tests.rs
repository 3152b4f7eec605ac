use super::lab::{Lab, picture};
use super::{Binary, Changes, DiffOptions, Diffed, Form, Limits, Options, Workspace, apply, collect, diff};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const LITERAL: DiffOptions = DiffOptions { include_git: false, binary: Binary::Literal };

fn patch_of(lab: &Lab, changes: &Changes, options: DiffOptions) -> (Vec<u8>, Diffed) {
    let base = lab.open("base");
    let mut patch = Vec::new();
    let diffed = diff(changes, &lab.at("out"), Some(base.as_fd()), options, &mut patch).unwrap();
    (patch, diffed)
}

fn take(lab: &Lab, patch: &[u8], tool: &[&str]) -> Result<(), String> {
    fs::write(lab.at("patch"), patch).unwrap();
    lab.shell(".", "rm -rf taken; cp -a base taken");
    let mut command = Command::new(tool[0]);
    command.args(&tool[1..]).arg(lab.at("patch")).current_dir(lab.at("taken"));
    command
        .env("GIT_CEILING_DIRECTORIES", lab.at(""))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().unwrap();
    let words = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&words).into_owned()) }
}

const GIT: &[&str] = &["git", "apply", "-p1", "--whitespace=nowarn"];
const PATCH: &[&str] = &["patch", "-p1", "--no-backup-if-mismatch", "-s", "-i"];

/// Files with the executable bit, and links.
fn carried(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut picture = picture(root);
    picture.retain(|path, what| !what.starts_with("directory") && !path.starts_with(b".git/"));
    picture
}

#[test]
fn git_and_patch_take_every_kind_of_change() {
    let base = "umask 022; printf '1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n' >a; echo gone >b; mkdir d; echo t >d/t; printf end >e; : >empty; \
                echo x >x; echo 'sp' >'a b'; printf 'crlf\\r\\n' >w; ln -s a l; ln -s a dead; echo f >'b c'";
    let agent = "sed -i 's/5/five/' a; rm b; echo n >d/n; rm d/t; printf 'end\\n' >e; rm empty; chmod 755 x; echo more >>'a b'; \
                 : >none; : >'no ne'; printf 'crlf\\r\\nx\\r\\n' >w; ln -sf b l; rm dead; ln -s a new; chmod 755 'b c'; \
                 n=$(printf 'tab\\there'); echo 1 >\"$n\"; n=$(printf '\\303\\251 \\377'); echo 2 >\"$n\"; echo q >'q\"\\'; \
                 mkdir .git; echo evil >.git/config";
    for tool in [GIT, PATCH] {
        let Some(lab) = Lab::new(Form::User) else { return };
        lab.shell("base", base);
        lab.agent(agent);
        let changes = lab.collect();
        let (patch, diffed) = patch_of(&lab, &changes, DiffOptions::default());
        assert_eq!((diffed.in_git, diffed.noted.len(), diffed.base_changed.len()), (2, 0, 0));
        take(&lab, &patch, tool)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", tool[0], String::from_utf8_lossy(&patch)));
        assert_eq!(carried(&lab.at("taken")), carried(&lab.at("result")), "{}", tool[0]);
    }
}

#[test]
fn a_file_that_becomes_a_link_or_a_directory_is_two_changes() {
    let Some(lab) = Lab::new(Form::User) else { return };
    lab.shell("base", "umask 022; echo f >f; echo g >g; ln -s f l; mkdir d; echo x >d/x");
    lab.agent("rm f; ln -s g f; rm l; echo l >l; rm g; mkdir g; echo y >g/y; rm -r d; echo d >d");
    let changes = lab.collect();
    let (patch, _) = patch_of(&lab, &changes, DiffOptions::default());
    take(&lab, &patch, GIT).unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&patch)));
    assert_eq!(carried(&lab.at("taken")), carried(&lab.at("result")));
}

#[test]
fn a_binary_file_is_a_note_or_gits_binary_form() {
    let Some(lab) = Lab::new(Form::User) else { return };
    lab.shell("base", "umask 022; printf 'a\\0b' >old; printf 'x\\0' >gone; echo text >text");
    lab.agent("printf 'a\\0c' >old; rm gone; head -c 200000 /dev/urandom >new; printf '\\0' >text");
    let changes = lab.collect();
    let (patch, diffed) = patch_of(&lab, &changes, DiffOptions::default());
    let text = String::from_utf8(patch).unwrap();
    assert!(text.contains("diff --git a/old b/old\nBinary files a/old and b/old differ\n"), "{text}");
    assert!(text.contains("new file mode 100644\nBinary files /dev/null and b/new differ\n"), "{text}");
    assert!(text.contains("deleted file mode 100644\nBinary files a/gone and /dev/null differ\n"), "{text}");
    assert_eq!(diffed.noted.len(), 4);
    let (patch, diffed) = patch_of(&lab, &changes, LITERAL);
    assert_eq!(diffed.noted.len(), 0);
    take(&lab, &patch, GIT).unwrap();
    assert_eq!(carried(&lab.at("taken")), carried(&lab.at("result")));
}

#[test]
fn a_base_that_is_not_as_it_was_is_shown_as_it_was_or_left_out() {
    let Some(lab) = Lab::new(Form::User) else { return };
    lab.shell("base", "echo a >a; echo b >b; echo c >c; echo secret >../secret");
    lab.agent("echo x >a; echo x >b; echo x >c");
    let changes = lab.collect();
    lab.shell("base", "echo A >a; rm b; ln -s ../secret b");
    let paths = |paths: &[super::TreePath]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (patch, diffed) = patch_of(&lab, &changes, DiffOptions::default());
    assert_eq!((paths(&diffed.edited_since), diffed.base_changed.len()), (vec!["a".to_owned(), "b".to_owned()], 0));
    let text = String::from_utf8(patch).unwrap();
    assert!(text.contains("-a\n+x\n") && text.contains("-b\n+x\n") && !text.contains("secret"), "{text}");
    // Without the kept copy, or with one that differs from the record.
    lab.shell("out", "echo evil >bases/a; rm bases/b");
    let (patch, diffed) = patch_of(&lab, &changes, DiffOptions::default());
    assert_eq!(paths(&diffed.base_changed), ["a", "b"]);
    let text = String::from_utf8(patch).unwrap();
    assert!(text.contains("+++ b/c\n") && !text.contains("secret"), "{text}");
}

/// Few names, so that two random trees have much in common.
#[derive(Clone, Debug)]
enum Thing {
    Text(Vec<u8>, bool),
    Link(String),
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("a"),
        Just("b"),
        Just("c"),
        Just(""),
        Just("- x"),
        Just("+++ b/a"),
        Just("\\ No newline"),
        Just("\u{e9}\r")
    ];
    let binary = proptest::collection::vec(any::<u8>(), 0..200);
    let lines = (proptest::collection::vec(line, 0..30), any::<bool>()).prop_map(|(lines, ends)| {
        let text = lines.join("\n");
        if ends { text + "\n" } else { text }.into_bytes()
    });
    prop_oneof![9 => lines, 1 => binary]
}

fn tree() -> impl Strategy<Value = BTreeMap<String, Thing>> {
    let name = prop_oneof![Just("a"), Just("b c"), Just("d\u{e9}"), Just("q\"\\"), Just("t\tn\n"), Just("-x")];
    let path = proptest::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    // Links lead nowhere: git follows a link that replaces a directory, and fails at a loop.
    let thing = prop_oneof![
        8 => (text(), any::<bool>()).prop_map(|(text, runs)| Thing::Text(text, runs)),
        1 => prop_oneof![Just("nowhere"), Just("./not there")].prop_map(|target| Thing::Link(target.to_owned())),
    ];
    proptest::collection::btree_map(path, thing, 0..12)
}

fn write(root: &Path, tree: &BTreeMap<String, Thing>) {
    fs::create_dir(root).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    for (path, thing) in tree {
        let at = root.join(path);
        let mut above = root.to_path_buf();
        let names: Vec<_> = path.split('/').collect();
        let free = names[..names.len() - 1].iter().all(|name| {
            above.push(name);
            fs::symlink_metadata(&above).map_or_else(|_| fs::create_dir(&above).is_ok(), |status| status.is_dir())
        });
        if !free || fs::symlink_metadata(&at).is_ok() {
            continue;
        }
        match thing {
            Thing::Link(target) => symlink(target, at).unwrap(),
            Thing::Text(text, runs) => {
                fs::write(&at, text).unwrap();
                fs::set_permissions(&at, fs::Permissions::from_mode(if *runs { 0o755 } else { 0o644 })).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// An upper directory that is opaque at its root is a whole new tree: no mount needed.
    #[test]
    fn random_trees_survive_collect_apply_and_patch(old in tree(), new in tree()) {
        let lab = Lab::new(Form::Plain).unwrap();
        fs::remove_dir(lab.at("base")).unwrap();
        fs::remove_dir(lab.at("upper")).unwrap();
        write(&lab.at("base"), &old);
        write(&lab.at("upper"), &new);
        rustix::fs::setxattr(lab.at("upper"), "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
        let (upper, base) = (lab.open("upper"), lab.open("base"));
        let workspace = Workspace { upper: upper.as_fd(), lower: Some(base.as_fd()), above: None, worktree: None, hidden: None, form: Form::User, started: None };
        let changes = collect(workspace, &lab.at("out"), &Limits::default()).unwrap();

        lab.shell(".", "cp -a base target");
        let options = Options { include_git: false, force: true, merge: false, dry_run: false, git_modes: false };
        let applied = apply(&changes, &lab.at("out"), (None, lab.open("target").as_fd()), options).unwrap();
        prop_assert!(applied.left_out.is_empty() && applied.conflicts.is_empty(), "{:?}", applied);
        prop_assert_eq!(picture(&lab.at("target")), picture(&lab.at("upper")));

        let (patch, diffed) = patch_of(&lab, &changes, LITERAL);
        prop_assert!(diffed.noted.is_empty() && diffed.base_changed.is_empty());
        if !patch.is_empty() {
            let taken = take(&lab, &patch, GIT);
            prop_assert!(taken.is_ok(), "{}\n{}", taken.unwrap_err(), String::from_utf8_lossy(&patch));
            prop_assert_eq!(carried(&lab.at("taken")), carried(&lab.at("upper")));
            // `patch` supports neither binary files nor a path that changes its type.
            let has_link = |tree: &BTreeMap<String, Thing>| tree.values().any(|thing| matches!(thing, Thing::Link(_)));
            let changes_type = changes.entries.iter().any(|entry| match (&entry.base, &entry.now) {
                (Some(super::Base::Directory { .. }), Some(super::Node::Directory { .. })) => false,
                (Some(super::Base::File { .. }), Some(super::Node::File { .. })) => false,
                (base, now) => base.is_some() && now.is_some(),
            });
            // GNU patch 2.8 does not write a name with a line break.
            let breaks = |tree: &BTreeMap<String, Thing>| tree.keys().any(|path| path.contains('\n'));
            if breaks(&old) || breaks(&new) {
                return Ok(());
            }
            if !patch.contains(&0) && !patch.windows(16).any(|part| part == b"GIT binary patch") && !changes_type && !has_link(&old) && !has_link(&new) {
                let taken = take(&lab, &patch, PATCH);
                prop_assert!(taken.is_ok(), "{}\n{}", taken.unwrap_err(), String::from_utf8_lossy(&patch));
                prop_assert_eq!(carried(&lab.at("taken")), carried(&lab.at("upper")));
            }
        }
    }
}
