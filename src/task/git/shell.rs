//! Pieces of scripts that several couriers have. Each is a function of the shell that takes the safe settings of git as its last arguments.

/// `over_base STORE`: a new store whose objects are the base's, with the base's commit on a branch.
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
    git "$@" --git-dir="$store" update-ref refs/heads/base "$BASE"
}
"#;

/// `fetch_missing COMMIT URL`: of a partial clone, the contents that this commit's own files have.
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
