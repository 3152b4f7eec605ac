//! Tokens with a known shape, of any owner, as the issuers document them.
//!
//! Every shape's wait is bounded, and shared runs are walked once (`known`).

use super::known::{Known, Letters};

pub(super) struct Shape {
    pub name: &'static str,
    /// At least three bytes.
    prefix: &'static [u8],
    rest: Rest,
    /// The flag: the text is complete.
    pub look: fn(&Shape, &[u8], bool, &mut Known) -> Match,
}

#[derive(Clone, Copy)]
struct Rest {
    letters: Letters,
    least: usize,
}

/// Places count from the beginning of the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Match {
    No,
    /// The part before `hold` may pass in any case.
    Begun {
        hold: usize,
    },
    Whole {
        from: usize,
        to: usize,
        swallow: Option<Swallow>,
    },
}

/// Text after a hidden place that belongs to it; dropped as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Swallow {
    Letters(Letters),
    Key { left: usize, last: Vec<u8> },
    Line { left: usize },
}

const LONGEST_DUMP_LINE: usize = 256;

impl Swallow {
    pub(super) fn line() -> Swallow {
        Swallow::Line { left: LONGEST_DUMP_LINE }
    }

    /// Ignores how much each has left.
    pub(super) fn is_like(&self, other: &Swallow) -> bool {
        match (self, other) {
            (Swallow::Letters(one), Swallow::Letters(two)) => one == two,
            (Swallow::Key { .. }, Swallow::Key { .. }) | (Swallow::Line { .. }, Swallow::Line { .. }) => true,
            _ => false,
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Swallow::Letters(letters) => letters.run(bytes),
            Swallow::Line { left } => {
                let taken = bytes.iter().take(*left).take_while(|&&byte| !matches!(byte, b'\r' | b'\n')).count();
                *left -= taken;
                taken
            }
            Swallow::Key { left, last } => {
                // The end marker may be cut anywhere: search the last bytes again.
                let before = last.len();
                let seen = [last.as_slice(), &bytes[..bytes.len().min(*left)]].concat();
                if let Some(end) = seen.windows(KEY_END.len()).position(|each| each == KEY_END) {
                    *left = 0; // later text is visible again
                    last.clear();
                    return (end + KEY_END.len()).saturating_sub(before);
                }
                let taken = bytes.len().min(*left);
                *left -= taken;
                *last = seen[seen.len().saturating_sub(KEY_END.len() - 1)..].to_vec();
                taken
            }
        }
    }
}

