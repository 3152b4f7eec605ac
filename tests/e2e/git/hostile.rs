//! Every way for a repository to make git run a program, in a cloned repository and in one that the agent leaves. None
//! runs on the host. The control of each is the host's git in the same repository, where it runs.

use super::{COMMIT, host};
use crate::support::Lab;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Plants a trap in the repository, and lets the agent plant it in its clone. `$1` is a program that leaves a mark on
/// the host, `$2` a folder for the trap's files. `control` is a user's command in the repository on the host.
fn attack(plant: &str, control: &str) {
    let lab = Lab::new();
    let source = lab.directory("source");
    let open = lab.directory("open");
    let mark = lab.path().join("mark");
    let trap = lab.file("open/trap", format!("#!/bin/sh\necho \"$0 $*\" >>{}\nexit 0\n", mark.display()));
    fs::set_permissions(&trap, PermissionsExt::from_mode(0o755)).unwrap();
    host(
        &source,
        "git init -q -b main .; git config user.name h; git config user.email h@h; echo one >file; git add .; git commit -qm one; \
         echo two >file; git commit -qam two",
    );
    let words = format!("set -- {} {}", trap.display(), open.display());
    host(&source, &format!("{words}\n{plant}"));
    let told = || fs::read_to_string(&mark).unwrap_or_default();
    assert_eq!(told(), "", "planting alone runs nothing");
    // Cloned, worked on, pushed into.
    let push = ["--push-branch", "agent/x"];
    let run = lab.task().args(["--repo".as_ref(), source.as_os_str()]).args(push).sh(COMMIT);
    assert!(["succeeded", "prepare_failed", "push_failed"].contains(&run.outcome().as_str()), "{run:#?}");
    assert_eq!(told(), "", "{run:#?}");
    // The agent leaves it, and the host reads the result.
    let clean = super::bare(&lab);
    let script = format!(
        "{COMMIT} >/dev/null; mkdir /tmp/open; printf '#!/bin/sh\\n{} \"$@\"\\n' >/tmp/open/trap; chmod +x /tmp/open/trap; \
         set -- /tmp/open/trap /tmp/open\n{plant}\nsed -i 's#/tmp/open/trap#{}#g' .git/config .git/config.worktree .gitmodules 2>/dev/null; true",
        trap.display(),
        trap.display(),
    );
    let run = lab.task().args(["--repo".as_ref(), clean.as_os_str()]).args(push).sh(&script);
    assert!(["succeeded", "push_failed"].contains(&run.outcome().as_str()), "{run:#?}");
    let id = run.receipt()["id"].as_str().unwrap().to_owned();
    lab.brig(["task", "diff", &id]).succeeded();
    for flag in ["--bundle", "--patch"] {
        // Whether there is something to export depends on the row.
        let _ = lab.brig(["task", "export", &id, flag, "-o", lab.path().join(flag).to_str().unwrap()]);
    }
    let target = lab.directory("target");
    host(&target, "git init -q -b main .; echo two >file");
    let _ = lab.brig(["task", "apply", &id, "--to", target.to_str().unwrap()]);
    assert_eq!(told(), "", "{run:#?}");
    // The trap is one.
    host(&source, &format!("{words}\n( {control} ) >/dev/null 2>&1 </dev/null || true"));
    assert_ne!(told(), "", "the control: git on the host runs it");
}

/// Puts the trap where a hook of this name is.
const HOOK: &str = "mkdir -p .git/hooks; cp \"$1\" .git/hooks/";

