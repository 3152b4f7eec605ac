//! A redacted stream, cut anywhere.

use super::known::Known;
use super::shapes::Swallow;
use super::{Hide, Label, Patterns, Verdict};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// Bytes that may begin a secret.
    held: Vec<u8>,
    /// How much of `held` is passed on or hidden.
    settled: usize,
    /// Whether the last settled byte was hidden: an adjoining place gets no second word.
    covered: bool,
    /// Text to drop after hidden places. A token may begin inside a key, which goes on after it.
    swallows: Vec<Swallow>,
    /// Passes on one or two bytes that could begin a secret: a user must see typed letters.
    interactive: bool,
    pub(super) count: u64,
    /// Values since the last check, by the numbers of their names.
    seen: Vec<usize>,
    #[cfg(test)]
    pub(super) walked: u64,
}

impl Stream {
    pub(crate) fn new(interactive: bool) -> Stream {
        Stream { interactive, ..Stream::default() }
    }

    pub(crate) fn push(&mut self, patterns: &Patterns, bytes: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() {
            self.work(patterns, bytes, false, out);
        } else {
            let mut text = std::mem::take(&mut self.held);
            text.extend_from_slice(bytes);
            self.work(patterns, &text, false, out);
        }
    }

    /// The held bytes do not begin a secret.
    pub(crate) fn finish(&mut self, patterns: &Patterns, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.held);
        self.work(patterns, &text, true, out);
        self.swallows.clear();
    }

    /// Appends the visible part of `text` to `out` and keeps the rest.
    fn work(&mut self, patterns: &Patterns, text: &[u8], whole: bool, out: &mut Vec<u8>) {
        let mut settled = std::mem::take(&mut self.settled);
        settled = self.skip_swallowed(text, settled);
        let mut places = patterns.places(text, 0);
        let mut keep = None;
        // Matches that begin behind places not checked yet.
        let mut later: Vec<Hide> = Vec::new();
        let mut known = Known::new(text.len());
        loop {
            let next = places.next();
            while let Some(hide) = take_due(&mut later, next) {
                settled = self.hide(patterns, text, hide, settled, out);
            }
            let Some(place) = next else { break };
            match patterns.match_at(text, place, whole, &mut later, &mut known) {
                Verdict::No => {}
                Verdict::Wait { .. } if whole => {}
                Verdict::Wait { hold } => {
                    let place = later.iter().map(|each| each.place).fold(place, usize::min);
                    let hold = later.iter().map(|each| each.from).fold(hold, usize::min);
                    keep = Some((place, self.hold(patterns, text, (place, hold), &mut known)));
                    break;
                }
                Verdict::Hide(hide) => settled = self.hide(patterns, text, hide, settled, out),
            }
        }
        let (place, hold) = keep.unwrap_or_else(|| {
            let begun = if whole { 0 } else { patterns.filter.begun(text) };
            let place = text.len() - begun;
            (place, if self.interactive { text.len() } else { place })
        });
        if hold > settled {
            out.extend_from_slice(&text[settled..hold]);
            self.covered = false;
            settled = hold;
        }
        self.settled = settled.saturating_sub(place);
        self.held = text[place..].to_vec();
        #[cfg(test)]
        (self.walked += known.walked);
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the settled length.
    fn hide(&mut self, patterns: &Patterns, text: &[u8], hide: Hide, settled: usize, out: &mut Vec<u8>) -> usize {
        let Hide { from, to, label, swallow, .. } = hide;
        // Count a secret inside a hidden place too.
        if let Label::Secret(name) = label
            && !self.seen.contains(&name)
        {
            self.seen.push(name);
        }
        if from > settled {
            out.extend_from_slice(&text[settled..from]);
            self.covered = false;
        }
        if to > settled {
            self.count += 1;
            // Overlapping or adjoining secrets share one word.
            if !std::mem::replace(&mut self.covered, true) {
                out.extend_from_slice(format!("[redacted:{}]", patterns.label(label)).as_bytes());
            }
        }
        if let Some(swallow) = swallow {
            // Of two of a kind the later one goes further: it reaches the text's end.
            self.swallows.retain(|each| !each.is_like(&swallow));
            self.swallows.push(swallow);
        }
        settled.max(to)
    }

    /// The visible length of a waiting text. A candidate between `place` and `hold`, such as a token as a URL's user
    /// name, lowers it.
    fn hold(&self, patterns: &Patterns, text: &[u8], (place, hold): (usize, usize), known: &mut Known) -> usize {
        let begun = if self.interactive { 0 } else { patterns.filter.begun(text) };
        let mut hold = hold.min(text.len() - begun);
        for next in patterns.places(text, place + 1) {
            if next >= hold {
                break;
            }
            let mut later = Vec::new();
            match patterns.match_at(text, next, false, &mut later, known) {
                Verdict::No => {}
                Verdict::Wait { hold: from } | Verdict::Hide(Hide { from, .. }) => hold = hold.min(from),
            }
            hold = later.iter().map(|each| each.from).fold(hold, usize::min);
        }
        hold
    }

    /// Returns the end of the dropped text.
    fn skip_swallowed(&mut self, text: &[u8], from: usize) -> usize {
        let mut furthest = from;
        self.swallows.retain_mut(|swallow| {
            let to = from + swallow.take(&text[from..]);
            furthest = furthest.max(to);
            to == text.len()
        });
        furthest
    }
}

