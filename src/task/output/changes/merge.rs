//! Three-way merge: joins the user's and the agent's edits of different lines.
//!
//! Adjoining edits are a conflict: their combination is untested. Never: conflict markers in a file.

use super::applied::{Conflict, Difference};
use super::check::{FileStamp, Merged, Plan, PlannedWrite};
use super::copy;
use super::diff::{LARGEST_TEXT, is_text};
use super::hunks::lines;
use super::path::TreePath;
use super::record::{Base, Changes, Content, Entry, Node};
use super::store::{BASES, Store};
use super::tree;
use rustix::fs::fstat;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of all merged files, which are in memory.
const MOST_BYTES: usize = 256 << 20;
const FILE_TIME: Duration = Duration::from_secs(2);
const MERGE_TIME: Duration = Duration::from_secs(30);

/// A base that was not copied is read in the tree `lower`.
pub(super) fn resolve(
    plan: &mut Plan<'_>,
    changes: &Changes,
    into: &Path,
    (lower, target): (Option<BorrowedFd<'_>>, BorrowedFd<'_>),
) {
    let Ok(copies) = Store::open(into) else { return };
    let bases = Store::open_at(into, BASES).ok();
    let base = |path: &TreePath| {
        let kept = bases.as_ref().and_then(|bases| bases.file(path).ok());
        kept.or_else(|| tree::file(tree::parent(lower?, path).ok()?.as_fd(), path.name()).ok().map(|(file, _)| file))
    };
    let end = Instant::now() + MERGE_TIME;
    let mut bytes = 0;
    let conflicts = std::mem::take(&mut plan.applied.conflicts);
    for conflict in conflicts {
        let put = plan.contents.iter_mut().find(|put| *put.path == conflict.path);
        let merged = match (conflict.difference, put, changes.find(&conflict.path)) {
            (Difference::Changed, Some(put), Some(entry)) => {
                let deadline = end.min(Instant::now() + FILE_TIME);
                let merged = base(put.path).and_then(|base| one(entry, put, (&copies, base), target, deadline));
                merged.filter(|merged| bytes + merged.bytes.len() <= MOST_BYTES).map(|merged| (put, merged))
            }
            _ => None,
        };
        match merged {
            Some((put, merged)) => {
                bytes += merged.bytes.len();
                put.merged = Some(merged);
                plan.applied.merged.push(conflict.path);
            }
            None if conflict.difference == Difference::Changed => {
                plan.applied.conflicts.push(Conflict { difference: Difference::Overlaps, ..conflict });
            }
            None => plan.applied.conflicts.push(conflict),
        }
    }
}

/// `None` if the edits overlap or a side differs from the record.
fn one(
    entry: &Entry,
    put: &PlannedWrite<'_>,
    (copies, base): (&Store, File),
    target: BorrowedFd<'_>,
    deadline: Instant,
) -> Option<Merged> {
    let Some(Node::File { mode, size, sha256 }) = &entry.now else { return None };
    let Some(Base::File { mode: old_mode, size: old_size, content: Content::Sha256(old) }) = &entry.base else {
        return None;
    };
    let base = read(base, *old_size)?;
    let theirs = read(copies.file(&entry.path).ok()?, *size)?;
    let parent = tree::parent(target, &entry.path).ok()?;
    let (file, status) = tree::file(parent.as_fd(), entry.path.name()).ok()?;
    let ours = read(file.try_clone().ok()?, tree::size(&status))?;
    // Unchanged since the check and during the read.
    let is_as_seen = put.replaces.is_some_and(|seen| fstat(&file).is_ok_and(|status| FileStamp::of(&status) == seen));
    let is_recorded = copy::digest_of(&base) == *old && copy::digest_of(&theirs) == *sha256;
    if !is_as_seen || !is_recorded || ![&base, &ours, &theirs].iter().all(|text| is_text(text)) {
        return None;
    }
    let mode = put.mode.unwrap_or(if mode == old_mode { tree::permissions(&status) } else { *mode });
    Some(Merged { bytes: merge(&base, &ours, &theirs, deadline)?, mode })
}

