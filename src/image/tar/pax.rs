//! Extended headers (`x` and `g`), in bytes, since values may contain newlines and NULs. Pure.
//!
//! An invalid record is an error: readers that skip it see other entries than readers that do not (RUSTSEC-2026-0113).

use super::malformed;
use crate::error::Result;
use crate::sys::weaken;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// `GNU.sparse.major` and `.minor`: (0,0) and (0,1) keep the map here, (1,0) before the data.
    pub(super) sparse_version: Option<(u64, u64)>,
    pub(super) sparse_map: Vec<(u64, u64)>,
    pub(super) real_size: Option<u64>,
    pending_offset: Option<u64>,
}

const XATTR: &[u8] = b"SCHILY.xattr.";
/// The kernel's limits of a name and of a value (xattr(7)).
const LONGEST_XATTR_NAME: usize = 255;
const LONGEST_XATTR_VALUE: usize = 64 << 10;
/// For one file: more than file systems keep.
const MOST_XATTR_BYTES: usize = 256 << 10;
pub(crate) const MOST_EXTENTS: usize = 1 << 18;

pub(super) fn parse(data: &[u8]) -> Result<Pax> {
    let mut pax = Pax::default();
    let mut attribute_bytes = 0;
    let (mut seen, mut sparse_name) = (Vec::new(), None);
    for record in Records(data) {
        if record.is_err() && weaken::is_off("image-pax-records") {
            continue; // as other readers do
        }
        let (key, value) = record?;
        let decides = matches!(
            key,
            b"path" | b"linkpath" | b"size" | b"GNU.sparse.name" | b"GNU.sparse.size" | b"GNU.sparse.realsize"
        );
        if decides && super::is_strict() {
            // POSIX: the last value counts, and an empty one deletes the key. Some readers keep the first, or use the
            // empty value.
            if value.is_empty() || seen.contains(&key) {
                return Err(malformed("an extended header gives a name or a size twice, or takes it back"));
            }
            seen.push(key);
        }
        if value.is_empty() && !key.starts_with(XATTR) {
            continue;
        }
        match key {
            b"path" => pax.path = Some(name(value)?),
            b"linkpath" => pax.link = Some(name(value)?),
            b"GNU.sparse.name" => sparse_name = Some(name(value)?),
            b"size" => pax.size = Some(decimal(value)?),
            b"uid" => pax.uid = Some(decimal(value)?),
            b"gid" => pax.gid = Some(decimal(value)?),
            b"mtime" => pax.mtime = Some(time(value)?),
            b"GNU.sparse.major" => {
                pax.sparse_version = Some((decimal(value)?, pax.sparse_version.unwrap_or_default().1))
            }
            b"GNU.sparse.minor" => {
                pax.sparse_version = Some((pax.sparse_version.unwrap_or_default().0, decimal(value)?))
            }
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => pax.real_size = Some(decimal(value)?),
            b"GNU.sparse.map" => pax.sparse_map = map(value)?,
            b"GNU.sparse.offset" => pax.pending_offset = Some(decimal(value)?),
            b"GNU.sparse.numbytes" => match pax.pending_offset.take() {
                Some(offset) if pax.sparse_map.len() < MOST_EXTENTS => pax.sparse_map.push((offset, decimal(value)?)),
                _ => return Err(malformed("a sparse length has no offset, or there are too many")),
            },
            _ => {
                if let Some(attribute) = key.strip_prefix(XATTR) {
                    attribute_bytes += attribute.len() + value.len();
                    pax.xattrs.push(xattr(attribute, value, attribute_bytes)?);
                }
            }
        }
    }
    if !pax.sparse_map.is_empty() && pax.sparse_version.is_none() {
        pax.sparse_version = Some((0, 1));
    }
    let has_holes = sparse_name.is_some() || pax.real_size.is_some() || pax.pending_offset.is_some();
    if has_holes && pax.sparse_version.is_none() && super::is_strict() {
        return Err(malformed("an extended header describes holes in no version"));
    }
    // `path` of a file with holes is a substitute for readers without support.
    pax.path = sparse_name.or(pax.path);
    Ok(pax)
}

/// A `g` header would change all later entries, and not all readers apply it: a name or a size is refused.
pub(super) fn check_global(data: &[u8]) -> Result<()> {
    for record in Records(data) {
        let (key, _) = record?;
        if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
            return Err(malformed("a global header gives a name or a size to all entries"));
        }
    }
    Ok(())
}

/// `LENGTH KEY=VALUE\n`, one after the other.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = split(self.0);
        self.0 = record.as_ref().map_or(&[], |(_, rest)| rest);
        Some(record.map(|(pair, _)| pair))
    }
}

type Pair<'a> = (&'a [u8], &'a [u8]);

fn split(data: &[u8]) -> Result<(Pair<'_>, &[u8])> {
    let wrong = || malformed("an extended header has a record that does not parse");
    let space = data.iter().take(20).position(|byte| *byte == b' ').ok_or_else(wrong)?;
    let length = usize::try_from(decimal(&data[..space])?).map_err(|_| wrong())?;
    // At least `K=` and the newline must follow the blank.
    if length < space + 4 || length > data.len() || data[length - 1] != b'\n' {
        return Err(wrong());
    }
    let record = &data[space + 1..length - 1];
    let equals = record.iter().position(|byte| *byte == b'=').filter(|at| *at > 0).ok_or_else(wrong)?;
    if record[..equals].contains(&0) {
        return Err(wrong());
    }
    Ok(((&record[..equals], &record[equals + 1..]), &data[length..]))
}

