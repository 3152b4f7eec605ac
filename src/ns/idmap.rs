//! Id maps of user namespaces as text for /proc/PID/uid_map (user_namespaces(7)). Pure.

use crate::sys::weaken;
use std::fmt::Write;

/// `size` ids from `inside` on are those from `outside` on in the parent namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdMap {
    pub inside: u32,
    pub outside: u32,
    pub size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maps {
    pub uid: Vec<IdMap>,
    pub gid: Vec<IdMap>,
}

/// To be written in one call.
pub(crate) fn lines(map: &[IdMap]) -> String {
    let mut text = map.iter().fold(String::new(), |mut text, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {} {}", line.inside, line.outside, line.size);
        text
    });
    text.truncate(weaken::length("long-values", text.len()));
    text
}

/// Maps ids `0..size` to `base`, with `left` and `right` exchanged: files of `left` look like files of `right`.
pub(crate) fn swapped(base: u32, size: u32, left: u32, right: u32) -> Vec<IdMap> {
    let line = |inside, shown, size| IdMap { inside, outside: base + shown, size };
    if left == right || right >= size {
        return vec![line(0, 0, size)];
    }
    if left >= size {
        // An owner outside the range (a high host uid) takes the place of `right`, which is then unmapped.
        return [(0, right), (right + 1, size - right - 1)]
            .into_iter()
            .filter(|&(_, count)| count > 0)
            .map(|(first, count)| line(first, first, count))
            .chain([line(left, right, 1)])
            .collect();
    }
    let (low, high) = (left.min(right), left.max(right));
    [
        (0, 0, low),
        (low, high, 1),
        (low + 1, low + 1, high - low - 1),
        (high, low, 1),
        (high + 1, high + 1, size - high - 1),
    ]
    .into_iter()
    .filter(|&(_, _, count)| count > 0)
    .map(|(inside, shown, count)| line(inside, shown, count))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_shows_one_owner_as_the_other_and_leaves_the_rest() {
        let check = |left, right, expected: &str| {
            assert_eq!(lines(&swapped(100, 10, left, right)).replace('\n', ";"), expected, "{left} {right}");
        };
        check(5, 5, "0 100 10;");
        check(0, 5, "0 105 1;1 101 4;5 100 1;6 106 4;");
        check(5, 0, "0 105 1;1 101 4;5 100 1;6 106 4;");
        check(3, 9, "0 100 3;3 109 1;4 104 5;9 103 1;");
        check(70_000, 5, "0 100 5;6 106 4;70000 105 1;");
        check(70_000, 0, "1 101 9;70000 100 1;");
    }

    #[test]
    fn every_id_is_shown_exactly_once() {
        for left in 0..12 {
            for right in 0..10 {
                let mut shown: Vec<_> = swapped(0, 10, left, right)
                    .iter()
                    .flat_map(|line| line.outside..line.outside + line.size)
                    .collect();
                shown.sort_unstable();
                assert_eq!(shown, (0..10).collect::<Vec<_>>(), "{left} {right}");
            }
        }
    }
}
