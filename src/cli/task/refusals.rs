//! Lines about hosts that the gateway refuses while a task runs: one a host, and not too many.

use brig::sandbox::Row;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The most lines of a task, and of each second. The receipt has every refusal.
const MOST: usize = 20;
const MOST_AT_ONCE: usize = 5;
const SECOND: Duration = Duration::from_secs(1);

/// The refusals that were shown.
#[derive(Default)]
pub(super) struct Refusals {
    shown: HashSet<(String, Option<u16>)>,
    /// The start of the last second with lines, and their number.
    second: Option<(Instant, usize)>,
    is_over: bool,
}

impl Refusals {
    /// The line for a refusal, unless it was shown or there are too many.
    pub(super) fn line(&mut self, row: &Row, id: &str, now: Instant) -> Option<String> {
        let key = (row.host.clone(), row.port);
        let (start, count) = self.second.filter(|(start, _)| now < *start + SECOND).unwrap_or((now, 0));
        // A host that comes too soon is shown when it is refused again.
        if self.is_over || self.shown.contains(&key) || count >= MOST_AT_ONCE {
            return None;
        }
        self.second = Some((start, count + 1));
        if self.shown.len() >= MOST {
            self.is_over = true;
            return Some(format!("more hosts are refused: brig task show {id}"));
        }
        self.shown.insert(key);
        Some(format!("refused {}; {}", target(row), remedy(row, id)))
    }
}

/// The host of a row, with its port.
pub(in crate::cli) fn target(row: &Row) -> String {
    row.port.map_or_else(|| row.host.clone(), |port| format!("{}:{port}", row.host))
}

/// The command that allows a refused host, or the reason why a rule for its name would not.
pub(in crate::cli) fn remedy(row: &Row, id: &str) -> String {
    match row.rule.starts_with("no rule ") {
        true => format!("to allow it: brig task allow {id} {}", target(row)),
        false => row.rule.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_shown_once_and_a_flood_of_hosts_ends() {
        let row = |host: String| Row { host, port: Some(443), rule: "no rule allows it".into(), ..Row::default() };
        let mut refusals = Refusals::default();
        let start = Instant::now();
        let line = refusals.line(&row("a.test".into()), "t1", start).unwrap();
        assert_eq!(line, "refused a.test:443; to allow it: brig task allow t1 a.test:443");
        assert_eq!(refusals.line(&row("a.test".into()), "t1", start + SECOND), None);
        let mut flood =
            |now| (0..100).filter(|n| refusals.line(&row(format!("{n}.test")), "t1", now).is_some()).count();
        assert_eq!(flood(start), MOST_AT_ONCE - 1, "the lines of a second");
        let later: Vec<_> = (1..10).map(|second| flood(start + SECOND * second)).collect();
        assert_eq!(later.iter().sum::<usize>(), MOST - MOST_AT_ONCE + 1, "and one line about the others: {later:?}");
    }

    #[test]
    fn a_refusal_that_no_rule_lifts_has_its_reason() {
        let row = Row { host: "a.test".into(), rule: "it leads to a private address".into(), ..Row::default() };
        assert_eq!(remedy(&row, "t1"), "it leads to a private address");
        assert_eq!(target(&row), "a.test");
    }
}
