//! Files with holes: the old GNU header (type `S`) and the PAX forms 0.0, 0.1 and 1.0 (GNU tar manual, "Sparse
//! Formats").

use super::header::{BLOCK, Header, extents};
use super::pax::{MOST_EXTENTS, Pax, decimal};
use super::{Entry, EntryKind, Reader, malformed};
use crate::error::Result;
use std::io::BufRead;

pub(super) fn apply<R: BufRead>(
    reader: &mut Reader<R>,
    header: &Header<'_>,
    pax: &Pax,
    entry: &mut Entry,
) -> Result<()> {
    let (map, real) = if header.kind() == b'S' {
        if pax.sparse_version.is_some() {
            return Err(malformed("its holes are described twice"));
        }
        old(reader, header)?
    } else if let Some(version) = pax.sparse_version {
        if entry.kind != EntryKind::File {
            return Err(malformed("it has holes and is not a file"));
        }
        let real = pax.real_size.ok_or_else(|| malformed("it has holes and no real size"))?;
        match version {
            (0, _) => (pax.sparse_map.clone(), real),
            (1, 0) => (in_front(reader)?, real),
            _ => return Err(malformed("its holes are described in an unknown version")),
        }
    } else {
        return Ok(());
    };
    check(&map, reader.data_left, real)?;
    entry.size = real;
    entry.sparse = Some(map);
    Ok(())
}

/// Four extents in the header, 21 in each further block while a flag is set.
fn old<R: BufRead>(reader: &mut Reader<R>, header: &Header<'_>) -> Result<(Vec<(u64, u64)>, u64)> {
    let (mut map, mut more, real) = header.old_sparse()?;
    while more {
        let block = reader.raw_block()?.ok_or_else(|| malformed("the archive ends in a sparse map"))?;
        map.extend(extents(&block[..504])?);
        more = block[504] != 0;
        if map.len() > MOST_EXTENTS {
            return Err(malformed("a sparse map has too many extents"));
        }
    }
    Ok((map, real))
}

/// Version 1.0: one decimal number on each line before the data: the count, then offset and length of each.
fn in_front<R: BufRead>(reader: &mut Reader<R>) -> Result<Vec<(u64, u64)>> {
    let (mut text, mut numbers): (Vec<u8>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut wanted = 1;
    while numbers.len() < wanted {
        if reader.data_left < BLOCK as u64 {
            return Err(malformed("a sparse map is longer than the data"));
        }
        let block = reader.raw_block()?.ok_or_else(|| malformed("the archive ends in a sparse map"))?;
        reader.data_left -= BLOCK as u64;
        for byte in block {
            if numbers.len() == wanted {
                break;
            }
            if byte != b'\n' {
                text.push(byte);
                if text.len() > 20 {
                    return Err(malformed("a number of a sparse map is too long"));
                }
                continue;
            }
            numbers.push(decimal(&text)?);
            text.clear();
            if numbers.len() == 1 {
                let count = usize::try_from(numbers[0]).ok().filter(|count| *count <= MOST_EXTENTS);
                wanted = 1 + 2 * count.ok_or_else(|| malformed("a sparse map has too many extents"))?;
            }
        }
    }
    Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// Extents must rise, not overlap, end within the file, and sum up to the stored size.
fn check(map: &[(u64, u64)], stored: u64, real: u64) -> Result<()> {
    let (mut end, mut sum) = (0u64, 0u64);
    for &(offset, length) in map {
        let next = offset.checked_add(length).filter(|next| offset >= end && *next <= real);
        end = next.ok_or_else(|| malformed("its sparse extents overlap or lie outside the file"))?;
        sum += length;
    }
    if sum == stored { Ok(()) } else { Err(malformed("its sparse extents are not what is stored")) }
}
