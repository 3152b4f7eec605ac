//! Archives are read the same way twice, within their bounds, and like GNU tar if it accepts them.

use super::{Dice, rounds};
use crate::image::tar::Reader;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const BLOCK: usize = 512;

fn corpus() -> &'static [Vec<u8>] {
    static CORPUS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let scratch = tempfile::tempdir().unwrap();
        let long = "n".repeat(90);
        let script = format!(
            "mkdir -p a/{long}/{long} b && echo one > a/one && ln a/one a/two && ln -s ../b a/link && echo x > a/{long}/{long}/deep && mkfifo pipe && \
             truncate -s 1M hole && printf end >> hole && setfattr -n user.note -v something a/one; \
             for format in gnu oldgnu pax posix ustar v7; do tar --format=$format -S -cf ../$format.tar a b hole 2>/dev/null; done; \
             tar --format=pax --xattrs -cf ../xattr.tar a; tar --format=pax --sparse-version=0.0 -S -cf ../old.tar hole a/one; \
             tar --format=pax --sparse-version=0.1 -S -cf ../older.tar hole a/one; tar -cf ../fifo.tar pipe b a/one"
        );
        let work = scratch.path().join("work");
        std::fs::create_dir(&work).unwrap();
        Command::new("sh").args(["-c", &script]).current_dir(&work).stderr(Stdio::null()).status().unwrap();
        let mut all: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        let read: Vec<_> = all.iter().filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap()).collect();
        assert!(read.len() >= 8, "tar made {} archives", read.len());
        read.into_iter()
            .map(|mut bytes| {
                let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) / BLOCK + 3;
                bytes.truncate(used * BLOCK);
                bytes
            })
            .collect()
    })
}

fn is_header(block: &[u8]) -> bool {
    block.len() == BLOCK && &block[257..262] == b"ustar"
}