fn read(file: File, size: u64) -> Option<Vec<u8>> {
    if size > LARGEST_TEXT {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Lines of the base, and a side's lines in their place.
type Edit = (Range<usize>, Range<usize>);

fn edits(base: &[&[u8]], side: &[&[u8]], deadline: Instant) -> Vec<Edit> {
    let found = capture_diff_slices_deadline(Algorithm::Myers, base, side, Some(deadline));
    let edits = found.iter().filter(|operation| !matches!(operation, DiffOp::Equal { .. }));
    edits.map(|operation| (operation.old_range(), operation.new_range())).collect()
}

/// `None` where edits adjoin and differ.
fn merge(base: &[u8], ours: &[u8], theirs: &[u8], deadline: Instant) -> Option<Vec<u8>> {
    let [base, ours, theirs] = [base, ours, theirs].map(|text| lines(text).collect::<Vec<_>>());
    let mut left = edits(&base, &ours, deadline).into_iter().peekable();
    let mut right = edits(&base, &theirs, deadline).into_iter().peekable();
    let (mut merged, mut at) = (Vec::new(), 0);
    while let Some(start) = left.peek().into_iter().chain(right.peek()).map(|(old, _)| old.start).min() {
        let (mut end, mut of_left, mut of_right) = (start, Vec::new(), Vec::new());
        loop {
            let touches = |(old, _): &Edit| old.start <= end;
            let (list, edit) = match (left.next_if(touches), right.peek().is_some_and(touches)) {
                (Some(edit), _) => (&mut of_left, edit),
                (None, true) => match right.next() {
                    Some(edit) => (&mut of_right, edit),
                    None => break,
                },
                (None, false) => break,
            };
            end = end.max(edit.0.end);
            list.push(edit);
        }
        let of_left = part(&ours, &of_left, start, end);
        let of_right = part(&theirs, &of_right, start, end);
        merged.extend_from_slice(&base[at..start]);
        merged.extend_from_slice(match (of_left, of_right) {
            (Some(one), Some(other)) if one == other => one,
            (Some(one), None) | (None, Some(one)) => one,
            _ => return None,
        });
        at = end;
    }
    merged.extend_from_slice(&base[at..]);
    Some(merged.concat())
}

/// A side's lines for the base's `start..end`; `None` if it did not edit them.
fn part<'a, 'b>(side: &'b [&'a [u8]], edits: &[Edit], start: usize, end: usize) -> Option<&'b [&'a [u8]]> {
    let (first, last) = (edits.first()?, edits.last()?);
    side.get(first.1.start - (first.0.start - start)..last.1.end + (end - last.0.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn merged(base: &str, ours: &str, theirs: &str) -> Option<String> {
        let deadline = Instant::now() + FILE_TIME;
        let merged = merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes(), deadline);
        merged.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn different_lines_are_joined_and_the_same_are_a_conflict() {
        let check = |base: &str, ours: &str, theirs: &str, expected: Option<&str>| {
            let text = |letters: &str| letters.chars().map(|letter| format!("{letter}\n")).collect::<String>();
            let expected = expected.map(text);
            assert_eq!(merged(&text(base), &text(ours), &text(theirs)), expected, "{base} {ours} {theirs}");
            assert_eq!(merged(&text(base), &text(theirs), &text(ours)), expected, "{base} {theirs} {ours}");
        };
        check("abcdef", "Xbcdef", "abcdeY", Some("XbcdeY"));
        check("abcdef", "abcdef", "abY", Some("abY"));
        check("abcdef", "abXdef", "abXdef", Some("abXdef"));
        check("abcdef", "abXdef", "abYdef", None);
        check("abcdef", "abXdef", "abcYef", None);
        check("abcdef", "abef", "abcdefg", Some("abefg"));
        check("abcdef", "xyabcdef", "abcdef12", Some("xyabcdef12"));
        check("abcdef", "axbcdef", "aybcdef", None);
        check("abcdef", "axbcdef", "axbcdef", Some("axbcdef"));
        check("abcdef", "", "abcdeY", None);
        check("", "a", "", Some("a"));
        check("abcdefgh", "aXcdefgZ", "abcdYfgh", Some("aXcdYfgZ"));
        assert_eq!(merged("a\nb\nc", "a\nb\nc\n", "A\nb\nc").as_deref(), Some("A\nb\nc\n"));
    }

    proptest! {
        #[test]
        fn single_edit_is_kept(base in "([abc]\n){0,12}", side in "([abcd]\n){0,12}") {
            prop_assert_eq!(merged(&base, &side, &base), Some(side.clone()));
            prop_assert_eq!(merged(&base, &base, &side), Some(side.clone()));
            prop_assert_eq!(merged(&base, &side, &side), Some(side));
        }
    }
}
