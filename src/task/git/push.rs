//! Pushes the agent's commits from the bundle to the remote. The courier has the credential; no agent ran in it.

use super::base::{Base, identity, named_path, repository, to_default};
use super::courier::{Courier, failed};
use super::remote::Remote;
use super::shell::OVER_BASE;
use super::{GitJob, PushOptions};
use crate::error::{Error, Kind, Result, Step};
use crate::host::is_off;
use crate::sandbox::Outcome;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// As in the receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// The branch of the remote.
    pub branch: String,
    /// The result.
    pub state: PushState,
    /// For `git fetch FILE`; missing without commits.
    pub bundle: Option<PathBuf>,
    /// What the commits name and a push does not carry: commits of submodules, LFS contents. The first of them.
    #[serde(default)]
    pub left_behind: Vec<String>,
    /// The push's error. The receipt's own error may be an earlier one.
    #[serde(default)]
    pub error: Option<String>,
}

impl Push {
    pub(crate) fn failed(branch: &str) -> Push {
        Push { branch: branch.to_owned(), state: PushState::Failed, bundle: None, left_behind: Vec::new(), error: None }
    }
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushState {
    /// The branch is at the agent's commit.
    Pushed,
    /// The branch was there already.
    UpToDate,
    /// The agent made no commit.
    NothingNew,
    /// The attempt did not succeed, so nothing was pushed.
    NotTried,
    /// The push failed, or the commits were not found; see the error.
    Failed,
}

/// Exit codes of the script.
const DEFAULT_BRANCH: u8 = 20;
const MOVED: u8 = 21;
const REFUSED: u8 = 22;

/// Items of `left_behind`.
const LISTED: usize = 20;
/// Marks the script's lines that name one.
const LEFT: &str = "left\t";

/// Never forces: if the branch moves meanwhile, the remote refuses. A repository of this machine cleans up by its own git
/// later: from the courier its worktrees look as if they were gone. `-c` does not reach the git of the other side.
const PUSH: &str = r#"
printf '[safe]\n\tdirectory = *\n[receive]\n\tautogc = false\n' > ~/.gitconfig
over_base . "$@"
git "$@" fetch --quiet --no-tags --no-auto-gc /bundle/commits.bundle '+refs/heads/*:refs/heads/new/*'
[ "$(git rev-parse "refs/heads/new/$BRANCH")" = "$COMMIT" ]
there=$(git "$@" ls-remote --symref -- "$URL" HEAD "refs/heads/$BRANCH")
default=$(printf '%s\n' "$there" | sed -n 's/^ref: \(refs\/heads\/[^[:cntrl:]]*\)[[:space:]]HEAD$/\1/p' | head -n 1)
now=$(printf '%s\n' "$there" | awk -v name="refs/heads/$BRANCH" '$1 != "ref:" && $2 == name { print $1 }')
if [ "$default" = "refs/heads/$BRANCH" ] && [ "$DEFAULT" != yes ]; then exit 20; fi
if [ "$now" = "$COMMIT" ]; then echo same; exit 0; fi
if [ -n "$now" ]; then
    git "$@" fetch --quiet --no-tags --no-auto-gc -- "$URL" "+refs/heads/$BRANCH:refs/heads/now" >&2
    git merge-base --is-ancestor refs/heads/now "$COMMIT" || exit 21
fi
git "$@" diff-tree -r --no-renames "$BASE" "$COMMIT" | awk -F '\t' '{ split($1, f, " ") } f[2] == "160000" { print "left\tcommit " f[4] " of the submodule " $2 }'
timeout "$SEARCH" sh -euc "$LARGE" sh "$@" 2>/dev/null | sort -u || :
git "$@" push --quiet --no-verify --no-signed -- "$URL" "$COMMIT:refs/heads/$BRANCH" >&2 || exit 22
"#;

/// Names LFS pointers among the new commits' files: reads each new object once, none longer than a pointer. A search
/// through each commit's differences would read contents many times.
const LARGE: &str = r#"
git "$@" rev-list --objects "$BASE..$COMMIT" |
    git "$@" cat-file --batch-check='%(objecttype) %(objectsize) %(objectname) %(rest)' |
    awk '$1 == "blob" && $2 < 1024 { sub(/^[^ ]* [^ ]* /, ""); print }' |
    git "$@" cat-file --batch='%(objectname) %(rest)' |
    awk 'length($1) >= 40 && $1 !~ /[^0-9a-f]/ { name = substr($0, length($1) + 2) }
        /^oid sha256:[0-9a-f]*$/ && length($0) == 75 { print "left\tthe contents of the large file " name }'
"#;
/// That search, for the weakened build.
#[cfg(feature = "weakened")]
const DIFFERENCES: &str = r#"
git "$@" log --format= --name-only --no-renames --no-ext-diff --no-textconv --diff-filter=AM -G '^oid sha256:[0-9a-f]{64}$' "$BASE..$COMMIT" |
    sed 's/^/left\tthe contents of the large file /'
"#;
/// In seconds. The push does not wait longer for the list.
const SEARCH: &str = "30";

/// A script, and its time limit in seconds.
fn search() -> (&'static str, &'static str) {
    #[cfg(feature = "weakened")]
    if is_off("courier-search") {
        return (DIFFERENCES, "0"); // timeout(1): 0 disables the limit
    }
    (LARGE, SEARCH)
}

pub(crate) fn push(
    errand: &GitJob<'_>,
    remote: &Remote,
    wanted: &PushOptions,
    base: &Base,
    commit: &str,
    left_behind: &mut Vec<String>,
) -> Result<PushState> {
    let step = || format!("push `{commit}` to `{}`", wanted.branch);
    let mut courier = Courier::new(errand, &format!("{OVER_BASE}{PUSH}"))
        .show(&base.path, "/base")
        .show(&errand.store.task(errand.id).join(super::bundle::DIRECTORY), "/bundle")
        .with("BASE", &base.commit)
        .with("COMMIT", commit)
        .with_hash_of(commit)
        .with("BRANCH", &wanted.branch)
        .with("LARGE", search().0)
        .with("SEARCH", search().1)
        .with("DEFAULT", if wanted.default_branch { "yes" } else { "no" });
    courier = match remote {
        Remote::Local(path) => {
            let path = named_path(errand, path)?;
            if base.identity != Some(identity(&errand.pinned.path(&path))?) && !is_off("push-identity") {
                let why = format!("`{}` is another folder than the one that was cloned", path.display());
                let hint = "see what took its place; the commits are in the bundle that the receipt names";
                return Err(Error::new(Kind::Workspace, why).doing(step()).hint(hint));
            }
            courier.lend(&repository(errand, &path)?.0, "/remote").with("URL", "/remote")
        }
        Remote::Far(far) => courier.with("URL", &far.url).reach(far)?,
    };
    let answer = courier.ask(None).doing(step)?;
    let refuse = |why: &str, hint: &str| Err(Error::new(Kind::Workspace, why.to_owned()).doing(step()).hint(hint));
    match answer.outcome {
        Outcome::Succeeded if answer.output.trim() == "same" => Ok(PushState::UpToDate),
        Outcome::Succeeded => {
            let lines = answer.output.lines().filter_map(|line| line.strip_prefix(LEFT));
            left_behind.extend(lines.take(LISTED).map(|line| errand.redactor.text(line)));
            Ok(PushState::Pushed)
        }
        Outcome::Failed { exit_code: DEFAULT_BRANCH } => Err(to_default(&wanted.branch)),
        Outcome::Failed { exit_code: MOVED } => refuse(
            "the branch has commits that the agent's are not based on",
            "push to another branch, or fetch the bundle and merge: the receipt names it",
        ),
        Outcome::Failed { exit_code: REFUSED } => refuse(
            &format!("the remote refused: {}", answer.words),
            "see the remote's message; the commits are in the bundle that the receipt names",
        ),
        _ => {
            let far = match remote {
                Remote::Far(far) => Some(far),
                Remote::Local(_) => None,
            };
            Err(failed(&answer, errand, far).doing(step()))
        }
    }
}