#[test]
fn a_file_system_monitor() {
    attack(r#"git config core.fsmonitor "$1""#, "git status");
}

#[test]
fn a_hook_after_checkout() {
    attack(&format!("{HOOK}post-checkout"), "git checkout -q --detach");
}

#[test]
fn a_hook_before_a_commit() {
    attack(&format!("{HOOK}pre-commit"), "git commit --allow-empty -m x");
}

#[test]
fn a_hook_at_every_reference() {
    attack(&format!("{HOOK}reference-transaction"), "git update-ref refs/heads/zz HEAD");
}

#[test]
fn a_hook_at_every_index() {
    attack(&format!("{HOOK}post-index-change"), "git read-tree HEAD");
}

#[test]
fn a_hook_before_a_push() {
    attack(&format!("{HOOK}pre-push"), "git push -q . HEAD:refs/heads/zz");
}

#[test]
fn a_hook_of_the_receiver() {
    attack(
        &format!("{HOOK}pre-receive; cp \"$1\" .git/hooks/update; cp \"$1\" .git/hooks/post-receive"),
        "git push -q . HEAD:refs/heads/zz",
    );
}

#[test]
fn a_folder_of_hooks() {
    attack(
        r#"mkdir -p .git/more; cp "$1" .git/more/post-checkout; git config core.hooksPath "$PWD/.git/more""#,
        "git checkout -q --detach",
    );
}

#[test]
fn a_filter_out_of_the_store() {
    attack(
        r#"mkdir -p .git/info; git config filter.trap.smudge "$1"; echo '* filter=trap' >.git/info/attributes"#,
        "rm file; git checkout -- file",
    );
}

#[test]
fn a_filter_into_the_store() {
    attack(
        r#"mkdir -p .git/info; git config filter.trap.clean "$1"; echo '* filter=trap' >.git/info/attributes"#,
        "echo x >>file; git add file",
    );
}

#[test]
fn a_filter_that_stays() {
    attack(
        r#"mkdir -p .git/info; git config filter.trap.process "$1"; echo '* filter=trap' >.git/info/attributes"#,
        "rm file; git checkout -- file",
    );
}

#[test]
fn a_filter_by_committed_attributes() {
    attack(
        r#"git config filter.trap.smudge "$1"; echo '* filter=trap' >.gitattributes; git add .gitattributes; git commit -qm attributes"#,
        "rm file; git checkout -- file",
    );
}

#[test]
fn a_program_for_every_difference() {
    attack(r#"git config diff.external "$1""#, "echo x >>file; git diff");
}

#[test]
fn a_program_for_some_differences() {
    attack(
        r#"mkdir -p .git/info; git config diff.trap.command "$1"; echo '* diff=trap' >.git/info/attributes"#,
        "echo x >>file; git diff",
    );
}

#[test]
fn a_conversion_to_text() {
    attack(
        r#"mkdir -p .git/info; git config diff.trap.textconv "$1"; echo '* diff=trap' >.git/info/attributes"#,
        "echo x >>file; git diff",
    );
}

#[test]
fn a_program_that_merges() {
    attack(
        r#"mkdir -p .git/info; git config merge.trap.driver "$1"; echo '* merge=trap' >.git/info/attributes"#,
        "git checkout -qb side HEAD~1; echo side >file; git commit -qam side; git merge main",
    );
}

#[test]
fn a_command_for_ssh() {
    attack(r#"git config core.sshCommand "$1""#, "git ls-remote ssh://host.invalid/x");
}

#[test]
fn a_proxy_of_git() {
    attack(r#"git config core.gitProxy "$1""#, "git ls-remote git://host.invalid/x");
}

#[test]
fn a_pager() {
    attack(r#"git config core.pager "$1""#, "script -qc 'git log' /dev/null");
}

#[test]
fn an_editor() {
    attack(r#"git config core.editor "$1""#, "git commit --amend");
}

#[test]
fn a_program_for_passwords() {
    attack(
        r#"git config core.askPass "$1""#,
        "printf 'protocol=https\\nhost=x\\n\\n' | git -c credential.helper= credential fill",
    );
}

#[test]
fn a_helper_for_credentials() {
    attack(r#"git config credential.helper "!$1""#, "printf 'protocol=https\\nhost=x\\n\\n' | git credential fill");
}

#[test]
fn a_program_for_signatures() {
    attack(r#"git config gpg.program "$1"; git config commit.gpgSign false"#, "git commit -S --allow-empty -m x");
}

#[test]
fn an_alias() {
    attack(r#"git config alias.trap "!$1"; git config alias.log "!$1""#, "git trap");
}

#[test]
fn a_file_that_is_included() {
    attack(r#"printf '[core]\n\tfsmonitor = %s\n' "$1" >.git/more; git config include.path more"#, "git status");
}

#[test]
fn a_configuration_of_the_worktree() {
    attack(r#"git config extensions.worktreeConfig true; git config --worktree core.fsmonitor "$1""#, "git status");
}

#[test]
fn a_gitdir_elsewhere() {
    attack(
        r#"git config core.fsmonitor "$1"; cp -r .git "$2/elsewhere"; rm -rf .git; echo "gitdir: $2/elsewhere" >.git"#,
        "git status",
    );
}

#[test]
fn an_alternate_store_and_the_program_for_its_references() {
    attack(
        r#"git init -q --bare "$2/other.git"; mkdir -p .git/objects/info; echo "$2/other.git/objects" >.git/objects/info/alternates; git config core.alternateRefsCommand "$1""#,
        "git -C .. init -q --bare third; git push -q . HEAD:refs/heads/zz; git fetch -q ../third; git -C ../open/other.git fetch -q ../../source; git fetch -q .",
    );
}

#[test]
fn a_transport_that_runs_programs() {
    attack(r#"git config protocol.ext.allow always; git config remote.origin.url "ext::$1""#, "git fetch origin");
}

#[test]
fn a_url_that_becomes_another() {
    attack(
        r#"git config protocol.ext.allow always; git config "url.ext::$1 .insteadOf" near:; git config remote.origin.url near:x"#,
        "git fetch origin",
    );
}

#[test]
fn a_program_for_the_other_side() {
    attack(r#"git config remote.origin.url "$PWD"; git config remote.origin.uploadpack "$1""#, "git fetch origin");
}

#[test]
fn a_helper_of_the_remote() {
    attack(
        r#"git config protocol.ext.allow always; git config remote.origin.vcs ext; git config remote.origin.url "$1""#,
        "git ls-remote origin",
    );
}

#[test]
fn a_command_of_a_submodule() {
    attack(
        r#"git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; printf '[submodule "sub"]\n\tpath = sub\n\turl = ./.\n' >.gitmodules; git add .gitmodules; git commit -qm sub; git config submodule.sub.url "$PWD"; git config submodule.sub.update "!$1"; git config protocol.file.allow always"#,
        "git -c protocol.file.allow=always submodule update",
    );
}

#[test]
fn a_url_of_a_submodule() {
    attack(
        r#"git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; printf '[submodule "sub"]\n\tpath = sub\n\turl = ext::%s\n' "$1" >.gitmodules; git add .gitmodules; git commit -qm sub; git config protocol.ext.allow always"#,
        "git -c protocol.ext.allow=always submodule update --init",
    );
}

#[test]
fn an_upload_pack_in_the_url_of_a_submodule() {
    // git refuses such a URL since 2.19 (CVE-2018-17456): the control is the option itself
    attack(
        r#"git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; printf '[submodule "sub"]\n\tpath = sub\n\turl = -u%s\n' "$1" >.gitmodules; git add .gitmodules; git commit -qm sub"#,
        "git clone -q --upload-pack=\"$1\" . ../cloned",
    );
}

#[test]
fn a_command_of_a_trailer() {
    attack(
        r#"git config trailer.trap.command "$1"; git config trailer.trap.ifmissing add; git config trailer.trap.ifexists add"#,
        "echo x | git interpret-trailers --trailer trap=x",
    );
}
