use super::lab::{Lab, is_root, picture};
use super::{Applied, Changes, Difference, Form, LeftOutReason, Options, apply, leads_out};
use crate::error::Kind;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

const PLAIN: Options = Options { include_git: false, force: false, merge: false, dry_run: false, git_modes: false };
const MERGE: Options = Options { merge: true, ..PLAIN };
const FORCE: Options = Options { force: true, ..PLAIN };
const DRY: Options = Options { dry_run: true, ..PLAIN };

fn lab(form: Form, base: &str, agent: &str) -> Option<(Lab, Changes)> {
    let lab = Lab::new(form)?;
    lab.shell("base", &format!("umask 022; {base}"));
    lab.shell(".", "cp -a base target");
    lab.agent(agent);
    let changes = lab.collect();
    Some((lab, changes))
}

/// With the fewest requirements: these tests are about the target.
fn simple(base: &str, agent: &str) -> Option<(Lab, Changes)> {
    lab(Form::User, base, agent)
}

fn run(lab: &Lab, changes: &Changes, options: Options) -> crate::error::Result<Applied> {
    apply(changes, &lab.at("out"), (None, lab.open("target").as_fd()), options)
}

fn unchanged(lab: &Lab, changes: &Changes, options: Options, expected: &str) {
    let before = picture(&lab.at("target"));
    let error = run(lab, changes, options).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(picture(&lab.at("target")), before, "a refused apply changed the tree");
}

const BASE: &str = "echo a >a; echo b >b; mkdir -p d/e gone/deep; echo e >d/e/e; echo g >gone/deep/g; ln -s a l; \
                    mkdir kind; echo k >kind/k; echo f >flat; echo x >x; chmod 755 x; mkdir shut; echo s >shut/s";
const AGENT: &str = "echo more >>a; rm b; mkdir -p new/deep; echo n >new/deep/n; echo n >d/e/n; rm -r gone; ln -sf d l; \
                     rm -r kind; echo k >kind; rm flat; mkdir flat; echo y >flat/y; chmod 600 x; chmod 500 shut; \
                     ln -s d/e/n m; mkdir closed; echo c >closed/c; chmod 555 closed; n=$(printf 'o\\n\\377dd'); echo o >\"$n\"";

#[test]
fn the_target_becomes_what_the_agent_saw() {
    for form in [Form::Trusted, Form::User] {
        let Some((lab, changes)) = lab(form, BASE, AGENT) else { continue };
        let seen = picture(&lab.at("result"));
        let dry = run(&lab, &changes, DRY).unwrap();
        assert_ne!(picture(&lab.at("target")), seen, "a dry run wrote");
        let applied = run(&lab, &changes, PLAIN).unwrap();
        assert_eq!(applied, dry);
        assert_eq!(picture(&lab.at("target")), seen, "{form:?}");
        assert!(applied.left_out.is_empty() && applied.conflicts.is_empty());
        let again = run(&lab, &changes, PLAIN).unwrap();
        assert_eq!(
            (again.changed.len(), again.already),
            (0, applied.changed.len()),
            "the second time there is nothing to do"
        );
    }
}

#[test]
fn what_the_user_changed_meanwhile_is_a_conflict_and_nothing_is_written() {
    let Some((lab, changes)) =
        simple("echo a >a; echo b >b; mkdir d; echo c >d/c", "echo x >>a; rm b; echo new >n; rm -r d")
    else {
        return;
    };
    let check = |user: &str, expected: &str| {
        lab.shell(".", "rm -rf target; cp -a base target");
        lab.shell("target", user);
        unchanged(&lab, &changes, PLAIN, expected);
    };
    check("echo mine >a", "`a` was changed");
    check("chmod 600 a", "`a` was changed");
    check("rm a", "`a` is gone");
    check("echo mine >>b", "`b` was changed");
    check("echo mine >n", "`n` is there already");
    check("mkdir n", "`n` is a directory now");
    check("echo mine >d/mine", "`d` holds something else");
    check("rm a; ln -s b a", "`a` was changed");
    check("rm a; mkfifo a", "`a` was changed");
    lab.shell("target", "rm a; echo mine >n; echo mine >d/mine");
    let dry = run(&lab, &changes, DRY).unwrap();
    let found: Vec<_> = dry.conflicts.iter().map(|each| (each.path.to_string(), each.difference)).collect();
    let expected = [("a", Difference::Missing), ("n", Difference::Exists), ("d", Difference::NotEmpty)];
    assert_eq!(found, expected.map(|(path, difference)| (path.to_owned(), difference)));
}

