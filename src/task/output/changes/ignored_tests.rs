use super::lab::{Lab, listing};
use super::{Form, Limits};
use std::fs;

const FORMS: [Form; 2] = [Form::Trusted, Form::User];

fn ignored(changes: &super::Changes) -> Vec<String> {
    changes.first_ignored.iter().map(ToString::to_string).collect()
}

#[test]
fn what_git_ignores_in_the_base_is_left_out_and_counted() {
    let base = "git() { command git -c safe.directory='*' \"$@\"; }; git init -q .; printf 'target/\\n*.log\\n' >.gitignore; mkdir target src; echo old >target/old; echo t >tracked.log; \
                echo s >src/a; git add -f .gitignore tracked.log src/a";
    let agent = "echo x >>target/old; echo n >target/new; mkdir src/target; echo n >src/target/n; echo n >a.log; \
                 echo more >>tracked.log; echo 'src/' >>.gitignore; echo hidden >src/.gitignore; echo h >src/hidden; echo b >src/b";
    let shown = [
        "modified .gitignore file 0644 19",
        "added src/.gitignore file 0644 7",
        "added src/b file 0644 2",
        "added src/hidden file 0644 2",
        "modified tracked.log file 0644 7",
    ];
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        lab.shell("base", &format!("umask 022; {base}"));
        lab.agent(agent);
        let changes = lab.collect();
        assert_eq!(listing(&changes), shown, "{form:?}");
        assert_eq!(
            (changes.ignored, ignored(&changes)),
            (3, ["a.log", "src/target", "target"].map(String::from).to_vec())
        );
        assert!(!lab.at("out/files/target").exists(), "it is in the store");
        fs::remove_dir_all(lab.at("out")).unwrap();
        let all = lab.collect_with(&Limits { ignored: true, ..Limits::default() }).unwrap();
        assert_eq!((all.entries.len(), all.ignored), (shown.len() + 5, 0), "{:?}", listing(&all));
        // An index that is not understood: what the base has counts as tracked.
        fs::remove_dir_all(lab.at("out")).unwrap();
        fs::write(lab.at("base/.git/index"), "DIRC").unwrap();
        let changes = lab.collect();
        assert!(listing(&changes).contains(&"modified target/old file 0644 6".to_owned()), "{:?}", listing(&changes));
        assert_eq!(ignored(&changes), ["a.log", "src/target", "target/new"]);
    }
}

#[test]
fn a_worktree_and_a_folder_without_an_index_have_the_rules_of_git() {
    let files = "printf 'target/\\n*.log\\n' >.gitignore; mkdir target; echo old >target/old; echo t >tracked.log";
    let agent = "echo x >>target/old; echo n >a.log; echo more >>tracked.log; echo c >code; echo m >mine";
    let set = "git() { command git -c safe.directory='*' -c user.name=t -c user.email=t@localhost \"$@\"; }";
    let worktree = format!(
        "{set}; cd ..; git init -q main; cd main; {files}; git add -f .gitignore tracked.log; git commit -qm one; \
         echo mine >.git/info/exclude; rmdir ../base; git worktree add -q ../base; cd ../base; mkdir target; echo old >target/old"
    );
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        lab.shell("base", &format!("umask 022; {worktree}"));
        lab.agent(agent);
        let changes = lab.collect();
        assert_eq!(listing(&changes), ["added code file 0644 2", "modified tracked.log file 0644 7"], "{form:?}");
        assert_eq!(ignored(&changes), ["a.log", "mine", "target"]);
        // The file names a repository that does not name the worktree: nothing of that is read.
        fs::remove_dir_all(lab.at("out")).unwrap();
        fs::write(lab.at("main/.git/worktrees/base/gitdir"), "/elsewhere/.git\n").unwrap();
        let changes = lab.collect();
        assert_eq!(ignored(&changes), ["a.log"], "{:?}", listing(&changes));

        for set_up in ["true", "git init -q ."] {
            let Some(lab) = Lab::new(form) else { continue };
            lab.shell("base", &format!("umask 022; {set_up}; {files}"));
            lab.agent(agent);
            let changes = lab.collect();
            assert_eq!(listing(&changes), ["added code file 0644 2", "added mine file 0644 2"], "{form:?} {set_up}");
            assert_eq!(ignored(&changes), ["a.log", "target", "tracked.log"]);
        }
    }
}

/// `base` is a folder of a repository, two levels below its top.
#[test]
fn a_folder_of_a_repository_has_the_rules_and_the_index_above_it() {
    let repository = "git() { command git -c safe.directory='*' \"$@\"; }; cd ..; git init -q .; printf '/base/out/\\n*.log\\n' >.gitignore; \
        echo mine >.git/info/exclude; cd base; mkdir -p out; echo old >out/old; echo t >tracked.log; echo '!keep.log' >.gitignore; \
        git add -f tracked.log .gitignore";
    let agent = "echo x >>out/old; mkdir sub; echo n >sub/a.log; echo n >keep.log; echo more >>tracked.log; echo m >mine; echo c >code";
    for form in FORMS {
        let Some(lab) = Lab::new(form) else { continue };
        lab.shell("base", &format!("umask 022; {repository}"));
        lab.agent(agent);
        let changes = lab.collect();
        let shown = [
            "added code file 0644 2",
            "added keep.log file 0644 2",
            "added sub directory 0755",
            "modified tracked.log file 0644 7",
        ];
        assert_eq!(listing(&changes), shown, "{form:?}");
        assert_eq!(ignored(&changes), ["mine", "out", "sub/a.log"]);
        // Rules that ignore the folder itself hide nothing in it.
        let collect = || {
            fs::remove_dir_all(lab.at("out")).unwrap();
            ignored(&lab.collect())
        };
        let rules = fs::read(lab.at(".gitignore")).unwrap();
        fs::write(lab.at(".gitignore"), "base\n*.log\n").unwrap();
        assert!(collect().is_empty());
        fs::write(lab.at(".gitignore"), rules).unwrap();
        // A folder `.git` that is not a repository does not end the search, and does not start one.
        fs::create_dir(lab.at("base/.git")).unwrap();
        assert_eq!(collect(), ["mine", "out", "sub/a.log"]);
        fs::rename(lab.at(".git/HEAD"), lab.at(".git/HEAD.away")).unwrap();
        assert!(collect().is_empty());
        fs::rename(lab.at(".git/HEAD.away"), lab.at(".git/HEAD")).unwrap();
    }
}

/// Another user's repository, such as `/tmp/.git`, would hide what an agent wrote.
#[test]
fn a_repository_of_another_owner_above_the_folder_hides_nothing() {
    let Some(lab) = Lab::new(Form::Trusted) else { return };
    lab.shell(".", "git init -q .; echo '*' >.gitignore; printf '!/base' >>.gitignore");
    lab.agent("echo evil >Makefile");
    assert_eq!(lab.collect().ignored, 1);
    for owned in [".", ".git"] {
        std::os::unix::fs::chown(lab.at(owned), Some(1234), None).unwrap();
        fs::remove_dir_all(lab.at("out")).unwrap();
        assert_eq!(listing(&lab.collect()), ["added makefile file 0644 5"], "{owned}");
        std::os::unix::fs::chown(lab.at(owned), Some(0), None).unwrap();
    }
}
