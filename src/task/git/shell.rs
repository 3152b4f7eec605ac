//! Script functions of several couriers. Their last arguments are git's safe settings.

/// The repository's path in the courier's sandbox.
pub(super) const SOURCE: &str = "/source";

/// Lets git serve a repository of another owner, and each commit that is named by its id. The other side is a second
/// git process, which `-c` does not reach. `$SERVER` is its command: `core.worktree` of a submodule's repository names
/// a folder that the courier lacks.
pub(super) const SERVE: &str = r#"
SERVER='GIT_WORK_TREE=. git upload-pack'
printf '[safe]\n\tdirectory = *\n[uploadpack]\n\tallowAnySHA1InWant = true\n\tallowFilter = true\n' > ~/.gitconfig
"#;

/// Branches and tags of a repository.
const MOST_NAMES: u64 = 50_000;

/// `pack_names`: writes a repository's names into one file, if there are at most `MOST_NAMES`. git writes each fetched
/// name as a file in folders: 38,000 names, sent in 76 KB, would take 150 MB of the store.
pub(super) const PACK_NAMES: &str = r#"
pack_names() {
    if [ -z "$MOST_NAMES" ]; then return; fi
    git "$@" pack-refs --all --prune >&2
    packed=$(git rev-parse --git-path packed-refs)
    if [ -e "$packed" ]; then bound_names "$packed"; fi
}
bound_names() { # FILE
    if [ -n "$MOST_NAMES" ] && [ "$(grep -c '^[0-9a-f]*[[:space:]]refs/[^^]*$' "$1")" -gt "$MOST_NAMES" ]; then
        echo "the repository has more than $MOST_NAMES branches and tags" >&2
        exit 1
    fi
}
"#;

pub(super) fn most_names() -> String {
    if crate::host::is_off("courier-names") { String::new() } else { MOST_NAMES.to_string() }
}

/// `over_base STORE`: a new store over the base's objects, with a reference to the base's commit.
pub(super) const OVER_BASE: &str = r#"
over_base() {
    store=$1
    shift
    git "$@" init --quiet --bare --template= "$store"
    printf '/base/.git/objects\n' > "$store/objects/info/alternates"
    if [ -f /base/.git/shallow ]; then cp /base/.git/shallow "$store/shallow"; fi
    for promised in /base/.git/objects/pack/*.promisor; do
        if [ -e "$promised" ]; then # a partial clone: what is missing is so on purpose
            git --git-dir="$store" config core.repositoryFormatVersion 1
            git --git-dir="$store" config extensions.partialClone origin
            git --git-dir="$store" config remote.origin.promisor true
            break
        fi
    done
    git "$@" --git-dir="$store" update-ref refs/brig/base "$BASE"
}
"#;

/// `fetch_missing COMMIT URL`: in a partial clone, fetches the contents of this commit's files.
pub(super) const FETCH_MISSING: &str = r#"
fetch_missing() {
    commit=$1 from=$2
    shift 2
    if [ -z "$FILTER" ]; then return; fi
    git "$@" rev-list --objects --no-walk --missing=print "$commit" | sed -n 's/^?//p' > ~/missing
    if [ ! -s ~/missing ]; then return; fi
    git "$@" -c fetch.negotiationAlgorithm=noop fetch --quiet --no-tags --no-auto-gc --no-write-fetch-head \
        --filter="$FILTER" --stdin -- "$from" < ~/missing >&2
}
"#;

/// `lfs_into_mirror COMMIT URL`: fetches this commit's large files. They arrive in a repository on the courier's capped
/// disk, which borrows those that the mirror has. git-lfs checks each against its name.
pub(super) const LFS_INTO_MIRROR: &str = r#"
lfs_into_mirror() {
    commit=$1 from=$2
    shift 2
    if [ -z "$LFS" ]; then return; fi
    command -v git-lfs >/dev/null || { echo "git-lfs: not found" >&2; exit 1; }
    git "$@" init --quiet --bare --template= ~/large
    echo /mirror/objects > ~/large/objects/info/alternates
    git "$@" -c "lfs.url=$LFS" --git-dir="$HOME/large" lfs fetch "$from" "$commit" >&2
    if [ ! -d ~/large/lfs/objects ]; then return; fi
    find ~/large/lfs/objects -type f | while read -r path; do
        name=${path##*/}
        folder=$(printf '%s' "$name" | sed 's/^\(..\)\(..\).*/\1\/\2/')
        if [ -e "/mirror/lfs/objects/$folder/$name" ]; then continue; fi
        mkdir -p "/mirror/lfs/objects/$folder"
        cp "$path" /mirror/lfs/unfinished
        mv /mirror/lfs/unfinished "/mirror/lfs/objects/$folder/$name"
    done
}
"#;

/// `lfs_from URL COMMIT`: the same from a local repository into a checkout. Configures the checkout's git for LFS.
pub(super) const LFS_FROM: &str = r#"
lfs_from() {
    from=$1 commit=$2
    shift 2
    if [ -z "$LFS" ]; then return; fi
    command -v git-lfs >/dev/null || { echo "git-lfs: not found" >&2; exit 1; }
    unset GIT_LFS_SKIP_SMUDGE
    git "$@" lfs install --local --skip-repo >/dev/null
    git "$@" -c "lfs.url=$from" lfs fetch "$from" "$commit" >&2
}
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::git::reach::meaning_here;

    #[test]
    fn a_machine_without_git_lfs_says_what_to_install() {
        for (script, call) in [(LFS_FROM, "lfs_from"), (LFS_INTO_MIRROR, "lfs_into_mirror")] {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-euc", &format!("{script}{call} commit url; echo went on")]);
            let done = shell.env_clear().envs([("LFS", "yes"), ("PATH", "/nowhere")]).output().unwrap();
            assert!(!done.status.success() && done.stdout.is_empty(), "{done:?}");
            let (why, hint) = meaning_here(&String::from_utf8_lossy(&done.stderr)).unwrap();
            assert_eq!(why, "git-lfs is missing on this machine");
            assert!(hint.starts_with("install it: git-lfs"), "{hint}");
        }
    }
}
