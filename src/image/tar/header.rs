//! A 512-byte header block in ustar, GNU and star layouts (tar(5)). Pure.

use super::malformed;
use crate::error::Result;

pub(super) const BLOCK: usize = 512;

/// Offset and length of stored bytes in the file.
pub(super) type Extents = Vec<(u64, u64)>;

pub(super) struct Header<'a> {
    block: &'a [u8; BLOCK],
}

impl<'a> Header<'a> {
    /// The checksum is over unsigned or, as in old programs, signed bytes.
    pub(super) fn read(block: &'a [u8; BLOCK]) -> Result<Header<'a>> {
        let stored = number(&block[148..156], "checksum")?;
        let (mut unsigned, mut signed) = (0i64, 0i64);
        for (index, byte) in block.iter().enumerate() {
            let byte = if (148..156).contains(&index) { b' ' } else { *byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        if stored != unsigned && stored != signed {
            return Err(malformed("a header's checksum is wrong"));
        }
        Ok(Header { block })
    }

    pub(super) fn kind(&self) -> u8 {
        self.block[156]
    }

    /// Refuses a prefix that only some readers apply. POSIX has it under its own magic only; Python's tarfile under
    /// every magic. GNU tar has times there in incremental archives, or maps of holes.
    pub(super) fn check_prefix(&self) -> Result<()> {
        let prefix = &self.block[345..500];
        let is_posix = &self.block[257..263] == b"ustar\0";
        let is_star = is_posix && &self.block[508..512] == b"tar\0";
        let is_unclear = match (is_posix, is_star) {
            (_, true) => prefix[..131].last() != Some(&0), // star's prefix ends there, and times follow
            (true, _) => false,
            (false, _) => self.kind() != b'S' && prefix.iter().any(|byte| *byte != 0),
        };
        if is_unclear && super::is_strict() {
            return Err(malformed("readers disagree about whether its name has a prefix"));
        }
        Ok(())
    }

    /// With the prefix of the ustar and star layouts.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = text(&self.block[0..100]);
        if &self.block[257..263] != b"ustar\0" {
            return name.to_vec();
        }
        let star = &self.block[508..512] == b"tar\0";
        let prefix = text(if star { &self.block[345..476] } else { &self.block[345..500] });
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.block[157..257]).to_vec()
    }

    pub(super) fn mode(&self) -> Result<i64> {
        number(&self.block[100..108], "mode")
    }

    pub(super) fn uid(&self) -> Result<i64> {
        number(&self.block[108..116], "uid")
    }

    pub(super) fn gid(&self) -> Result<i64> {
        number(&self.block[116..124], "gid")
    }

    pub(super) fn size(&self) -> Result<u64> {
        u64::try_from(number(&self.block[124..136], "size")?).map_err(|_| malformed("a size is negative"))
    }

    pub(super) fn mtime(&self) -> Result<i64> {
        number(&self.block[136..148], "mtime")
    }

    /// Old layouts leave the numbers blank except for devices.
    pub(super) fn device(&self) -> Result<(i64, i64)> {
        Ok((number(&self.block[329..337], "major number")?, number(&self.block[337..345], "minor number")?))
    }

    /// Old GNU sparse header: up to four extents, whether more follow, and the real size.
    pub(super) fn old_sparse(&self) -> Result<(Extents, bool, u64)> {
        let real = number(&self.block[483..495], "real size")?;
        let real = u64::try_from(real).map_err(|_| malformed("a real size is negative"))?;
        Ok((extents(&self.block[386..482])?, self.block[482] != 0, real))
    }
}

/// Rows of 24 bytes, up to the first empty one.
pub(super) fn extents(bytes: &[u8]) -> Result<Extents> {
    let mut found = Vec::new();
    for pair in bytes.chunks_exact(24) {
        if pair[0] == 0 || pair[12] == 0 {
            break;
        }
        let (offset, length) = (number(&pair[..12], "sparse offset")?, number(&pair[12..], "sparse length")?);
        match (u64::try_from(offset), u64::try_from(length)) {
            (Ok(offset), Ok(length)) => found.push((offset, length)),
            _ => return Err(malformed("a sparse extent is negative")),
        }
    }
    Ok(found)
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// Octal digits between blanks, or base-256 (GNU) if the top bit is set.
fn number(field: &[u8], what: &str) -> Result<i64> {
    let first = field.first().copied().unwrap_or(0);
    if first & 0x80 != 0 {
        // Two's complement below the marker bit: 0x80 starts a positive number, 0xff a negative one.
        let mut value: i64 = if first & 0x40 != 0 { -1 } else { 0 };
        for (index, byte) in field.iter().enumerate() {
            let byte = if index == 0 { byte & 0x7f | if first & 0x40 != 0 { 0x80 } else { 0 } } else { *byte };
            if value != value << 8 >> 8 {
                return Err(malformed(&format!("a {what} does not fit 64 bits")));
            }
            value = value << 8 | i64::from(byte);
        }
        return Ok(value);
    }
    // GNU tar skips a leading NUL; for other readers it ends the number.
    if first == 0 && field.iter().any(|byte| *byte != 0) && super::is_strict() {
        return Err(malformed(&format!("a {what} begins with a NUL")));
    }
    let mut digits =
        field.iter().copied().skip_while(|byte| *byte == b' ').take_while(|byte| !matches!(byte, 0 | b' '));
    digits.try_fold(0i64, |value, byte| match byte {
        b'0'..=b'7' if value < 1 << 59 => Ok(value << 3 | i64::from(byte - b'0')),
        _ => Err(malformed(&format!("a {what} is not an octal number"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        let rows: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"\x00000644\0", None),
            (b"0000648\0", None),
            (b"-000001\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ];
        for (field, value) in rows {
            assert_eq!(number(field, "number").ok(), *value, "{field:?}");
        }
    }
}
