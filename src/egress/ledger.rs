//! The account of what a sandbox reached and what was refused; messages between the gateway and the supervisor.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Half of them for what was allowed, half for what was refused: refused names are the sandbox's choice, and must not
/// displace an allowed host. Further rows of a half are added to one row.
const MOST: usize = 512;
const OTHERS: (&str, Option<u16>, &str) = ("(others)", None, "there were more than this account holds");
const MOST_FAULTS: usize = 64;
/// Different ones in a row; further ones count as status 0.
const MOST_STATUSES: usize = 64;
/// Bytes of a host, a rule or a fault. They quote the sandbox, and a row with every byte escaped must fit into one
/// message.
const LONGEST: usize = 512;

/// A row of the account: a host, a port and the verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The requested name or address.
    pub host: String,
    /// `None` if only the name was requested, and for `(others)`.
    pub port: Option<u16>,
    /// Whether it was reached.
    pub allowed: bool,
    /// The rule that allowed it, or why it was refused.
    pub rule: String,
    /// How often.
    pub count: u64,
    /// Bytes that left the sandbox.
    pub sent_bytes: u64,
    /// Bytes that entered the sandbox.
    pub received_bytes: u64,
    /// Answers by status; only brokered hosts have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<u16, u64>,
    /// The first time, RFC 3339.
    pub first: String,
    /// The last time, RFC 3339.
    pub last: String,
}

impl Row {
    /// How often, for the end of a text: " (3 times)", and nothing for once.
    pub fn times(&self) -> String {
        if self.count > 1 { format!(" ({} times)", self.count) } else { String::new() }
    }
}

/// The whole account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// In the order of their first request.
    pub rows: Vec<Row>,
    /// Requests of the operator that failed while the gateway ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Rows that the supervisor lacks in their present form.
    #[serde(skip)]
    changed: Vec<bool>,
}

impl Ledger {
    /// Returns the number of the row.
    pub(super) fn note(&mut self, host: &str, port: Option<u16>, allowed: bool, rule: &str) -> usize {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let index = self.find_or_add((&shortened(host), port, &shortened(rule)), allowed, &now);
        self.rows[index].count += 1;
        self.rows[index].last = now;
        self.mark(index)
    }

    fn find_or_add(&mut self, mut key: (&str, Option<u16>, &str), allowed: bool, first: &str) -> usize {
        let find = |rows: &[Row], (host, port, rule): (&str, Option<u16>, &str)| {
            let is_it = |row: &Row| row.host == host && row.port == port && row.allowed == allowed && row.rule == rule;
            rows.iter().position(is_it)
        };
        let mut index = find(&self.rows, key);
        if index.is_none() && self.rows.iter().filter(|row| row.allowed == allowed).count() + 1 >= MOST / 2 {
            key = OTHERS;
            index = find(&self.rows, key);
        }
        index.unwrap_or_else(|| {
            let (host, port, rule) = (key.0.to_owned(), key.1, key.2.to_owned());
            self.rows.push(Row { host, port, allowed, rule, first: first.to_owned(), ..Row::default() });
            self.rows.len() - 1
        })
    }

    pub(super) fn add_bytes(&mut self, index: usize, sent: u64, received: u64) {
        if sent + received > 0 {
            self.rows[index].sent_bytes += sent;
            self.rows[index].received_bytes += received;
            self.rows[index].last = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            self.mark(index);
        }
    }

    pub(super) fn add_statuses(&mut self, index: usize, statuses: impl Iterator<Item = u16>) {
        for status in statuses {
            let known = &mut self.rows[index].statuses;
            let is_new = known.len() >= MOST_STATUSES && !known.contains_key(&status);
            *known.entry(if is_new { 0 } else { status }).or_default() += 1;
            self.mark(index);
        }
    }

    fn mark(&mut self, index: usize) -> usize {
        self.changed.resize(self.rows.len(), false);
        self.changed[index] = true;
        index
    }

    pub(super) fn next_change(&mut self) -> Option<usize> {
        self.changed.iter().position(|&changed| changed)
    }

    /// Records that a row was sent.
    pub(super) fn told(&mut self, index: usize) {
        self.changed[index] = false;
    }

    /// Returns the row if it contains a new decision. The gateway faces hostile clients, so the number is checked.
    pub(crate) fn put(&mut self, index: usize, row: Row) -> Option<Row> {
        if index >= MOST {
            self.fault("the gateway told a line that its account cannot have");
            return None;
        }
        if index > self.rows.len() {
            self.fault("lines of the gateway's account did not arrive");
            let lost = || Row { host: "(lost)".into(), rule: "this line did not arrive".into(), ..Row::default() };
            self.rows.resize_with(index, lost);
        }
        let known = self.rows.get(index).map_or(0, |old| old.count);
        let new = (row.count != known).then(|| row.clone());
        match self.rows.get_mut(index) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
        new
    }

    /// Records a fault once.
    pub(crate) fn fault(&mut self, words: &str) {
        let words = shortened(words);
        if self.faults.len() < MOST_FAULTS && !self.faults.iter().any(|each| *each == words) {
            self.faults.push(words.into_owned());
        }
    }

    /// Joins rows of the same host, port, verdict and rule.
    pub(crate) fn add(&mut self, other: Ledger) {
        for row in other.rows {
            let index = self.find_or_add((&row.host, row.port, &row.rule), row.allowed, &row.first);
            let own = &mut self.rows[index];
            own.count += row.count;
            own.sent_bytes += row.sent_bytes;
            own.received_bytes += row.received_bytes;
            row.statuses.into_iter().for_each(|(status, count)| *own.statuses.entry(status).or_default() += count);
            own.last = row.last;
        }
        self.faults.extend(other.faults);
    }

