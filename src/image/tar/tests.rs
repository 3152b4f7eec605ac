//! Ambiguous archives, and reading back what was written.

use super::write::Writer;
use super::*;
use proptest::prelude::*;

fn entry(path: &[u8], kind: EntryKind, size: u64) -> Entry {
    Entry { mtime: (1_700_000_000, 0), size, ..Entry::new(kind, path) }
}

fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for (entry, data) in entries {
        writer.entry(entry).unwrap();
        writer.data(data).unwrap();
    }
    writer.finish().unwrap()
}

fn read_all(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = reader.next()? {
        let mut data = Vec::new();
        reader.data(&entry, |offset, piece| {
            // A mutated map may place bytes terabytes away.
            if offset < 1 << 20 {
                data.resize(data.len().max(usize::try_from(offset).unwrap_or(0)), 0);
            }
            data.extend_from_slice(piece);
            Ok(())
        })?;
        all.push((entry, data));
    }
    Ok(all)
}

fn refusal(bytes: &[u8]) -> String {
    read_all(bytes).map_or_else(|error| error.to_string(), |_| panic!("accepted"))
}

/// Repairs the checksum of the header at `block`.
fn patched(mut bytes: Vec<u8>, block: usize, at: usize, value: &[u8]) -> Vec<u8> {
    let header = &mut bytes[block * 512..(block + 1) * 512];
    header[at..at + value.len()].copy_from_slice(value);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

#[test]
fn what_is_written_is_read_back() {
    let long = [b"a/".repeat(120), b"\xff\n=name".to_vec()].concat();
    let mut first = entry(&long, EntryKind::File, 3);
    first.xattrs = vec![(b"user.x".to_vec(), b"1\n\0=2".to_vec())];
    first.mtime = (-5, 250_000_000);
    first.uid = 4_000_000_000;
    let mut second = entry(b"link", EntryKind::Symlink, 0);
    second.link = b"t".repeat(300);
    let mut third = entry(b"null", EntryKind::Character, 0);
    third.device = (1, 3);
    let read = read_all(&archive(&[(first, b"abc"), (second, b""), (third, b"")])).unwrap();
    assert_eq!((read[0].0.path.as_slice(), read[0].1.as_slice()), (long.as_slice(), &b"abc"[..]));
    assert_eq!((read[0].0.mtime, read[0].0.uid), ((-5, 250_000_000), 4_000_000_000));
    assert_eq!(read[0].0.xattrs[0].1, b"1\n\0=2");
    assert_eq!((read[1].0.link.len(), read[2].0.device), (300, (1, 3)));
}

/// T-58, CVE-2025-62518: the extended size counts only for the data, as in GNU tar.
#[test]
fn an_extended_size_decides_what_follows() {
    let inner = archive(&[(entry(b"smuggled", EntryKind::File, 0), b"")]);
    let plain = archive(&[
        (entry(b"outer", EntryKind::File, inner.len() as u64), &inner),
        (entry(b"last", EntryKind::File, 0), b""),
    ]);
    // A reader that uses the plain header's size 0 sees `smuggled` as an entry.
    let zero = patched(plain, 0, 124, b"00000000000\0");
    let body = format!("size={}\n", inner.len());
    let record = format!("{} {body}", body.len() + 3);
    let mut header = entry(b"pax", EntryKind::File, record.len() as u64);
    header.mode = 0o600;
    let mut bytes = patched(archive(&[(header, record.as_bytes())]), 0, 156, b"x");
    bytes.truncate(1024);
    bytes.extend(zero);
    let names: Vec<_> = read_all(&bytes).unwrap().into_iter().map(|(entry, _)| entry.path).collect();
    assert_eq!(names, [b"outer".to_vec(), b"last".to_vec()]);
}

#[test]
fn what_readers_disagree_about_is_refused() {
    let directory = archive(&[(entry(b"d", EntryKind::Directory, 0), b"")]);
    assert!(refusal(&patched(directory.clone(), 0, 124, b"00000001000\0")).contains("is not a file and has data"));
    assert!(refusal(&patched(directory.clone(), 0, 156, b"Z")).contains("unknown type"));
    assert!(refusal(&patched(directory.clone(), 0, 108, b"\xff\xff\xff\xff\xff\xff\xff\xff")).contains("out of range"));
    let mut lone = directory.clone();
    lone.extend_from_slice(&directory);
    lone.drain(1024..1536);
    assert!(refusal(&lone).contains("one empty block"));
    let mut wrong = directory;
    wrong[0] = b'e';
    assert!(refusal(&wrong).contains("checksum"));
    let file = archive(&[(entry(b"f", EntryKind::File, 600), &[7; 600])]);
    assert!(refusal(&file[..700]).contains("ends in the middle"));
}

/// T-62.
#[test]
fn a_device_number_that_does_not_fit_is_refused() {
    let mut null = entry(b"null", EntryKind::Character, 0);
    null.device = (1, 3);
    let bytes = archive(&[(null, b"")]);
    assert!(refusal(&patched(bytes.clone(), 0, 329, b"\x80\0\0\x01\0\0\0\x01")).contains("device number"));
    assert!(refusal(&patched(bytes.clone(), 0, 329, b"0010000\0")).contains("device number"));
    // Old layouts leave the field of a FIFO blank.
    let fifo = archive(&[(entry(b"p", EntryKind::Fifo, 0), b"")]);
    assert!(read_all(&patched(fifo, 0, 329, b"garbage!")).is_ok());
}

#[test]
fn holes_lie_where_the_map_says_and_a_map_that_lies_is_refused() {
    let body = "GNU.sparse.major=0\n";
    let records = [
        format!("{} {body}", body.len() + 3),
        "22 GNU.sparse.minor=1\n".into(),
        "29 GNU.sparse.realsize=10000\n".into(),
        "35 GNU.sparse.map=0,2,9000,2,10000,0\n".replace("35", "37"),
    ]
    .concat();
    let make = |records: &str| {
        let header = entry(b"pax", EntryKind::File, records.len() as u64);
        let mut bytes = patched(archive(&[(header, records.as_bytes())]), 0, 156, b"x");
        bytes.truncate(1024);
        bytes.extend(archive(&[(entry(b"holes", EntryKind::File, 4), b"abcd")]));
        bytes
    };
    let read = read_all(&make(&records)).unwrap();
    assert_eq!((read[0].0.size, read[0].0.sparse.as_ref().unwrap().len()), (10_000, 3));
    assert_eq!((&read[0].1[..2], &read[0].1[9000..]), (&b"ab"[..], &b"cd"[..]));
    for (good, bad) in [("9000,2", "0001,2"), ("9000,2", "9999,2"), ("9000,2", "9000,3")] {
        assert!(refusal(&make(&records.replace(good, bad))).contains("sparse"), "{bad}");
    }
}

proptest! {
    #[test]
    fn a_mutated_archive_is_read_or_refused(changes in proptest::collection::vec((0usize..8192, any::<u8>()), 1..12), mend: bool) {
        let mut first = entry(b"dir/file", EntryKind::File, 700);
        first.xattrs = vec![(b"user.a".to_vec(), b"b".to_vec())];
        let mut link = entry(b"l", EntryKind::HardLink, 0);
        link.link = b"dir/file".to_vec();
        let mut bytes = archive(&[(entry(b"dir/", EntryKind::Directory, 0), b""), (first, &[1; 700]), (link, b"")]);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
            // Most mutations would only test the checksum.
            if mend && !bytes[at / 512 * 512..][..512].iter().all(|byte| *byte == 0) {
                bytes = patched(bytes, at / 512, at % 512, &[value]);
            }
        }
        let _ = read_all(&bytes);
    }
}

/// Found by `image::fuzz`.
#[test]
fn a_long_name_that_goes_on_in_its_padding_is_refused() {
    let mut header = entry(b"././@LongLink", EntryKind::File, 4);
    header.mode = 0;
    let text = |padding: &[u8]| {
        let mut bytes = archive(&[(header_of(&header), b"name"), (entry(b"short", EntryKind::File, 0), b"")]);
        bytes[512 + 4..512 + 4 + padding.len()].copy_from_slice(padding);
        patched(bytes, 0, 156, b"L")
    };
    assert_eq!(read_all(&text(b"\0more")).unwrap()[0].0.path, b"name");
    assert!(refusal(&text(b"more")).contains("goes on behind its end"));
}

fn header_of(entry: &Entry) -> Entry {
    Entry { path: entry.path.clone(), link: Vec::new(), sparse: None, xattrs: Vec::new(), ..*entry }
}
