//! Every secret, in every form, cut at every byte; text that must stay; speed.

use super::{Patterns, Stream};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use proptest::prelude::*;

fn patterns(values: &[(&str, &[u8])]) -> Patterns {
    let mut patterns = Patterns::new();
    values.iter().for_each(|(name, value)| assert!(patterns.add(name, value), "{name}"));
    patterns
}

fn through<'text>(patterns: &Patterns, pieces: impl IntoIterator<Item = &'text [u8]>, interactive: bool) -> Vec<u8> {
    let mut stream = Stream::new(interactive);
    let mut out = Vec::new();
    pieces.into_iter().for_each(|piece| stream.push(patterns, piece, &mut out));
    stream.finish(patterns, &mut out);
    out
}

/// Whole, in two pieces at every place, and byte by byte.
fn check(patterns: &Patterns, text: &[u8], expected: &[u8]) {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for cut in 0..=text.len() {
        let out = through(patterns, [&text[..cut], &text[cut..]], false);
        assert_eq!(words(&out), words(expected), "cut at {cut} of {:?}", words(text));
    }
    assert_eq!(words(&through(patterns, text.chunks(1), false)), words(expected), "byte by byte");
}

fn every_encoding(value: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut forms: Vec<(&str, Vec<u8>)> = vec![
        ("plain", value.to_vec()),
        ("hex", value.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()),
        ("HEX", value.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect()),
        (
            "url",
            value
                .iter()
                .flat_map(|&byte| match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => vec![byte],
                    _ => format!("%{byte:02X}").into_bytes(),
                })
                .collect(),
        ),
        (
            "form",
            value
                .iter()
                .flat_map(|&byte| match byte {
                    b' ' => vec![b'+'],
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => vec![byte],
                    _ => format!("%{byte:02x}").into_bytes(),
                })
                .collect(),
        ),
    ];
    if let Ok(text) = std::str::from_utf8(value) {
        let json = serde_json::to_string(text).unwrap();
        forms.push(("json", json.as_bytes()[1..json.len() - 1].to_vec()));
        let twice = serde_json::to_string(&json).unwrap();
        forms.push(("json in json", twice.as_bytes()[3..twice.len() - 3].to_vec()));
    }
    forms
}

#[test]
fn forms_of_shells_html_dumps_and_other_alphabets_are_hidden_wherever_they_are_cut() {
    let value = b"it's <a> \"key\" & $more, \\ 50%/x=y `z`\xc3\xa4#~";
    let forms: [&[u8]; 17] = [
        b"it'\\''s <a> \"key\" & $more, \\ 50%/x=y `z`\xc3\xa4#~",
        b"it'\"'\"'s <a> \"key\" & $more, \\ 50%/x=y `z`\xc3\xa4#~",
        b"it's <a> \\\"key\\\" & \\$more, \\\\ 50%/x=y \\`z\\`\xc3\xa4#~",
        b"it\\'s\\ \\<a\\>\\ \\\"key\\\"\\ \\&\\ \\$more\\,\\ \\\\\\ 50%/x=y\\ \\`z\\`\xc3\xa4#~",
        b"it\\'s <a> \"key\" & $more, \\\\ 50%/x=y `z`\\303\\244#~",
        b"it&#39;s &lt;a&gt; &#34;key&#34; &amp; $more, \\ 50%/x=y `z`\xc3\xa4#~",
        b"it&#x27;s &lt;a&gt; &quot;key&quot; &amp; $more, \\ 50%/x=y `z`\xc3\xa4#~",
        b"it's &lt;a&gt; \"key\" &amp; $more, \\ 50%/x=y `z`&#228;#~",
        b"it&#x27;s &lt;a&gt; &quot;key&quot; &amp; $more, \\ 50%&#x2F;x=y `z`\xc3\xa4#~",
        b"it&#39;s &lt;a&gt; &quot;key&quot; &amp; $more, \\ 50%&#x2F;x&#x3D;y &#x60;z&#x60;\xc3\xa4#~",
        b"IT'S <A> \"KEY\" & $MORE, \\ 50%/X=Y `Z`\xc3\xa4#~",
        &[],
        &[],
        &[],
        &[],
        &[],
        &[],
    ];
    let text = std::str::from_utf8(value).unwrap();
    let numbers = value.map(|byte| byte.to_string());
    let more: [Vec<u8>; 13] = [
        text.chars().flat_map(|letter| format!("&#{};", u32::from(letter)).into_bytes()).collect(),
        text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        value.map(|byte| format!("{byte:02x}")).join(":").into_bytes(),
        value.map(|byte| format!("0x{byte:02x}")).join(", ").into_bytes(),
        value.map(|byte| format!("\\x{byte:02X}")).concat().into_bytes(),
        value.map(|byte| format!("%{byte:02X}")).concat().into_bytes(),
        value.map(|byte| format!("\\{byte:03o}")).concat().into_bytes(),
        text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>().into_bytes(),
        text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>().into_bytes(),
        numbers.join(", ").into_bytes(),
        numbers.join(",").into_bytes(),
        numbers.join(" ").into_bytes(),
    ];
    let patterns = patterns(&[("KEY", value)]);
    for form in forms.into_iter().filter(|form| !form.is_empty()).chain(more.iter().map(Vec::as_slice)) {
        check(&patterns, &[b"value: ", form, b"; end\n"].concat(), b"value: [redacted:KEY]; end\n");
    }
}