/// The first match that begins at or before `place`, or before the text's end.
fn take_due(later: &mut Vec<Hide>, place: Option<usize>) -> Option<Hide> {
    let (index, first) = later.iter().enumerate().min_by_key(|(_, each)| each.from)?;
    place.is_none_or(|place| first.from <= place).then(|| later.remove(index))
}

/// Hides secrets in streams, which share the patterns. Patterns may grow while streams run.
#[derive(Clone)]
pub struct Redactor {
    patterns: Rc<RefCell<Patterns>>,
    count: Rc<RefCell<u64>>,
    seen: Rc<RefCell<BTreeSet<usize>>>,
}

impl Default for Redactor {
    fn default() -> Redactor {
        Redactor::new()
    }
}

impl Redactor {
    /// Knows only the shapes of tokens.
    pub fn new() -> Redactor {
        Redactor { patterns: Rc::new(RefCell::new(Patterns::new())), count: Rc::default(), seen: Rc::default() }
    }

    /// Adds a value. `false` below six bytes: those occur in every text.
    pub fn add(&self, name: &str, value: &[u8]) -> bool {
        self.patterns.borrow_mut().add(name, value)
    }

    /// Redacts a whole text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    pub(crate) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => all.into_iter().map(|each| self.value(each)).collect(),
            Value::Object(map) => {
                Value::Object(map.into_iter().map(|(key, each)| (self.text(&key), self.value(each))).collect())
            }
            // A secret may be a number. Text keeps the digits of what is not hidden.
            Value::Number(number) => {
                let (text, shown) = (number.to_string(), self.text(&number.to_string()));
                if shown == text { Value::Number(number) } else { Value::String(shown) }
            }
            other => other,
        }
    }

    /// Redacts a whole file.
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = Stream::default();
        let mut out = Vec::with_capacity(bytes.len());
        self.push(&mut stream, bytes, &mut out);
        self.finish(&mut stream, &mut out);
        out
    }

    /// Whether a value of this name has passed, hidden or not, since the last call.
    pub(crate) fn take_seen(&self, name: &str) -> bool {
        let patterns = self.patterns.borrow();
        let index = patterns.names.iter().position(|each| each == name);
        index.is_some_and(|index| self.seen.borrow_mut().remove(&index))
    }

    /// Whether unredacted data contains a value, which counts as seen.
    pub(crate) fn finds_value(&self, read: impl std::io::Read) -> std::io::Result<bool> {
        let found = self.values_in(read, false)?;
        let is_there = !found.is_empty();
        self.seen.borrow_mut().extend(found);
        Ok(is_there)
    }

    /// Like [`Redactor::finds_value`], but does not count as seen.
    pub(crate) fn has_value(&self, read: impl std::io::Read) -> std::io::Result<bool> {
        self.values_in(read, true).map(|found| !found.is_empty())
    }

    /// Shapes are not searched.
    fn values_in(&self, mut read: impl std::io::Read, stops_at_first: bool) -> std::io::Result<BTreeSet<usize>> {
        let patterns = self.patterns.borrow();
        let (mut stream, mut out) = (Stream::default(), Vec::new());
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = match read.read(&mut buffer) {
                Ok(count) => count,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(cause),
            };
            match count {
                0 => stream.finish(&patterns, &mut out),
                _ => stream.push(&patterns, &buffer[..count], &mut out),
            }
            out.clear();
            if count == 0 || stops_at_first && !stream.seen.is_empty() {
                return Ok(stream.seen.into_iter().collect());
            }
        }
    }

    /// Hidden places in all streams and texts.
    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    pub(crate) fn push(&self, stream: &mut Stream, bytes: &[u8], out: &mut Vec<u8>) {
        let before = stream.count;
        stream.push(&self.patterns.borrow(), bytes, out);
        *self.count.borrow_mut() += stream.count - before;
        self.seen.borrow_mut().extend(stream.seen.drain(..));
    }

    pub(crate) fn finish(&self, stream: &mut Stream, out: &mut Vec<u8>) {
        let before = stream.count;
        stream.finish(&self.patterns.borrow(), out);
        *self.count.borrow_mut() += stream.count - before;
        self.seen.borrow_mut().extend(stream.seen.drain(..));
    }
}