fn name(value: &[u8]) -> Result<Vec<u8>> {
    if value.contains(&0) { Err(malformed("a name in an extended header has a NUL in it")) } else { Ok(value.to_vec()) }
}

/// No sign, no blank, no overflow.
pub(super) fn decimal(value: &[u8]) -> Result<u64> {
    let wrong = || malformed("a number in an extended header is not decimal");
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let number: u64 = std::str::from_utf8(value).map_err(|_| wrong())?.parse().map_err(|_| wrong())?;
    if number > i64::MAX.unsigned_abs() { Err(wrong()) } else { Ok(number) }
}

/// Optional sign and fraction. The nanoseconds count upwards from the second below.
fn time(value: &[u8]) -> Result<(i64, u32)> {
    let wrong = || malformed("a time in an extended header does not parse");
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let (whole, fraction) = match value.iter().position(|byte| *byte == b'.') {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &b""[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let seconds = i64::try_from(decimal(whole)?).map_err(|_| wrong())?;
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Ok(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

/// `offset,length,offset,length…` of sparse format 0.1.
fn map(value: &[u8]) -> Result<Vec<(u64, u64)>> {
    let numbers = value.split(|byte| *byte == b',').take(2 * MOST_EXTENTS + 1).map(decimal);
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    if numbers.len() % 2 != 0 || numbers.len() > 2 * MOST_EXTENTS {
        return Err(malformed("a sparse map has an odd count of numbers, or too many"));
    }
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn xattr(attribute: &[u8], value: &[u8], total: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    if attribute.is_empty() || attribute.len() > LONGEST_XATTR_NAME {
        return Err(malformed("an extended attribute's name is empty or too long"));
    }
    if (value.len() > LONGEST_XATTR_VALUE && !weaken::is_off("image-attribute-size")) || total > MOST_XATTR_BYTES {
        return Err(malformed("an extended attribute is too large"));
    }
    Ok((attribute.to_vec(), value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_bytes_and_may_hold_newlines() {
        let pax = parse(b"30 SCHILY.xattr.user.a=1\n2\0=3\n22 mtime=1700000000.5\n12 path=\xff\xfe/\n").unwrap();
        assert_eq!(pax.xattrs, vec![(b"user.a".to_vec(), b"1\n2\0=3".to_vec())]);
        assert_eq!(pax.mtime, Some((1_700_000_000, 500_000_000)));
        assert_eq!(pax.path.as_deref(), Some(&b"\xff\xfe/"[..]));
        assert_eq!(time(b"-1.25").unwrap(), (-2, 750_000_000));
    }

    /// T-59, RUSTSEC-2026-0113.
    #[test]
    fn a_malformed_record_is_an_error_not_skipped() {
        let rows: &[&[u8]] = &[
            b"path=x\n",
            b"7 path=x\n",
            b"8 path=x\n",
            b"99 path=x\n",
            b"10 path=xy",
            b"11 pathxxx\n",
            b"5 =x\n",
            b"-1 a=b\n",
            b"6 a=b\n\n",
            b"18446744073709551616 a=b\n",
            b"12 size=-10\n",
            b"11 size=1x\n",
            b"11 path=a\0\n",
            b"\0\0\0\0",
        ];
        for data in rows {
            assert!(parse(data).is_err(), "{:?}", String::from_utf8_lossy(data));
        }
    }

    /// T-61.
    #[test]
    fn an_attribute_longer_than_the_kernel_takes_is_refused() {
        let record = |name: usize, value: usize| {
            let body = format!(" SCHILY.xattr.user.{}={}\n", "n".repeat(name), "v".repeat(value));
            let length =
                (1..9).map(|digits| body.len() + digits).find(|all| all.to_string().len() + body.len() == *all);
            format!("{}{body}", length.unwrap()).into_bytes()
        };
        assert!(parse(&record(200, 65_536)).is_ok());
        assert!(parse(&record(251, 1)).is_err());
        assert!(parse(&record(1, 65_537)).is_err());
        assert!(
            parse(
                &[record(1, 65_000), record(2, 65_000), record(3, 65_000), record(4, 65_000), record(5, 65_000)]
                    .concat()
            )
            .is_err()
        );
    }

    #[test]
    fn a_name_or_a_size_is_given_once() {
        for (data, good) in [
            (&b"9 path=a\n9 path=b\n"[..], false),
            (b"9 path=a\n8 path=\n", false),
            (b"8 path=\n", false),
            (b"13 linkpath=\n", false),
            (b"21 GNU.sparse.name=a\n", false),
            (b"26 GNU.sparse.realsize=10\n", false),
            (b"11 uname=a\n11 uname=b\n", true),
        ] {
            assert_eq!(parse(data).is_ok(), good, "{}", String::from_utf8_lossy(data));
        }
        let both = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n21 GNU.sparse.name=a\n9 path=b\n";
        assert_eq!(parse(both).unwrap().path.as_deref(), Some(&b"a"[..]));
    }

    #[test]
    fn a_global_header_may_comment_but_not_rename() {
        assert!(check_global(b"13 comment=x\n").is_ok());
        assert!(check_global(b"10 size=1\n").is_err());
        assert!(check_global(b"11 path=xx\n").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&data);
            let _ = check_global(&data);
        }
    }
}
