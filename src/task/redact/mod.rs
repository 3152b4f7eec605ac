//! The redactor: every log, terminal, event, envelope and text artifact passes it before a reader gets it.
//!
//! In: the values of the secrets in force ([`Patterns::add`]) and known shapes of tokens (`shapes`). Out: the same
//! bytes, with a word in square brackets for each secret.
//!
//! [`Stream`] holds back only the possible beginning of a secret. So the result does not depend on the cuts between
//! pieces, and a line without a candidate is never late. For each byte a filter of three-byte beginnings (`filter`)
//! comes first, then the exact comparison (`needles`, `shapes`).
//!
//! Held bytes and work have bounds that the sandbox cannot move: they are on the host, outside of all its limits.
//!
//! Not here: defence against an agent that encodes a secret in an unknown way. The egress rules limit what it can
//! reach.

pub(super) mod display;
mod dumps;
mod filter;
mod known;
mod needles;
mod shapes;
mod stream;
mod written;

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod tests;

pub use stream::Redactor;
pub(super) use stream::Stream;

use dumps::{Dumped, Dumps};
use filter::Filter;
use known::Known;
use needles::{Compared, Needle};
use shapes::{Match, SHAPES, Swallow};

/// The patterns: every value in every form, and the shapes.
#[derive(Clone)]
pub(crate) struct Patterns {
    needles: Vec<Needle>,
    names: Vec<String>,
    dumps: Dumps,
    filter: Filter,
}

/// A candidate for a three-byte beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    Needle(usize),
    Shape(usize),
    Dump,
}

/// The result at a place of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    No,
    /// Undecided until more comes. The part before `hold` is not affected.
    Wait { hold: usize },
    /// Text to hide, from this place on.
    Hide(Hide),
}

/// Text to hide.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hide {
    /// The place of the match. Its first bytes may stay visible.
    place: usize,
    from: usize,
    to: usize,
    label: Label,
    /// Following text that belongs to it.
    swallow: Option<Swallow>,
}

/// The replacement for hidden text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Secret(usize),
    Shape(&'static str),
}

/// The bytes of a value in every form; empty for a value that is too short.
pub(super) fn forms(value: &[u8]) -> Vec<Vec<u8>> {
    needles::forms(value, 0).into_iter().map(Needle::into_bytes).collect()
}

/// The least length of a value: shorter ones occur in every text.
pub(super) const SHORTEST: usize = 6;

impl Patterns {
    /// The shapes alone.
    pub(super) fn new() -> Patterns {
        let dumps = Dumps::default();
        let filter = filter(&[], &dumps);
        Patterns { needles: Vec::new(), names: Vec::new(), dumps, filter }
    }

    /// Adds a value in every form. `false` if it is shorter than [`SHORTEST`].
    pub(super) fn add(&mut self, name: &str, value: &[u8]) -> bool {
        let name_index = self.names.iter().position(|each| each == name).unwrap_or(self.names.len());
        let forms = needles::forms(value, name_index);
        if forms.is_empty() {
            return false;
        }
        if name_index == self.names.len() {
            self.names.push(name.to_owned());
        }
        self.dumps.add(value.trim_ascii(), name_index);
        let known = self.needles.len();
        for form in forms {
            if !self.needles[..known].iter().any(|each| each.same_as(&form)) {
                self.needles.push(form);
            }
        }
        self.filter = filter(&self.needles, &self.dumps);
        true
    }

    /// Decides the place `at`, whose three bytes have passed the filter. With `whole` the text is complete. Text to
    /// hide behind `at` goes into `later`: other matches may begin before it.
    fn match_at(&self, text: &[u8], at: usize, whole: bool, later: &mut Vec<Hide>, known: &mut Known) -> Verdict {
        let mut found = Verdict::No;
        for candidate in self.filter.candidates(text, at) {
            let seen = match candidate {
                Candidate::Needle(index) => match self.needles[index].compare(&text[at..]) {
                    Compared::No => Verdict::No,
                    Compared::Begun => Verdict::Wait { hold: at },
                    Compared::Whole(length) => Verdict::Hide(Hide {
                        place: at,
                        from: at,
                        to: at + length,
                        label: Label::Secret(self.needles[index].name()),
                        swallow: None,
                    }),
                },
                Candidate::Dump => match self.dumps.parse_start(&text[at..], whole) {
                    Dumped::No => Verdict::No,
                    Dumped::Begun => Verdict::Wait { hold: at },
                    Dumped::Whole(length, name) => {
                        let mut rest = Swallow::line();
                        let to = at + length + rest.take(&text[at + length..]);
                        let swallow = (to == text.len()).then_some(rest);
                        Verdict::Hide(Hide { place: at, from: at, to, label: Label::Secret(name), swallow })
                    }
                },
                Candidate::Shape(index) => match (SHAPES[index].look)(&SHAPES[index], &text[at..], whole, known) {
                    Match::No => Verdict::No,
                    Match::Begun { hold } => Verdict::Wait { hold: at + hold },
                    Match::Whole { from, to, swallow } => {
                        let label = Label::Shape(SHAPES[index].name);
                        let hide = Hide { place: at, from: at + from, to: at + to, label, swallow };
                        if from > 0 {
                            later.push(hide);
                            continue;
                        }
                        Verdict::Hide(hide)
                    }
                },
            };
            found = wider(found, seen, whole);
        }
        found
    }

    fn label(&self, label: Label) -> &str {
        match label {
            Label::Secret(index) => &self.names[index],
            Label::Shape(name) => name,
        }
    }

    /// A whole text with everything hidden, and the number of hidden places.
    #[cfg(test)]
    fn redact(&self, text: &[u8]) -> (Vec<u8>, u64) {
        let mut stream = Stream::default();
        let mut out = Vec::with_capacity(text.len());
        stream.push(self, text, &mut out);
        stream.finish(self, &mut out);
        (out, stream.count)
    }
}

/// The filter for all values and the shapes.
fn filter(needles: &[Needle], dumps: &Dumps) -> Filter {
    let needles = needles.iter().enumerate().map(|(index, each)| (each.bytes(), Candidate::Needle(index)));
    let shapes = SHAPES.iter().enumerate().map(|(index, each)| (each.prefix(), Candidate::Shape(index)));
    let dumps = dumps.beginnings().map(|beginning| (beginning, Candidate::Dump));
    Filter::of(needles.chain(shapes).chain(dumps))
}

/// The verdict that hides more. `Wait` wins over both, since it may hide more still.
fn wider(one: Verdict, other: Verdict, whole: bool) -> Verdict {
    match (one, other) {
        (Verdict::Wait { .. }, other) if whole => other,
        (one, Verdict::Wait { .. }) if whole => one,
        (Verdict::Wait { hold: one }, Verdict::Wait { hold: other }) => Verdict::Wait { hold: one.min(other) },
        (wait @ Verdict::Wait { .. }, Verdict::No) | (Verdict::No, wait @ Verdict::Wait { .. }) => wait,
        (Verdict::Wait { hold }, Verdict::Hide(hide)) | (Verdict::Hide(hide), Verdict::Wait { hold }) => {
            Verdict::Wait { hold: hold.min(hide.from) }
        }
        (Verdict::No, other) => other,
        (one, Verdict::No) => one,
        (Verdict::Hide(one), Verdict::Hide(other)) => {
            let reach = |hide: &Hide| (hide.swallow.is_some(), hide.to);
            Verdict::Hide(if reach(&other) > reach(&one) { other } else { one })
        }
    }
}