fn capital(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

const fn token(name: &'static str, prefix: &'static [u8], letters: Letters, least: usize) -> Shape {
    Shape { name, prefix, rest: Rest { letters, least }, look: token_at }
}

const fn special(
    name: &'static str,
    prefix: &'static [u8],
    look: fn(&Shape, &[u8], bool, &mut Known) -> Match,
) -> Shape {
    Shape { name, prefix, rest: Rest { letters: Letters::Dashed, least: 0 }, look }
}

/// A beginning alone occurs in many texts; with this many letters after it, only in tokens.
pub(super) const SHAPES: &[Shape] = &[
    token("github-token", b"ghp_", Letters::Word, 36),
    token("github-token", b"gho_", Letters::Word, 36),
    token("github-token", b"ghu_", Letters::Word, 36),
    token("github-token", b"ghs_", Letters::Word, 36),
    token("github-token", b"ghr_", Letters::Word, 36),
    token("github-token", b"github_pat_", Letters::Word, 40),
    token("gitlab-token", b"glpat-", Letters::Dashed, 20),
    token("gitlab-token", b"gldt-", Letters::Dashed, 20),
    token("gitlab-token", b"glrt-", Letters::Dashed, 20),
    token("gitlab-token", b"glptt-", Letters::Dashed, 20),
    token("gitlab-token", b"glcbt-", Letters::Dashed, 20),
    token("gitlab-token", b"glsoat-", Letters::Dashed, 20),
    token("anthropic-key", b"sk-ant-", Letters::Dashed, 20),
    token("openai-key", b"sk-proj-", Letters::Dashed, 20),
    token("openai-key", b"sk-svcacct-", Letters::Dashed, 20),
    token("openai-key", b"sk-admin-", Letters::Dashed, 20),
    special("openai-key", b"sk-", old_openai_at),
    special("aws-key-id", b"AKIA", aws_at),
    special("aws-key-id", b"ASIA", aws_at),
    special("aws-secret-key", b"aws_secret_access_key", aws_secret_at),
    special("aws-secret-key", b"AWS_SECRET_ACCESS_KEY", aws_secret_at),
    token("slack-token", b"xoxb-", Letters::Dashed, 10),
    token("slack-token", b"xoxp-", Letters::Dashed, 10),
    token("slack-token", b"xoxa-", Letters::Dashed, 10),
    token("slack-token", b"xoxr-", Letters::Dashed, 10),
    token("slack-token", b"xoxs-", Letters::Dashed, 10),
    token("slack-token", b"xoxe-", Letters::Dashed, 10),
    token("slack-token", b"xapp-", Letters::Dashed, 10),
    token("npm-token", b"npm_", Letters::Word, 36),
    token("pypi-token", b"pypi-", Letters::Dashed, 50),
    special("jwt", b"eyJ", jwt_at),
    special("private-key", b"-----BEGIN ", key_at),
    special("url-password", b"://", url_at),
];

impl Shape {
    pub(super) fn prefix(&self) -> &'static [u8] {
        self.prefix
    }

    /// The error is the result without the whole prefix.
    fn after<'text>(&self, text: &'text [u8]) -> Result<&'text [u8], Match> {
        match text.strip_prefix(self.prefix) {
            Some(rest) => Ok(rest),
            None if self.prefix.starts_with(text) => Err(Match::Begun { hold: 0 }),
            None => Err(Match::No),
        }
    }
}

fn token_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    let length = known.run(rest, shape.rest.letters);
    let ends = length < rest.len();
    if length < shape.rest.least {
        return if ends { Match::No } else { Match::Begun { hold: 0 } };
    }
    let swallow = (!ends).then_some(Swallow::Letters(shape.rest.letters));
    Match::Whole { from: 0, to: shape.prefix.len() + length, swallow }
}

/// Old OpenAI keys have a fixed word in the middle. Without it `sk-` would match the end of `task-`.
fn old_openai_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    const MIDDLE: &[u8] = b"T3BlbkFJ";
    /// The longest key with the fixed word.
    const LONGEST: usize = 200;
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    let length = known.run(rest, Letters::Dashed);
    if known.find(rest, MIDDLE, length.min(LONGEST)).is_some() {
        let swallow = (length == rest.len()).then_some(Swallow::Letters(Letters::Dashed));
        return Match::Whole { from: 0, to: shape.prefix.len() + length, swallow };
    }
    if length == rest.len() && length < LONGEST { Match::Begun { hold: 0 } } else { Match::No }
}

fn aws_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    const LENGTH: usize = 16;
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    match known.short_run(rest, capital, LENGTH) {
        LENGTH.. => Match::Whole { from: 0, to: shape.prefix.len() + LENGTH, swallow: None },
        less if less == rest.len() => Match::Begun { hold: 0 },
        _ => Match::No,
    }
}

/// Forty letters without a shape, recognised by the name before them.
fn aws_secret_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    const LENGTH: usize = 40;
    const MOST_BETWEEN: usize = 8;
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    let between = known.short_run(rest, |byte| b" \t=:\"'\\".contains(&byte), MOST_BETWEEN + 1);
    let from = shape.prefix.len() + between;
    if between == rest.len() && between <= MOST_BETWEEN {
        return Match::Begun { hold: from };
    }
    if between == 0 || between > MOST_BETWEEN {
        return Match::No;
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'/' || byte == b'+';
    let length = known.short_run(&rest[between..], letter, LENGTH);
    match length {
        LENGTH.. => Match::Whole { from, to: from + LENGTH, swallow: None },
        less if between + less == rest.len() => Match::Begun { hold: from },
        _ => Match::No,
    }
}