#[test]
fn force_overwrites_files_and_never_whole_directories() {
    let Some((lab, changes)) =
        simple("echo a >a; echo b >b; mkdir d; echo c >d/c", "echo x >>a; rm b; echo new >n; rm -r d")
    else {
        return;
    };
    lab.shell("target", "echo mine >a; echo mine >b; echo mine >n; echo mine >d/mine");
    let applied = run(&lab, &changes, FORCE).unwrap();
    assert_eq!(applied.conflicts.len(), 3);
    assert_eq!((applied.left_out.len(), applied.left_out[0].why), (1, LeftOutReason::NotEmpty));
    lab.shell(
        "target",
        r#"test "$(cat a)" = "$(printf 'a\nx')"; test ! -e b; test "$(cat n)" = new; test "$(ls d)" = mine"#,
    );
    lab.shell("target", "rm n; mkdir n; echo precious >n/file");
    unchanged(&lab, &changes, FORCE, "`n` is a directory now");
}

#[test]
fn a_link_in_place_of_a_directory_is_not_followed() {
    let Some((lab, changes)) = simple("mkdir -p d/e; echo a >d/e/a", "echo x >d/e/a; echo n >d/e/n") else { return };
    for (victim, link) in [("d/e", "../../victim"), ("d", "../victim")] {
        lab.shell(
            ".",
            "rm -rf target victim; cp -a base target; mkdir -p victim/e; echo a >victim/a; echo a >victim/e/a",
        );
        lab.shell(".", &format!("rm -r target/{victim}; ln -s {link} target/{victim}"));
        for options in [PLAIN, FORCE] {
            let outside = picture(&lab.at("victim"));
            unchanged(&lab, &changes, options, "a link in its place");
            assert_eq!(picture(&lab.at("victim")), outside, "something outside was written");
        }
    }
}

#[test]
fn a_directory_that_is_replaced_during_the_apply_is_not_followed_and_all_is_put_back() {
    let Some((lab, changes)) = simple(
        "echo a >a; mkdir d z; echo a >d/a; echo z >z/z; mkdir gone; echo g >gone/g",
        "echo x >a; echo n >0; echo x >d/a; chmod 700 d; echo n >z/n; rm -r gone; mkdir made; echo m >made/m",
    ) else {
        return;
    };
    lab.shell(".", "mkdir victim; echo v >victim/v");
    let target = lab.open("target");
    let plan = super::check::check(&changes, target.as_fd(), PLAIN).unwrap();
    // Between the check and the write, another process replaces the last directory by a link.
    lab.shell("target", "mv z elsewhere; ln -s ../victim z");
    let before = picture(&lab.at("target"));
    let store = super::store::Store::open(&lab.at("out")).unwrap();
    let error = super::commit::commit(&plan, &store, target.as_fd()).unwrap_err();
    assert!(error.to_string().contains("z/n"), "{error}");
    assert_eq!(picture(&lab.at("target")), before, "not everything was put back");
    assert_eq!(fs::read_dir(lab.at("victim")).unwrap().count(), 1);
}

