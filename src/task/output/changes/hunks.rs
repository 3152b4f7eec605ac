//! The hunks of a unified diff. Lines are bytes with their newline.
//!
//! The search for the shortest diff has a deadline. After it the rest is replaced as one block, which is longer and
//! still correct.

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};
use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

/// Unchanged lines around a change, as in git.
const CONTEXT: usize = 3;

/// Nothing for equal texts.
pub(super) fn write(old: &[u8], new: &[u8], deadline: Instant, out: &mut impl Write) -> io::Result<()> {
    let (old, new): (Vec<_>, Vec<_>) = (lines(old).collect(), lines(new).collect());
    // Skip equal ends: they are most of most files, and cost the algorithm time.
    let head = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(one, other)| one == other).count();
    let (old_middle, new_middle) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let found = capture_diff_slices_deadline(Algorithm::Myers, old_middle, new_middle, Some(deadline));
    let mut operations = Vec::with_capacity(found.len() + 2);
    if head > 0 {
        operations.push(DiffOp::Equal { old_index: 0, new_index: 0, len: head });
    }
    operations.extend(found.into_iter().map(|operation| shifted(operation, head)));
    if tail > 0 {
        operations.push(DiffOp::Equal { old_index: old.len() - tail, new_index: new.len() - tail, len: tail });
    }
    if operations.iter().all(|operation| matches!(operation, DiffOp::Equal { .. })) {
        return Ok(());
    }
    for group in group_diff_ops(operations, CONTEXT) {
        write_hunk(&group, &old, &new, out)?;
    }
    Ok(())
}

pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

fn shifted(operation: DiffOp, by: usize) -> DiffOp {
    let (_, old, new) = operation.as_tag_tuple();
    let (old_index, new_index) = (old.start + by, new.start + by);
    match operation {
        DiffOp::Equal { len, .. } => DiffOp::Equal { old_index, new_index, len },
        DiffOp::Delete { old_len, .. } => DiffOp::Delete { old_index, new_index, old_len },
        DiffOp::Insert { new_len, .. } => DiffOp::Insert { old_index, new_index, new_len },
        DiffOp::Replace { old_len, new_len, .. } => DiffOp::Replace { old_index, old_len, new_index, new_len },
    }
}

fn write_hunk(group: &[DiffOp], old: &[&[u8]], new: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
    let old_range = first.old_range().start..last.old_range().end;
    let new_range = first.new_range().start..last.new_range().end;
    writeln!(out, "@@ -{} +{} @@", place(&old_range), place(&new_range))?;
    for operation in group {
        if let DiffOp::Equal { .. } = operation {
            write_lines(b' ', &old[operation.old_range()], out)?;
        } else {
            write_lines(b'-', &old[operation.old_range()], out)?;
            write_lines(b'+', &new[operation.new_range()], out)?;
        }
    }
    Ok(())
}

/// One-based, with the length unless it is one. An empty range has the line before it.
fn place(range: &Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        length => format!("{},{length}", range.start + 1),
    }
}

fn write_lines(sign: u8, lines: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    for line in lines {
        out.write_all(&[sign])?;
        out.write_all(line)?;
        if line.last() != Some(&b'\n') {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn check(old: &str, new: &str, expected: &str) {
        let mut out = Vec::new();
        write(old.as_bytes(), new.as_bytes(), Instant::now() + Duration::from_secs(60), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn hunks_read_as_those_of_git() {
        check("a\n", "a\n", "");
        check("", "a\n", "@@ -0,0 +1 @@\n+a\n");
        check("a\nb\n", "", "@@ -1,2 +0,0 @@\n-a\n-b\n");
        check("a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
        check(
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n",
            "1\n2\n3\n4\n5\nX\n7\n8\n9\n10\n",
            "@@ -3,7 +3,7 @@\n 3\n 4\n 5\n-6\n+X\n 7\n 8\n 9\n",
        );
    }

    #[test]
    fn two_large_texts_with_nothing_in_common_take_no_longer_than_the_deadline() {
        use std::fmt::Write;
        let text = |seed: u64| {
            (0..200_000_u64).fold(String::new(), |mut text, line| {
                // Every second line is in both texts, at different places: the worst case for the algorithm.
                let number = line.wrapping_mul(seed) % 100_003;
                let _ = writeln!(text, "{number}");
                text
            })
        };
        let (old, new) = (text(48_271), text(69_621));
        let started = Instant::now();
        let mut out = Vec::new();
        super::write(old.as_bytes(), new.as_bytes(), started + Duration::from_millis(300), &mut out).unwrap();
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        let count = |sign| out.split(|byte| *byte == b'\n').filter(|line| line.first() == Some(&sign)).count();
        assert_eq!((count(b'-') + count(b' '), count(b'+') + count(b' ')), (200_000, 200_000));
    }
}
