//! A value as shells, HTML and dumps of bytes write it.

/// Bytes besides letters and digits that bash's `%q` leaves unescaped.
const PLAIN: &[u8] = b"_-./:=@%+";

/// As `set -x`, `export -p` and `printf %q` of common shells write it, and Python's `shlex.quote`.
pub(super) fn in_shells(value: &[u8]) -> Vec<Vec<u8>> {
    let each = |escape: &dyn Fn(u8) -> Vec<u8>| value.iter().flat_map(|&byte| escape(byte)).collect::<Vec<u8>>();
    let quoted = |with: &'static [u8]| move |byte: u8| if byte == b'\'' { with.to_vec() } else { vec![byte] };
    let escaped = |all: &'static [u8]| move |byte: u8| if all.contains(&byte) { vec![b'\\', byte] } else { vec![byte] };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) || !byte.is_ascii();
    let mut forms =
        vec![each(&quoted(b"'\\''")), each(&quoted(b"'\"'\"'")), each(&escaped(b"\"\\$`")), each(&escaped(b"\"\\$`!"))];
    for first_only in [&b"#~"[..], b"#~,", b"~"] {
        let mut is_first = true;
        let mut escape = |byte: u8| {
            let is_kept = is_plain(byte) || first_only.contains(&byte) && !std::mem::replace(&mut is_first, false);
            is_first = false;
            if is_kept { vec![byte] } else { vec![b'\\', byte] }
        };
        forms.push(value.iter().flat_map(|&byte| escape(byte)).collect());
    }
    // $'…' of bash and ksh.
    for keeps_letters in [true, false] {
        forms.push(each(&|byte| match byte {
            b'\'' | b'\\' => vec![b'\\', byte],
            b'\n' => b"\\n".to_vec(),
            b'\t' => b"\\t".to_vec(),
            b'\r' => b"\\r".to_vec(),
            0x1b => b"\\E".to_vec(),
            7 => b"\\a".to_vec(),
            8 => b"\\b".to_vec(),
            11 => b"\\v".to_vec(),
            12 => b"\\f".to_vec(),
            _ if byte < b' ' || byte == 0x7f || !byte.is_ascii() && !keeps_letters => {
                format!("\\{byte:03o}").into_bytes()
            }
            _ => vec![byte],
        }));
    }
    forms
}

/// HTML entities, by name or number: for special letters, for letters outside ASCII, or for all.
pub(super) fn in_html(value: &[u8]) -> Vec<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(value) else { return Vec::new() };
    let each = |escape: &dyn Fn(char) -> String| text.chars().map(escape).collect::<String>().into_bytes();
    let mut forms = vec![
        each(&|letter| format!("&#{};", u32::from(letter))),
        each(&|letter| format!("&#x{:x};", u32::from(letter))),
        each(&|letter| format!("&#x{:X};", u32::from(letter))),
    ];
    for double in ["\"", "&quot;", "&#34;"] {
        for single in ["'", "&#39;", "&#x27;", "&#039;", "&apos;"] {
            for [slash, equals, tick] in
                [["/", "=", "`"], ["&#x2F;", "=", "`"], ["/", "&#x3D;", "&#x60;"], ["&#x2F;", "&#x3D;", "&#x60;"]]
            {
                for keeps_letters in [true, false] {
                    forms.push(each(&|letter| match letter {
                        '&' => "&amp;".to_owned(),
                        '<' => "&lt;".to_owned(),
                        '>' => "&gt;".to_owned(),
                        '"' => double.to_owned(),
                        '\'' => single.to_owned(),
                        '/' => slash.to_owned(),
                        '=' => equals.to_owned(),
                        '`' => tick.to_owned(),
                        _ if letter.is_ascii() || keeps_letters => letter.to_string(),
                        _ => format!("&#{};", u32::from(letter)),
                    }));
                }
            }
        }
    }
    forms
}

/// The letters that do not depend on the neighbouring bytes, at each of five offsets (RFC 4648).
pub(super) fn in_base32(value: &[u8]) -> Vec<Vec<u8>> {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut forms = Vec::new();
    for before in 0..5_usize {
        let bit = |at: usize| at.checked_sub(before * 8).is_some_and(|at| value[at / 8] >> (7 - at % 8) & 1 == 1);
        let bits = (before + value.len()) * 8;
        let letters: Vec<u8> = ((before * 8).div_ceil(5)..bits / 5)
            .map(|letter| (0..5).fold(0, |sum, at| sum << 1 | usize::from(bit(letter * 5 + at))))
            .map(|number| LETTERS[number])
            .collect();
        forms.push(letters);
    }
    forms
}

/// Plain, little-endian first, and escaped.
pub(super) fn in_utf_16(value: &[u8]) -> Vec<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(value) else { return Vec::new() };
    vec![
        text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        text.encode_utf16().flat_map(|unit| format!("\\u{unit:04x}").into_bytes()).collect(),
        text.encode_utf16().flat_map(|unit| format!("\\u{unit:04X}").into_bytes()).collect(),
    ]
}

pub(super) fn in_one_case(value: &[u8]) -> [Vec<u8>; 2] {
    [value.to_ascii_uppercase(), value.to_ascii_lowercase()]
}

/// Bytes as numbers on one line; `dumps` finds dumps of lines. Decimal ones are as Python, Rust, JavaScript and Go write
/// lists.
pub(super) fn in_bytes(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for between in [", ", ",", " "] {
        let numbers: Vec<_> = value.iter().map(u8::to_string).collect();
        forms.push(numbers.join(between).into_bytes());
    }
    forms.push(value.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes()).collect());
    for (before, between) in
        [("", ":"), ("", " "), ("", "-"), ("0x", ", "), ("0x", ","), ("0x", " "), ("\\x", ""), ("\\\\x", ""), ("%", "")]
    {
        let lower: Vec<_> = value.iter().map(|byte| format!("{before}{byte:02x}")).collect();
        let upper: Vec<_> = value.iter().map(|byte| format!("{before}{byte:02X}")).collect();
        forms.extend([lower.join(between).into_bytes(), upper.join(between).into_bytes()]);
    }
    forms
}
