//! A stream in the redactor, cut anywhere.

use super::known::Known;
use super::shapes::Swallow;
use super::{Hide, Label, Patterns, Verdict};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// One stream: its held bytes, and the number of hidden places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// The last bytes, which may begin a secret.
    held: Vec<u8>,
    /// How much of `held` was passed on or hidden.
    settled: usize,
    /// Whether the last settled byte was hidden: an adjoining place gets no second word.
    covered: bool,
    /// Text to drop after hidden places. A token may begin inside a key, which goes on after it.
    swallows: Vec<Swallow>,
    /// Passes on one or two bytes that could begin a secret: a user types and must see the letters.
    interactive: bool,
    /// The number of hidden places.
    pub(super) count: u64,
    /// The values seen since the last check, by the numbers of their names.
    seen: Vec<usize>,
    /// How many bytes shapes have walked.
    #[cfg(test)]
    pub(super) walked: u64,
}

impl Stream {
    /// A stream; `interactive` if a user types.
    pub(crate) fn new(interactive: bool) -> Stream {
        Stream { interactive, ..Stream::default() }
    }

    /// Takes the next bytes and appends the visible part to `out`.
    pub(crate) fn push(&mut self, patterns: &Patterns, bytes: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() {
            self.work(patterns, bytes, false, out);
        } else {
            let mut text = std::mem::take(&mut self.held);
            text.extend_from_slice(bytes);
            self.work(patterns, &text, false, out);
        }
    }

    /// Ends the stream: the held bytes do not begin a secret.
    pub(crate) fn finish(&mut self, patterns: &Patterns, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.held);
        self.work(patterns, &text, true, out);
        self.swallows.clear();
    }

    /// Appends the visible part of `text` to `out` and keeps the rest in `held`. The first `settled` bytes were passed
    /// on.
    fn work(&mut self, patterns: &Patterns, text: &[u8], whole: bool, out: &mut Vec<u8>) {
        let mut settled = std::mem::take(&mut self.settled);
        settled = self.skip_swallowed(text, settled);
        let mut at = 0;
        let mut keep = None;
        // Matches that begin behind places not checked yet.
        let mut later: Vec<Hide> = Vec::new();
        let mut known = Known::new(text.len());
        loop {
            let next = patterns.filter.next(text, at);
            while let Some(hide) = take_due(&mut later, next) {
                settled = self.hide(patterns, text, hide, settled, out);
            }
            let Some(place) = next else { break };
            at = place + 1;
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

    /// How many bytes are held back.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Appends the text before a hidden place, and a word for the place. Returns the settled length.
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
            // It reaches the end of the text. Of two of a kind the later one goes further.
            self.swallows.retain(|each| !each.is_like(&swallow));
            self.swallows.push(swallow);
        }
        settled.max(to)
    }

    /// The visible length of a text that waits at `place` with `hold`. A candidate between the two, such as a token as
    /// user name of a URL, lowers it.
    fn hold(&self, patterns: &Patterns, text: &[u8], (place, hold): (usize, usize), known: &mut Known) -> usize {
        let begun = if self.interactive { 0 } else { patterns.filter.begun(text) };
        let mut hold = hold.min(text.len() - begun);
        let mut at = place + 1;
        while let Some(next) = patterns.filter.next(text, at)
            && next < hold
        {
            at = next + 1;
            let mut later = Vec::new();
            match patterns.match_at(text, next, false, &mut later, known) {
                Verdict::No => {}
                Verdict::Wait { hold: from } | Verdict::Hide(Hide { from, .. }) => hold = hold.min(from),
            }
            hold = later.iter().map(|each| each.from).fold(hold, usize::min);
        }
        hold
    }

    /// Drops text that belongs to hidden places. Returns its end.
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

/// Removes the first match whose beginning is at or before `place`, or before the end of the text.
fn take_due(later: &mut Vec<Hide>, place: Option<usize>) -> Option<Hide> {
    let (index, first) = later.iter().enumerate().min_by_key(|(_, each)| each.from)?;
    place.is_none_or(|place| first.from <= place).then(|| later.remove(index))
}

/// Hides secrets in streams. Streams share the patterns, which may grow while they run.
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
    /// A redactor for the shapes of known tokens only.
    pub fn new() -> Redactor {
        Redactor { patterns: Rc::new(RefCell::new(Patterns::new())), count: Rc::default(), seen: Rc::default() }
    }

    /// Adds a value. `false` for fewer than six bytes: they occur in every text.
    pub fn add(&self, name: &str, value: &[u8]) -> bool {
        self.patterns.borrow_mut().add(name, value)
    }

    /// Hides secrets in a whole text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    /// Hides secrets in every text of a JSON value.
    pub(crate) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => all.into_iter().map(|each| self.value(each)).collect(),
            Value::Object(map) => {
                Value::Object(map.into_iter().map(|(key, each)| (self.text(&key), self.value(each))).collect())
            }
            other => other,
        }
    }

    /// Hides secrets in a whole file.
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

    /// Whether unredacted data contains a value. This counts as seen.
    pub(crate) fn finds_value(&self, read: impl std::io::Read) -> std::io::Result<bool> {
        let found = self.values_in(read)?;
        let is_there = !found.is_empty();
        self.seen.borrow_mut().extend(found);
        Ok(is_there)
    }

    /// The same without counting it as seen.
    pub(crate) fn has_value(&self, read: impl std::io::Read) -> std::io::Result<bool> {
        self.values_in(read).map(|found| !found.is_empty())
    }

    /// The values in the data; shapes are not searched.
    fn values_in(&self, mut read: impl std::io::Read) -> std::io::Result<BTreeSet<usize>> {
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
            if count == 0 {
                return Ok(stream.seen.into_iter().collect());
            }
        }
    }

    /// The number of hidden places in all streams and texts.
    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// Passes on bytes of a stream.
    pub(crate) fn push(&self, stream: &mut Stream, bytes: &[u8], out: &mut Vec<u8>) {
        let before = stream.count;
        stream.push(&self.patterns.borrow(), bytes, out);
        *self.count.borrow_mut() += stream.count - before;
        self.seen.borrow_mut().extend(stream.seen.drain(..));
    }

    /// Passes on the held bytes of an ended stream.
    pub(crate) fn finish(&self, stream: &mut Stream, out: &mut Vec<u8>) {
        let before = stream.count;
        stream.finish(&self.patterns.borrow(), out);
        *self.count.borrow_mut() += stream.count - before;
        self.seen.borrow_mut().extend(stream.seen.drain(..));
    }
}