#[test]
fn an_edit_between_check_and_writing_is_put_back() {
    let Some((lab, changes)) = simple("echo a >a; echo b >b", "echo x >a; rm b") else { return };
    for file in ["a", "b"] {
        let target = lab.open("target");
        let plan = super::check::check(&changes, target.as_fd(), PLAIN).unwrap();
        lab.shell("target", &format!("cp -a {file} keep; echo mine >{file}"));
        let before = picture(&lab.at("target"));
        let store = super::store::Store::open(&lab.at("out")).unwrap();
        let error = super::commit::commit(&plan, &store, target.as_fd()).unwrap_err();
        assert!(error.to_string().contains("it was changed at this moment"), "{error}");
        assert_eq!(picture(&lab.at("target")), before);
        lab.shell("target", &format!("mv keep {file}"));
    }
}

#[test]
fn git_is_left_out_unless_asked_for() {
    let agent = "mkdir -p .git/hooks sub/.GIT; echo evil >.git/hooks/post-checkout; chmod 755 .git/hooks/post-checkout; \
                 echo evil >.git/config; echo evil >sub/.GIT/config; echo ok >sub/ok";
    let Some((lab, changes)) = simple("mkdir .git; echo good >.git/config", agent) else { return };
    let applied = run(&lab, &changes, PLAIN).unwrap();
    assert!(applied.left_out.iter().all(|each| each.why == LeftOutReason::Git) && applied.left_out.len() == 5);
    lab.shell("target", "test \"$(cat .git/config)\" = good; test ! -e .git/hooks; test ! -e sub/.GIT; test -e sub/ok");
    let _ = run(&lab, &changes, Options { include_git: true, ..PLAIN }).unwrap();
    lab.shell("target", "test \"$(cat .git/config)\" = evil; test -x .git/hooks/post-checkout");
}

#[test]
fn links_that_lead_out_are_left_out_also_by_force() {
    let agent = "ln -s /etc/passwd abs; ln -s ../x up; mkdir d; ln -s ../a in; ln -s ../a d/in; ln -s x/../.. d/odd";
    let Some((lab, changes)) = simple("echo a >a", agent) else { return };
    for options in [PLAIN, FORCE] {
        let applied = run(&lab, &changes, options).unwrap();
        let mut out: Vec<_> = applied.left_out.iter().map(|each| each.path.to_string()).collect();
        out.sort();
        assert_eq!(out, ["abs", "d/odd", "in", "up"], "{options:?}");
        assert!(fs::symlink_metadata(lab.at("target/abs")).is_err() && lab.at("target/d/in").exists());
    }
}

#[test]
fn where_a_link_leads_is_read_from_its_text() {
    let check = |path: &str, target: &str, out: bool| {
        assert_eq!(leads_out(&super::TreePath::new(path).unwrap(), target.as_bytes()), out, "{path} -> {target}");
    };
    check("l", "a/b", false);
    check("l", ".", false);
    check("l", "..", true);
    check("d/l", "..", false);
    check("d/l", "../..", true);
    check("d/l", "./../a", false);
    check("d/e/l", "../../a", false);
    check("l", "/", true);
    // `a` may be a link to a deeper place, and then `..` differs.
    check("d/l", "a/..", true);
}

#[test]
fn a_damaged_copy_is_found_before_anything_is_written() {
    let Some((lab, changes)) = simple("echo a >a; echo b >b", "rm b; echo x >a; echo n >n") else { return };
    fs::write(lab.at("out/files/n"), "X\n").unwrap();
    unchanged(&lab, &changes, PLAIN, "the copy differs from the record");
    fs::remove_file(lab.at("out/files/n")).unwrap();
    symlink("/etc/passwd", lab.at("out/files/n")).unwrap();
    unchanged(&lab, &changes, PLAIN, "write `n`: open the copy");
}

#[test]
fn only_one_apply_runs_and_the_record_cannot_use_its_name() {
    let Some((lab, changes)) = simple("echo a >a", "echo x >a; mkdir .brig-apply; echo n >.brig-apply/list") else {
        return;
    };
    fs::create_dir(lab.at("target/.brig-apply")).unwrap();
    let error = run(&lab, &changes, PLAIN).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    fs::remove_dir(lab.at("target/.brig-apply")).unwrap();
    let applied = run(&lab, &changes, PLAIN).unwrap();
    assert_eq!(applied.left_out.iter().map(|each| each.why).collect::<Vec<_>>(), [LeftOutReason::OurName; 2]);
    assert!(!lab.at("target/.brig-apply").exists());
}