    /// Bytes that left, and bytes that entered.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.rows.iter().fold((0, 0), |(sent, received), row| (sent + row.sent_bytes, received + row.received_bytes))
    }

    pub(crate) fn connections(&self) -> u64 {
        self.rows.iter().filter(|row| row.allowed).map(|row| row.count).sum()
    }

    /// The requests as rules, each once, for a profile.
    pub fn as_rules(&self) -> Vec<String> {
        let mut rules: Vec<_> =
            self.rows.iter().filter_map(|row| row.port.map(|port| format!("{}:{port}", row.host))).collect();
        rules.sort();
        rules.dedup();
        rules
    }
}

/// Cuts the text to [`LONGEST`] bytes.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST {
        return Cow::Borrowed(text);
    }
    const MARK: &str = "…";
    let mut end = LONGEST - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(text[..end].to_owned() + MARK)
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    Row(usize, Row),
    /// An order that failed.
    Fault(String),
    /// All rows were sent; the gateway ends.
    Done,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Allow(String),
    /// Also cuts open connections.
    Deny(String),
    /// The attached file contains the value.
    Replace,
    /// The secret's name.
    Revoke(String),
    /// Send the remaining rows and end.
    Finish,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Channel;

    #[test]
    fn lines_are_counted_together_and_their_number_is_bounded() {
        let mut ledger = Ledger::default();
        let one = ledger.note("a.example", Some(443), true, "a.example:443");
        assert_eq!(ledger.note("a.example", Some(443), true, "a.example:443"), one);
        ledger.add_bytes(one, 3, 4);
        assert_eq!((ledger.rows[one].count, ledger.bytes()), (2, (3, 4)));
        for number in 0..2 * MOST {
            ledger.note(&format!("{number}.example"), None, false, "no rule");
        }
        let others = ledger.rows.last().unwrap();
        assert_eq!((others.host.as_str(), others.allowed, ledger.rows.len()), ("(others)", false, 1 + MOST / 2));
        // Refused names leave the other half to allowed hosts.
        for number in 0..MOST as u16 {
            ledger.note("b.example", Some(number), true, "b.example");
        }
        let others = ledger.rows.last().unwrap();
        assert_eq!((others.host.as_str(), others.allowed, ledger.rows.len()), ("(others)", true, MOST));
        assert_eq!(ledger.connections(), 2 + MOST as u64);
        let mut sum = ledger.clone();
        sum.add(ledger.clone());
        sum.add(Ledger { rows: vec![Row { count: 1, received_bytes: 9, ..Row::default() }], ..Ledger::default() });
        assert_eq!((sum.rows.len(), sum.bytes()), (MOST, (6, 17)));
        let mut copy = Ledger::default();
        while let Some(index) = ledger.next_change() {
            copy.put(index, ledger.rows[index].clone());
            ledger.told(index);
        }
        assert_eq!(copy.rows, ledger.rows);
        assert!(copy.faults.is_empty());
        copy.put(usize::MAX, Row::default());
        assert_eq!((copy.rows.len(), copy.faults.len()), (MOST, 1));
    }

    #[test]
    fn a_line_fits_into_a_message_whatever_it_quotes() {
        for letter in ["a", "\u{1}", "ä", "\"", "\u{10ffff}"] {
            let mut ledger = Ledger::default();
            let long = letter.repeat(40_000);
            let row = ledger.note(&long, Some(443), false, &format!("`{long}` is no path"));
            assert_eq!(ledger.note(&long, Some(443), false, &format!("`{long}` is no path")), row);
            ledger.add_statuses(row, 100..=999);
            let told = &ledger.rows[row];
            assert_eq!((told.statuses.len(), told.statuses[&0]), (MOST_STATUSES + 1, 836));
            assert!(told.host.ends_with('…') && told.rule.ends_with('…'), "{told:?}");
            let word = serde_json::to_vec(&Word::Row(MOST, told.clone())).unwrap();
            assert!(word.len() < Channel::LARGEST, "{} bytes of {letter:?}", word.len());
        }
        assert_eq!(shortened(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    #[test]
    fn a_line_that_did_not_arrive_moves_no_other_one() {
        let mut ledger = Ledger::default();
        let first = ledger.note("a.example", Some(80), true, "rule");
        let lost = ledger.note("lost.example", Some(80), false, "why");
        let last = ledger.note("b.example", Some(80), true, "rule");
        ledger.add_bytes(last, 3_000_000, 5);
        let mut copy = Ledger::default();
        for index in [first, last, first, last] {
            copy.put(index, ledger.rows[index].clone());
        }
        assert_eq!((&copy.rows[first], &copy.rows[last]), (&ledger.rows[first], &ledger.rows[last]));
        assert_eq!((copy.rows.len(), copy.bytes().0, copy.rows[lost].host.as_str()), (3, 3_000_000, "(lost)"));
        assert_eq!(copy.faults, ["lines of the gateway's account did not arrive"]);
    }

    #[test]
    fn faults_are_told_once_and_their_number_is_bounded() {
        let mut ledger = Ledger::default();
        (0..3 * MOST_FAULTS).for_each(|number| ledger.fault(&format!("{}", number / 2)));
        assert_eq!((ledger.faults.len(), ledger.faults[1].as_str()), (MOST_FAULTS, "1"));
    }
}
