//! The redactor: logs, terminals, events, envelopes and text artifacts pass it before a reader gets them. A word in
//! square brackets replaces each secret's value and each token of a known shape.
//!
//! [`Stream`] holds back only a possible beginning of a secret. Results do not depend on cuts between pieces, and a
//! line without a candidate is never late. Held bytes and work are bounded: they are outside of the sandbox's limits.
//!
//! An agent can encode a secret in an unknown way; egress rules limit what it can reach.

pub(super) mod display;
mod dumps;
mod filter;
mod grams;
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
use filter::{Filter, Places};
use grams::Grams;
use known::Known;
use needles::{Compared, Needle};
use shapes::{Match, SHAPES, Swallow};
use std::cell::OnceCell;

#[derive(Clone)]
pub(crate) struct Patterns {
    needles: Vec<Needle>,
    names: Vec<String>,
    dumps: Dumps,
    filter: Filter,
    /// The grams of all forms, for long texts.
    grams: OnceCell<Grams<4>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    Needle(usize),
    Shape(usize),
    Dump,
}

/// While a place waits, the part before `hold` is not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    No,
    Wait { hold: usize },
    Hide(Hide),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hide {
    /// The match's place. Its first bytes may stay visible.
    place: usize,
    from: usize,
    to: usize,
    label: Label,
    swallow: Option<Swallow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Secret(usize),
    Shape(&'static str),
}

pub(super) fn forms(value: &[u8]) -> Vec<Vec<u8>> {
    needles::forms(value, 0).into_iter().map(Needle::into_bytes).collect()
}

/// Shorter values occur in every text.
pub(super) const SHORTEST: usize = 6;

impl Patterns {
    /// Knows only the shapes.
    pub(super) fn new() -> Patterns {
        let dumps = Dumps::default();
        let filter = filter(&[], &dumps);
        Patterns { needles: Vec::new(), names: Vec::new(), dumps, filter, grams: OnceCell::new() }
    }

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
        self.grams.take();
        true
    }

    fn places<'a>(&'a self, text: &'a [u8], from: usize) -> Places<'a> {
        let grams = || self.grams.get_or_init(|| grams(&self.needles, &self.dumps));
        self.filter.places(text, from, || (!self.needles.is_empty()).then(grams))
    }

    /// `at` has passed the filter. `whole`: the text is complete. `later` takes what to hide behind `at`: other matches
    /// may begin before it.
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

    #[cfg(test)]
    fn redact(&self, text: &[u8]) -> (Vec<u8>, u64) {
        let mut stream = Stream::default();
        let mut out = Vec::with_capacity(text.len());
        stream.push(self, text, &mut out);
        stream.finish(self, &mut out);
        (out, stream.count)
    }
}

fn filter(needles: &[Needle], dumps: &Dumps) -> Filter {
    let needles = needles.iter().enumerate().map(|(index, each)| (each.bytes(), Candidate::Needle(index)));
    let shapes = SHAPES.iter().enumerate().map(|(index, each)| (each.prefix(), Candidate::Shape(index)));
    let dumps = dumps.beginnings().map(|beginning| (beginning, Candidate::Dump));
    Filter::of(needles.chain(shapes).chain(dumps))
}

fn grams(needles: &[Needle], dumps: &Dumps) -> Grams<4> {
    let mut grams = Grams::new(false);
    for needle in needles {
        needle.openings(&mut |[a, b, c, d, e, f]| {
            [[a, b, c, d], [b, c, d, e], [c, d, e, f]].into_iter().for_each(|gram| grams.add(gram));
        });
    }
    dumps.grams(&mut |gram| grams.add(gram));
    grams
}

/// `Wait` wins over both: it may hide more still.
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