#[test]
fn modes_have_no_setuid_bit_and_the_owner_is_that_of_the_tree() {
    let Some((lab, changes)) =
        simple("echo a >a; chmod 644 a", "chmod 6755 a; mkdir d; echo s >d/s; chmod 4711 d/s; ln -s a l")
    else {
        return;
    };
    let _ = run(&lab, &changes, PLAIN).unwrap();
    let status = |name: &str| fs::symlink_metadata(lab.at("target").join(name)).unwrap();
    assert_eq!(status("a").permissions().mode() & 0o7777, 0o755);
    assert_eq!(status("d/s").permissions().mode() & 0o7777, 0o711);
    let owner = fs::metadata(lab.at("target")).unwrap().uid();
    assert!(!is_root() || owner != 0, "the lab of an ordinary user is to be applied to by root");
    for name in ["a", "d", "d/s", "l"] {
        assert_eq!(status(name).uid(), owner, "{name}");
    }
}

#[test]
fn an_incomplete_record_is_refused_unless_forced() {
    let Some((lab, mut changes)) = simple("echo a >a", "echo x >a") else { return };
    changes.complete = false;
    unchanged(&lab, &changes, PLAIN, "the record is incomplete");
    let _ = run(&lab, &changes, FORCE).unwrap();
    assert_eq!(fs::read(lab.at("target/a")).unwrap(), b"x\n");
}

#[test]
fn an_edit_during_the_run_is_a_conflict() {
    let Some((lab, mut changes)) = simple("echo a >a", "echo x >a") else { return };
    changes.entries[0].base_is_newer = true;
    unchanged(&lab, &changes, PLAIN, "`a` was edited while the agent ran");
    lab.shell("target", "echo b >>a");
    unchanged(&lab, &changes, MERGE, "`a` was edited while the agent ran");
}

#[test]
fn both_edits_are_joined_by_a_merge_and_edits_of_the_same_lines_are_refused() {
    let base = "printf '1\\n2\\n3\\n4\\n5\\n' >a; cp a b; cp a mode; printf 'x\\0y' >bin; chmod 644 a b mode";
    let agent = "sed -i s/5/five/ a; sed -i s/5/five/ b; chmod 755 mode; printf 'x\\0z' >bin";
    let Some((lab, changes)) = simple(base, agent) else { return };
    lab.shell("target", "sed -i s/1/one/ a; chmod 600 a; sed -i s/1/one/ mode");
    unchanged(&lab, &changes, PLAIN, "`a` was changed");
    let dry = run(&lab, &changes, Options { dry_run: true, ..MERGE }).unwrap();
    assert_eq!(dry.merged.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "mode"]);
    let applied = run(&lab, &changes, MERGE).unwrap();
    assert!(applied.conflicts.is_empty() && applied.merged == dry.merged);
    lab.shell("target", r#"test "$(cat a)" = "$(printf 'one\n2\n3\n4\nfive')"; test "$(stat -c %a a)" = 600"#);
    lab.shell("target", r#"test "$(head -1 mode)" = one; test "$(stat -c %a mode)" = 755; test "$(tail -1 b)" = five"#);
    for (user, expected) in
        [("sed -i s/5/fünf/ b", "`b` was changed in the same lines"), ("printf 'q\\0' >bin", "`bin`")]
    {
        lab.shell(".", "rm -rf target; cp -a base target");
        lab.shell("target", &format!("sed -i s/1/one/ a; {user}"));
        unchanged(&lab, &changes, MERGE, expected);
    }
    // A changed copy of the base is not used.
    lab.shell(".", "rm -rf target; cp -a base target; echo evil >out/bases/a");
    lab.shell("target", "sed -i s/1/one/ a");
    unchanged(&lab, &changes, MERGE, "`a` was changed in the same lines");
}