/// Three parts with points between (RFC 7519). All but the signature are JSON objects or long enough to be one.
fn jwt_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    const LEAST: usize = 8;
    const LONGEST: usize = 16 << 10;
    if let Err(seen) = shape.after(text) {
        return seen;
    }
    let unsure = |length: usize| if length < LONGEST { Match::Begun { hold: 0 } } else { Match::No };
    let mut at = 0;
    for _ in 0..2 {
        let length = known.run(&text[at..], Letters::Dashed);
        at += length;
        match text.get(at) {
            None => return unsure(at),
            Some(_) if at >= LONGEST => return Match::No, // the same result as in pieces
            Some(b'.') if length >= LEAST => at += 1,
            Some(_) => return Match::No,
        }
    }
    let to = at + known.run(&text[at..], Letters::Dashed);
    Match::Whole { from: 0, to, swallow: (to == text.len()).then_some(Swallow::Letters(Letters::Dashed)) }
}

/// Longer than any key; later text is visible again.
const LONGEST_KEY: usize = 64 << 10;
const KEY_END: &[u8] = b"-----END";

/// From the line `-----BEGIN … PRIVATE KEY…-----` to its end (RFC 7468), also in JSON with escaped line ends.
fn key_at(shape: &Shape, text: &[u8], _: bool, known: &mut Known) -> Match {
    const LONGEST_LABEL: usize = 64;
    const DASHES: usize = 5;
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    let label = known.short_run(rest, |byte| capital(byte) || byte == b' ', LONGEST_LABEL + 1);
    if label > LONGEST_LABEL {
        return Match::No;
    }
    let dashes = known.short_run(&rest[label..], |byte| byte == b'-', DASHES + 1);
    if label + dashes == rest.len() && dashes < DASHES {
        return Match::Begun { hold: 0 };
    }
    let private = rest[..label].windows(11).any(|each| each == b"PRIVATE KEY");
    if dashes != DASHES || !private {
        return Match::No;
    }
    let from = shape.prefix.len() + label + dashes;
    let key = &text[from..];
    if let Some(end) = known.find(key, KEY_END, LONGEST_KEY) {
        return Match::Whole { from, to: from + end + KEY_END.len(), swallow: None };
    }
    let key = &key[..key.len().min(LONGEST_KEY)];
    let to = from + key.len();
    let last = key[key.len().saturating_sub(KEY_END.len() - 1)..].to_vec();
    let swallow = (to == text.len()).then(|| Swallow::Key { left: LONGEST_KEY - key.len(), last });
    Match::Whole { from, to, swallow }
}

/// The password of `scheme://user:password@host` (RFC 3986, 3.2.1). The rest stays visible.
fn url_at(shape: &Shape, text: &[u8], whole: bool, known: &mut Known) -> Match {
    const LONGEST_USER: usize = 128;
    const LONGEST_PASSWORD: usize = 512;
    fn part(byte: u8) -> bool {
        byte.is_ascii_graphic() && !b"/@:\"'`<>".contains(&byte)
    }
    /// `@` in a password should be escaped and often is not: the last one ends it.
    fn password(byte: u8) -> bool {
        part(byte) || byte == b':' || byte == b'@'
    }
    let rest = match shape.after(text) {
        Ok(rest) => rest,
        Err(seen) => return seen,
    };
    let user = known.short_run(rest, part, LONGEST_USER + 1);
    if user > LONGEST_USER {
        return Match::No;
    }
    match rest.get(user) {
        None => return Match::Begun { hold: text.len() },
        Some(b':') => {}
        Some(_) => return Match::No,
    }
    let after = &rest[user + 1..];
    // No other shape of this kind can begin inside, so it is walked once.
    let length = known.short_run(after, password, usize::MAX);
    let from = shape.prefix.len() + user + 1;
    if length == after.len() && length <= LONGEST_PASSWORD && !whole {
        return Match::Begun { hold: from };
    }
    match after[..length].iter().rposition(|&byte| byte == b'@') {
        Some(end) if end > 0 => Match::Whole { from, to: from + end, swallow: None },
        _ => Match::No,
    }
}