#[test]
fn base64_of_utf_16_is_hidden_in_both_byte_orders_at_each_alignment() {
    let patterns = patterns(&[("KEY", b"correct-horse-battery")]);
    for before in 0..3 {
        let text = "x".repeat(before) + "correct-horse-battery" + "tail";
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let bytes: Vec<u8> = text.encode_utf16().flat_map(order).collect();
            let (out, count) = patterns.redact(STANDARD.encode(bytes).as_bytes());
            assert_eq!(count, 1, "{before} {}", String::from_utf8_lossy(&out));
        }
    }
}

#[test]
fn base32_is_hidden_at_each_alignment() {
    assert!(super::forms(b"foobar").contains(&b"MZXW6YTBO".to_vec()), "RFC 4648, 10");
    // The output of coreutils' base32 for `xxcorrect-horse-battery-xx`.
    let text = b"PB4GG33SOJSWG5BNNBXXE43FFVRGC5DUMVZHSLLYPA======";
    let (out, _) = patterns(&[("KEY", b"correct-horse-battery")]).redact(text);
    assert_eq!(String::from_utf8_lossy(&out), "PB4G[redacted:KEY]SLLYPA======");
}

/// Lines of groups of `group` bytes, which may be swapped.
fn dumped(bytes: &[u8], group: usize, is_turned: bool, has_letters: bool) -> String {
    let line = |(number, line): (usize, &[u8])| {
        let word = |word: &[u8]| {
            let mut word = word.to_vec();
            if is_turned {
                word.reverse();
            }
            word.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let words: Vec<_> = line.chunks(group).map(word).collect();
        let words = if group == 1 && words.len() > 8 {
            words[..8].join(" ") + "  " + &words[8..].join(" ")
        } else {
            words.join(" ")
        };
        let letters = if has_letters { format!("  |{}|", String::from_utf8_lossy(line)) } else { String::new() };
        format!("{:08x}  {words}{letters}\n", number * 16)
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

#[test]
fn dumps_in_lines_show_no_more_than_the_ends_of_a_secret() {
    let value = b"correct-horse-battery-staple-and-a-tail-of-some-length";
    let patterns = patterns(&[("KEY", value)]);
    for before in 0..17 {
        let text = [&b"=================="[..before], value, b"=========="].concat();
        for (group, is_turned, has_letters) in [(1, false, true), (2, false, true), (2, true, false)] {
            let dump = dumped(&text, group, is_turned, has_letters);
            let (out, count) = patterns.redact(dump.as_bytes());
            let out = String::from_utf8_lossy(&out).into_owned();
            assert!(count >= 3, "{dump}{out}");
            for piece in value.windows(8) {
                assert!(!out.contains(std::str::from_utf8(piece).unwrap()), "{dump}{out}");
                let seen = dumped(piece, group, is_turned, false);
                assert!(!out.contains(seen.trim_end().split_once("  ").unwrap().1), "{dump}{out}");
            }
            for cut in (0..dump.len()).step_by(7) {
                let cut = through(&patterns, [&dump.as_bytes()[..cut], &dump.as_bytes()[cut..]], false);
                assert_eq!(String::from_utf8_lossy(&cut), out);
            }
        }
    }
    let other = dumped(b"a dump of something that is no secret at all, as there are many", 1, false, true);
    assert_eq!(patterns.redact(other.as_bytes()).1, 0);
}

const NASTY: &[u8] = b"p\"w/d <x>&%+ \\ \xc3\xa4=end?";

#[test]
fn every_form_of_a_secret_is_hidden_wherever_it_is_cut() {
    for value in [&b"correct-horse-battery"[..], NASTY, b"\x00\x01binary\xff\xfe\x80", b"sixsix"] {
        let patterns = patterns(&[("KEY", value)]);
        for (form, bytes) in every_encoding(value) {
            let text = [b"value: ", bytes.as_slice(), b"; end\n"].concat();
            let trimmed = value.trim_ascii().len() == value.len();
            assert!(trimmed, "a test value");
            let out = through(&patterns, [text.as_slice()], false);
            assert_eq!(String::from_utf8_lossy(&out), "value: [redacted:KEY]; end\n", "{form} of {value:?}");
            check(&patterns, &text, b"value: [redacted:KEY]; end\n");
        }
    }
}

#[test]
fn base64_is_hidden_at_each_alignment_and_over_line_breaks() {
    let value = b"correct-horse-battery-staple-and-many-more-words-so-that-the-line-is-broken-twice-\xff\xfb\xef";
    let patterns = patterns(&[("KEY", value)]);
    for before in 0..3 {
        let padded = [&b"xyz"[..before], value, b"tail"].concat();
        for engine in [&STANDARD, &URL_SAFE] {
            let whole = engine.encode(&padded);
            for width in [76, 64, 61, 5] {
                for ending in ["\n", "\r\n"] {
                    let lines: Vec<_> =
                        whole.as_bytes().chunks(width).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
                    let text = lines.join(ending);
                    let out = through(&patterns, text.as_bytes().chunks(7), false);
                    let out = String::from_utf8_lossy(&out);
                    // Letters shared with the neighbours, and three before a line break, may stay visible.
                    assert!(out.contains("[redacted:KEY]") && out.len() < 45, "{before} {width} {out}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_secret_comes_through_in_any_encoding_or_cut(
        value in proptest::collection::vec(any::<u8>(), 8..40),
        before in prop_oneof![
            4 => "[ -~]{0,20}".boxed(),
            1 => "(https|ssh)?://([a-z]{0,5}:)?".boxed(),
            1 => "(sk-|eyJ|aws_secret_access_key=|-----BEGIN |ghp_)[a-zA-Z ]{0,3}".boxed(),
        ],
        after in "[ -~]{0,20}",
        cuts in proptest::collection::vec(1usize..9, 1..12),
    ) {
        let value = value.trim_ascii();
        prop_assume!(value.len() >= 8);
        let patterns = patterns(&[("S", value)]);
        for (form, bytes) in every_encoding(value) {
            let text = [before.as_bytes(), &bytes, after.as_bytes()].concat();
            let mut rest = text.as_slice();
            let mut pieces = Vec::new();
            for cut in cuts.iter().cycle() {
                let (piece, more) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = more;
                if rest.is_empty() { break; }
            }
            let out = through(&patterns, pieces, false);
            prop_assert!(!out.windows(bytes.len()).any(|each| each == bytes), "{form}: {:?}", String::from_utf8_lossy(&out));
        }
    }

    #[test]
    fn the_cuts_never_change_what_comes_out(
        parts in proptest::collection::vec(prop_oneof![
            Just("correct-horse".to_owned()), Just("horse-battery".to_owned()), Just("ghp_0123456789abcdefghijABCDEFGHIJ012345".to_owned()),
            Just("https://me:pass@host/".to_owned()), Just("Y29ycmVjdC1ob3JzZQ==".to_owned()), "[ -~\n]{0,12}", Just("sk-".to_owned()),
            Just("Y29ycmVj\n\n\n".to_owned()), "[\r\n]{1,6}", Just("dC1ob3JzZQ".to_owned()), Just("eyJhbGciOiJI.eyJzdWIiO.".to_owned()),
            Just("-----BEGIN PRIVATE KEY-----".to_owned()), Just("-----END".to_owned()), Just("T3BlbkFJ".to_owned()),
        ], 0..12),
        cuts in proptest::collection::vec(1usize..20, 1..8),
    ) {
        let text = parts.concat();
        let patterns = patterns(&[("A", b"correct-horse"), ("B", b"horse-battery")]);
        let whole = through(&patterns, [text.as_bytes()], false);
        let mut rest = text.as_bytes();
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            let (piece, more) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = more;
            if rest.is_empty() { break; }
        }
        let out = through(&patterns, pieces, false);
        prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&whole));
    }
}

#[test]
fn secrets_that_overlap_or_hold_each_other_are_hidden_whole() {
    let both = patterns(&[("A", b"abcdefgh"), ("B", b"efghijkl"), ("C", b"abcdefghijklmnop")]);
    check(&both, b"<abcdefghijkl>", b"<[redacted:A]>");
    check(&both, b"<abcdefghijklmnop>", b"<[redacted:C]>");
    check(&both, b"<abcdefgabcdefgh>", b"<abcdefg[redacted:A]>");
}

/// Another search finds the beginnings of long texts.
#[test]
fn long_text_shows_the_same_as_its_pieces() {
    let value = b"correct horse/battery+staple";
    for values in
        [&[][..], &[("A", &value[..])], &[("A", value), ("B", b"another-value-of-a-task"), ("C", b"a-third-one")]]
    {
        let patterns = patterns(values);
        for (form, hidden) in
            every_encoding(value).into_iter().chain([("token", b"ghp_0123456789012345678901234567890123456".to_vec())])
        {
            for lead in 0..40 {
                let text = [&vec![b'.'; lead], &hidden[..], &[b'\n'; 5000], &hidden, &[b'\n'; 5000]].concat();
                let whole = through(&patterns, [&text[..]], false);
                assert!(whole == through(&patterns, text.chunks(1000), false), "{form} behind {lead}");
            }
        }
    }
}

#[test]
fn a_secret_that_begins_in_what_may_be_seen_already_is_hidden() {
    let both = patterns(&[("A", b"correct-horse-battery"), ("B", b"user:pass-phrase")]);
    check(&both, b"https://correct-horse-battery@host/", b"https://[redacted:A]@host/");
    check(&both, b"https://xcorrect-horse-battery:x@host/", b"https://x[redacted:A]:[redacted:url-password]@host/");
    check(&both, b"https://correct-horse-battery", b"https://[redacted:A]");
    check(&both, b"https://user:pass-phrase@host/", b"https://[redacted:B]@host/");
    check(&both, b"https://user:pass-phrase/a", b"https://[redacted:B]/a");
    let token = b"https://ghp_0123456789abcdefghijABCDEFGHIJ012345@host/ https://ghp_012345@host/";
    check(&both, token, b"https://[redacted:github-token]@host/ https://ghp_012345@host/");
    check(&both, b"aws_secret_access_key=correct-horse-battery", b"aws_secret_access_key=[redacted:A]");
}

#[test]
fn a_line_without_a_candidate_is_never_late() {
    let patterns = patterns(&[("KEY", b"correct-horse-battery"), ("MANY", b"first line of it\nsecond line of it\n")]);
    for line in ["plain text, as it comes\n", "task-1 is done\n", "see https://example.org/a\n", "c\n", "\n", "co\r\n"]
    {
        let mut stream = Stream::default();
        let mut out = Vec::new();
        stream.push(&patterns, line.as_bytes(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), line);
    }
}

#[test]
fn interactive_stream_shows_each_letter() {
    let patterns = patterns(&[("KEY", b"correct-horse-battery")]);
    let mut stream = Stream::new(true);
    let mut out = Vec::new();
    for (index, letter) in b"ls src; co".iter().enumerate() {
        stream.push(&patterns, &[*letter], &mut out);
        assert_eq!(out.len(), index + 1);
    }
    // Three letters of a secret wait. Letters already passed stay; the rest is hidden.
    let out = through(&patterns, b"correct-horse-battery!".chunks(1), true);
    assert_eq!(String::from_utf8_lossy(&out), "co[redacted:KEY]!");
}

#[test]
fn a_terminal_s_line_ends_hide_nothing_less() {
    let key = b"first line of the key\nsecond line of the key\nthird";
    let patterns = patterns(&[("KEY", key)]);
    let text = String::from_utf8_lossy(key).replace('\n', "\r\n");
    check(&patterns, text.as_bytes(), b"[redacted:KEY]");
    check(&patterns, b"> second line of the key <", b"> [redacted:KEY] <");
}

#[test]
fn tokens_are_known_by_their_shape() {
    let none = Patterns::new();
    let letters = "0123456789abcdefghijABCDEFGHIJ0123456789abcdefghij";
    let hidden = [
        (format!("ghp_{}", &letters[..36]), "github-token"),
        (format!("github_pat_{}", &letters[..45]), "github-token"),
        (format!("glpat-{}", &letters[..20]), "gitlab-token"),
        (format!("sk-ant-api03-{}", &letters[..40]), "anthropic-key"),
        (format!("sk-proj-{}", &letters[..40]), "openai-key"),
        (format!("sk-{}T3BlbkFJ{}", &letters[..20], &letters[..20]), "openai-key"),
        ("AKIAIOSFODNN7EXAMPLE".to_owned(), "aws-key-id"),
        (format!("xoxb-{}", "123456789012-abcdef"), "slack-token"),
        (format!("npm_{}", &letters[..36]), "npm-token"),
        (format!("pypi-{letters}-x"), "pypi-token"),
        (format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{}", &letters[..43]), "jwt"),
    ];
    for (token, name) in &hidden {
        check(&none, format!("a {token} b").as_bytes(), format!("a [redacted:{name}] b").as_bytes());
        check(&none, format!("\x1b[31m{token}").as_bytes(), format!("\x1b[31m[redacted:{name}]").as_bytes());
    }
    for text in [
        "a task-0123456789abcdefghijABCDEFGHIJ0123456789 b",
        "ghp_short",
        "AKIASHORT and AKIA",
        "eyJhbGciOiJIUzI1NiJ9 alone",
        "https://example.org:8080/path and http://user@host/",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ] {
        check(&none, text.as_bytes(), text.as_bytes());
    }
    check(&none, b"git clone https://me:s3cr:t@x@host/r", b"git clone https://me:[redacted:url-password]@host/r");
    check(&none, b"https://me:pass@host", b"https://me:[redacted:url-password]@host");
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    check(
        &none,
        format!("aws_secret_access_key = {secret}\n").as_bytes(),
        b"aws_secret_access_key = [redacted:aws-secret-key]\n",
    );
}

#[test]
fn a_private_key_is_hidden_to_its_end() {
    let none = Patterns::new();
    for kind in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY"] {
        for line in ["\n", "\r\n", "\\n"] {
            let text = format!("x -----BEGIN {kind}-----{line}MIIEow{line}IBAAK{line}-----END {kind}----- y");
            let expected = format!("x -----BEGIN {kind}-----[redacted:private-key] {kind}----- y");
            check(&none, text.as_bytes(), expected.as_bytes());
        }
    }
}

#[test]
fn a_token_within_a_key_does_not_end_it() {
    let text = b"-----BEGIN PRIVATE KEY-----MIIEow\nghp_0123456789abcdefghijABCDEFGHIJ012345\nIBAAK\n-----END PRIVATE KEY-----";
    check(&Patterns::new(), text, b"-----BEGIN PRIVATE KEY-----[redacted:private-key] PRIVATE KEY-----");
}

#[test]
fn a_value_that_is_in_every_text_is_not_looked_for() {
    let mut patterns = Patterns::new();
    assert!(!patterns.add("SHORT", b"12345"));
    assert!(!patterns.add("BLANK", b" \n a\n"));
    assert_eq!(patterns.redact(b"12345").0, b"12345");
}

#[test]
fn a_number_that_is_a_secret_is_hidden_in_json_and_no_other() {
    let redactor = super::Redactor::new();
    assert!(redactor.add("PIN", b"8412345678"));
    let value = serde_json::json!({"pin": 8_412_345_678_u64, "other": [841_234_567, 1.5]});
    let shown = serde_json::json!({"pin": "[redacted:PIN]", "other": [841_234_567, 1.5]});
    assert_eq!(redactor.value(value), shown);
}

#[test]
fn a_terminals_line_ends_hide_nothing_wherever_the_first_line_of_a_value_ends() {
    for lead in 1..6 {
        let value = [&b"abcdefgh"[..lead], b"\nsecond line of it"].concat();
        let text = [b"it is ", &value[..lead], b"\r\nsecond line of it", b" indeed"].concat();
        check(&patterns(&[("KEY", &value)]), &text, b"it is [redacted:KEY] indeed");
        let at_odd = [b"it is: ", &value[..lead], b"\r\nsecond line of it", b" indeed"].concat();
        check(&patterns(&[("KEY", &value)]), &at_odd, b"it is: [redacted:KEY] indeed");
    }
}

/// `bench/redact` runs it optimised and prints the number.
#[test]
#[ignore = "measures; bench/redact runs it"]
fn throughput() {
    let line =
        b"   Compiling serde v1.0.219 (/home/agent/.cargo/registry/src/serde-1.0.219)\nwarning: unused variable: `x`\n";
    let text: Vec<u8> = line.iter().copied().cycle().take(64 << 20).collect();
    for secrets in [0, 1, 10, 100] {
        let mut patterns = Patterns::new();
        for number in 0..secrets {
            let random = (0..32).map(|place| b'!' + ((number * 7919 + place * 104_729) % 90) as u8).collect::<Vec<_>>();
            assert!(patterns.add(&format!("S{number}"), &random));
        }
        let mut stream = Stream::default();
        let mut out = Vec::with_capacity(text.len() + 4096);
        let began = std::time::Instant::now();
        for chunk in text.chunks(64 << 10) {
            out.clear();
            stream.push(&patterns, chunk, &mut out);
        }
        let rate = text.len() as f64 / began.elapsed().as_secs_f64() / 1e9;
        println!("{secrets} secrets: {rate:.2} GB/s, {} hidden", stream.count);
    }
}