/// Repairs the checksums of blocks that look like headers.
fn mend(bytes: &mut [u8]) {
    for header in bytes.chunks_mut(BLOCK).filter(|block| is_header(block)) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// Name, size, type, link, magic, device, prefix, GNU's sparse map: readers disagree about these.
const FIELDS: [(usize, usize); 9] =
    [(0, 100), (124, 12), (156, 1), (157, 100), (257, 8), (329, 16), (345, 155), (386, 96), (482, 30)];
const VALUES: [&[u8]; 18] = [
    b"\0",
    b"0",
    b"1",
    b"5",
    b"7",
    b"S",
    b"x",
    b"g",
    b"L",
    b"K",
    b"../x",
    b"/",
    b"77777777777",
    b"00000000001",
    b"-1",
    b"\x80\0\0\0\0\0\0\0\0\0\x02\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b" 1000 ",
];

fn extended(dice: &mut Dice) -> Vec<u8> {
    let keys = [
        "path",
        "linkpath",
        "size",
        "mtime",
        "uid",
        "GNU.sparse.size",
        "GNU.sparse.map",
        "GNU.sparse.major",
        "GNU.sparse.minor",
        "GNU.sparse.realsize",
        "GNU.sparse.name",
        "SCHILY.xattr.user.x",
        "comment",
        "",
    ];
    let values = [
        "",
        "0",
        "512",
        "1024",
        "-1",
        "99999999999999999999",
        "0,1,5,1",
        "1,1,0,1",
        "a/one",
        "../../x",
        "1",
        "0.5",
        "é\n",
    ];
    let mut body = String::new();
    for _ in 0..=dice.below(3) {
        let text = format!(" {}={}\n", dice.pick(&keys), dice.pick(&values));
        let mut length = text.len() + 1;
        while length.to_string().len() + text.len() != length {
            length += 1;
        }
        body += &format!("{}{text}", if dice.one_in(12) { length + 1 } else { length });
    }
    let mut block = vec![0; BLOCK];
    block[..3].copy_from_slice(b"pax");
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
    block[156] = *dice.pick(b"xxxg");
    block[257..265].copy_from_slice(b"ustar\x0000");
    let mut bytes = body.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    [block, bytes].concat()
}

fn mutated(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = dice.pick(corpus()).clone();
    for _ in 0..=dice.below(4) {
        let blocks = bytes.len() / BLOCK;
        if blocks < 2 {
            break;
        }
        let at = dice.below(blocks) * BLOCK;
        match dice.below(8) {
            0 => {
                let bit = 1 << dice.below(8);
                let at = dice.below(bytes.len());
                bytes[at] ^= bit;
            }
            1..=3 => {
                let headers: Vec<usize> =
                    (0..blocks).filter(|block| is_header(&bytes[block * BLOCK..][..BLOCK])).collect();
                if !headers.is_empty() {
                    let (start, length) = *dice.pick(&FIELDS);
                    let value = dice.pick(&VALUES);
                    let from = dice.pick(&headers) * BLOCK + start;
                    let length = length.min(value.len());
                    bytes[from..from + length].copy_from_slice(&value[..length]);
                }
            }
            4 => drop(bytes.drain(at..at + BLOCK)),
            5 => {
                let block = bytes[at..at + BLOCK].to_vec();
                let to = dice.below(blocks) * BLOCK;
                bytes.splice(to..to, block);
            }
            6 => {
                let more = extended(dice);
                bytes.splice(at..at, more);
            }
            _ => {
                let other = dice.pick(corpus());
                let from = dice.below(other.len() / BLOCK) * BLOCK;
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
    }
    if !dice.one_in(4) {
        mend(&mut bytes);
    }
    if dice.one_in(16) {
        let length = dice.below(bytes.len() + 1);
        bytes.truncate(length);
    }
    bytes
}

/// The names in order, and a fingerprint of the rest.
fn read(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, String)> {
    let mut reader = Reader::new(bytes);
    let (mut names, mut print, mut stored) = (Vec::new(), String::new(), 0);
    loop {
        let entry = match reader.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return Some((names, print)),
            Err(error) => {
                assert!(error.to_string().len() < 10_000, "an error of {} bytes", error.to_string().len());
                return None;
            }
        };
        let mut end = 0;
        let whole = reader.data(&entry, |offset, piece| {
            assert!(offset >= end, "bytes go backwards");
            end = offset + piece.len() as u64;
            stored += piece.len();
            Ok(())
        });
        assert!(end <= entry.size, "more bytes than the file has");
        assert!(stored <= bytes.len(), "more bytes than the archive has");
        if whole.is_err() {
            return None;
        }
        print += &format!("{entry:?}");
        names.push(entry.path);
    }
}

/// `None` if GNU tar refuses the archive or warns.
fn listed(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut tar = Command::new("tar")
        .args(["-tPf", "-", "--quoting-style=literal"])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // tar may have exited before the end of its input.
    let _ = tar.stdin.take().unwrap().write_all(bytes);
    let output = tar.wait_with_output().unwrap();
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    (output.status.success() && output.stderr.is_empty()).then(|| lines.map(<[u8]>::to_vec).collect())
}

#[test]
fn archives_are_read_alike_and_within_their_bounds() {
    let (taken, compared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    rounds(4000, |dice| {
        let bytes = mutated(dice);
        let first = read(&bytes);
        assert_eq!(first, read(&bytes), "the same archive, read twice");
        let Some((names, _)) = first else { return };
        // The comparison needs a process: one round in four is enough.
        if taken.fetch_add(1, Ordering::Relaxed) % 4 != 0
            || names.iter().flatten().any(|byte| matches!(byte, b'\n' | 0))
        {
            return;
        }
        let Some(theirs) = listed(&bytes) else { return };
        compared.fetch_add(1, Ordering::Relaxed);
        let bare = |names: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            let bare = |name: Vec<u8>| name.strip_suffix(b"/").map(<[u8]>::to_vec).unwrap_or(name);
            names.into_iter().map(bare).filter(|name| !name.is_empty()).collect()
        };
        let show = |names: &[Vec<u8>]| names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>();
        let (ours, theirs) = (bare(names), bare(theirs));
        assert_eq!(show(&ours), show(&theirs), "ours and GNU tar's");
    });
    let (taken, compared) = (taken.into_inner(), compared.into_inner());
    assert!(taken >= 200 && compared >= 30, "mutations spoil nearly everything: {taken} taken, {compared} compared");
}
