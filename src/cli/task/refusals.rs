//! Lines about hosts that the gateway refuses while a task runs: one a host, and not too many.

use brig::sandbox::Row;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The most lines of a task, and the shortest time between two of them. The receipt has every refusal.
const MOST: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// The refusals that were shown.
#[derive(Default)]
pub(super) struct Refusals {
    shown: HashSet<(String, Option<u16>)>,
    last: Option<Instant>,
    is_over: bool,
}

impl Refusals {
    /// The line for a refusal, unless it was shown or there are too many.
    pub(super) fn line(&mut self, row: &Row, id: &str, now: Instant) -> Option<String> {
        let key = (row.host.clone(), row.port);
        if self.is_over || self.shown.contains(&key) || self.last.is_some_and(|last| now < last + PAUSE) {
            return None;
        }
        if self.shown.len() >= MOST {
            self.is_over = true;
            return Some(format!("more hosts are refused: brig task show {id}"));
        }
        self.shown.insert(key);
        self.last = Some(now);
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
        assert_eq!(refusals.line(&row("b.test".into()), "t1", start), None);
        assert_eq!(refusals.line(&row("a.test".into()), "t1", start + PAUSE), None);
        let lines = (0..10 * MOST as u32)
            .filter_map(|number| refusals.line(&row(format!("{number}.test")), "t1", start + PAUSE * (number + 2)));
        assert_eq!(lines.count(), MOST);
    }

    #[test]
    fn a_refusal_that_no_rule_lifts_has_its_reason() {
        let row = Row { host: "a.test".into(), rule: "it leads to a private address".into(), ..Row::default() };
        assert_eq!(remedy(&row, "t1"), "it leads to a private address");
        assert_eq!(target(&row), "a.test");
    }
}
