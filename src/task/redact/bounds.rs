//! Bounds of held bytes and of work for hostile text: both are the host's memory and time.

use super::needles::MOST_BREAKS;
use super::shapes::SHAPES;
use super::{Patterns, Stream, forms};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const KEY: &[u8] = b"correct-horse-battery";
const LINES: &[u8] = b"first line of the key\nsecond line of the key\nthird";
/// A signed token's first two parts.
const LONGEST_SHAPE: usize = (16 << 10) + 64;

fn patterns() -> Patterns {
    let mut patterns = Patterns::new();
    assert!(patterns.add("KEY", KEY) && patterns.add("LINES", LINES));
    patterns
}

fn most_held(patterns: &Patterns, text: &[u8], piece: usize) -> (usize, u64) {
    let (mut stream, mut out, mut most) = (Stream::default(), Vec::new(), 0);
    for bytes in text.chunks(piece) {
        stream.push(patterns, bytes, &mut out);
        most = most.max(stream.held());
        out.clear();
    }
    stream.finish(patterns, &mut out);
    (most, stream.walked)
}

#[test]
fn line_breaks_after_a_beginning_are_not_held_without_an_end() {
    let patterns = patterns();
    let longest = forms(LINES).iter().map(Vec::len).max().unwrap();
    let most = longest * (1 + MOST_BREAKS);
    for form in forms(KEY).into_iter().chain(forms(LINES)) {
        for beginning in [3, 4, 8, form.len() - 1] {
            for breaks in [&b"\n"[..], b"\r", b"\r\n"] {
                let text = [&form[..beginning], &breaks.repeat(20_000)].concat();
                let (held, _) = most_held(&patterns, &text, 4096);
                assert!(held <= most, "{held} bytes of {:?}", String::from_utf8_lossy(&form[..beginning]));
            }
        }
        // One letter a line, and one letter too few.
        let each: Vec<u8> =
            form[..form.len() - 1].iter().flat_map(|byte| [*byte, b'\n', b'\n', b'\n', b'\n']).collect();
        assert!(most_held(&patterns, &each.repeat(20), 7).0 <= most);
    }
}

#[test]
fn no_shape_waits_without_an_end() {
    let patterns = patterns();
    for shape in SHAPES {
        for more in [&b"a"[..], b"A", b"0", b" ", b"-", b".", b"=", b"\n", b"aaaaaaaaa.", b"a:", b"PRIVATE KEY-----"] {
            let text = [shape.prefix(), &more.repeat(2 * LONGEST_SHAPE / more.len())].concat();
            let (held, _) = most_held(&patterns, &text, 4096);
            assert!(held <= LONGEST_SHAPE, "{held} bytes of {:?}", String::from_utf8_lossy(&text[..30]));
        }
    }
}

#[test]
fn what_begins_often_is_walked_over_once() {
    let patterns = patterns();
    let own = SHAPES.iter().map(|shape| shape.prefix().to_vec());
    let more =
        ["eyJaaaaaa.", "sk-T3BlbkF", "-----BEGIN PRIVATE KEY-----", "ghp_sk-eyJ"].map(|each| each.as_bytes().to_vec());
    for unit in own.chain(more) {
        let text = unit.repeat((1 << 16) / unit.len());
        for piece in [16 << 10, text.len()] {
            let (_, walked) = most_held(&patterns, &text, piece);
            // A few checks of each byte, and again for bytes held at the end of a piece.
            assert!(walked < 10 * text.len() as u64, "{walked} bytes for {:?}", String::from_utf8_lossy(&unit));
        }
    }
}

#[test]
fn a_blank_line_within_a_form_hides_nothing_less() {
    let whole = STANDARD.encode([KEY, KEY].concat());
    let (one, two) = whole.split_at(20);
    for breaks in ["\n", "\r\n", "\n\n", "\r\n\r\n"] {
        let (out, _) = patterns().redact(format!("{one}{breaks}{two}").as_bytes());
        assert!(String::from_utf8_lossy(&out).starts_with("[redacted:KEY]"), "{breaks:?}");
    }
}
