//! The numbers of all system calls on all supported ABIs.
//!
//! `syscalls.py` makes `syscalls.in` from the kernel's lists. A look-up is one hash and, nearly always, one comparison:
//! each start of a container compiles a profile of four hundred calls.

/// Not a call of that ABI.
const NO: u16 = u16::MAX;

const COLUMNS: usize = 14;

/// In the order of `syscalls.in`. MIPS has one for both byte orders, so has 64-bit PowerPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    X86_64,
    X86,
    X32,
    Aarch64,
    Arm,
    Riscv64,
    Loongarch64,
    S390x,
    S390,
    Ppc64,
    Ppc,
    Mips,
    Mips64,
    Mips64N32,
}

type Row = (&'static str, [u16; COLUMNS]);

const ROWS: &[Row] = &include!("syscalls.in");
static TABLE: &[Row] = ROWS;

/// ARM's private calls are `0x0f0000 + n`; their cells have this bit and `n`.
const ARM_MARK: u16 = 0x8000;
/// `__ARM_NR_BASE` of asm/unistd.h.
pub(super) const ARM_PRIVATE: u32 = 0x000f_0000;

/// By the first argument of `socketcall` (linux/net.h).
const SOCKETCALL: &[(&str, u8)] = &[
    ("socket", 1),
    ("bind", 2),
    ("connect", 3),
    ("listen", 4),
    ("accept", 5),
    ("getsockname", 6),
    ("getpeername", 7),
    ("socketpair", 8),
    ("send", 9),
    ("recv", 10),
    ("sendto", 11),
    ("recvfrom", 12),
    ("shutdown", 13),
    ("setsockopt", 14),
    ("getsockopt", 15),
    ("sendmsg", 16),
    ("recvmsg", 17),
    ("accept4", 18),
    ("recvmmsg", 19),
    ("sendmmsg", 20),
];
/// linux/ipc.h.
const IPC: &[(&str, u8)] = &[
    ("semop", 1),
    ("semget", 2),
    ("semctl", 3),
    ("semtimedop", 4),
    ("msgsnd", 11),
    ("msgrcv", 12),
    ("msgget", 13),
    ("msgctl", 14),
    ("shmat", 21),
    ("shmdt", 22),
    ("shmget", 23),
    ("shmctl", 24),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Multiplexer {
    Socketcall(u8),
    Ipc(u8),
}

static MULTIPLEXED: [Option<Multiplexer>; ROWS.len()] = {
    let mut by_row = [None; ROWS.len()];
    let mut at = 0;
    while at < SOCKETCALL.len() {
        by_row[row_of(SOCKETCALL[at].0)] = Some(Multiplexer::Socketcall(SOCKETCALL[at].1));
        at += 1;
    }
    at = 0;
    while at < IPC.len() {
        by_row[row_of(IPC[at].0)] = Some(Multiplexer::Ipc(IPC[at].1));
        at += 1;
    }
    by_row
};

/// An unknown name does not compile.
const fn row_of(name: &str) -> usize {
    let mut slot = hash(name.as_bytes());
    while !same(ROWS[INDEX[slot] as usize].0.as_bytes(), name.as_bytes()) {
        slot = (slot + 1) % SLOTS;
    }
    INDEX[slot] as usize
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Twice the rows and a power of two: probing stays short.
const SLOTS: usize = 1024;
const INDEX: [u16; SLOTS] = index();
static SLOT: [u16; SLOTS] = INDEX;

const fn index() -> [u16; SLOTS] {
    let mut slots = [NO; SLOTS];
    let mut row = 0;
    while row < ROWS.len() {
        let mut slot = hash(ROWS[row].0.as_bytes());
        while slots[slot] != NO {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = row as u16;
        row += 1;
    }
    slots
}

/// FNV-1a: the names are known in advance, so any hash is good.
const fn hash(name: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash ^ (hash >> 15)) as usize % SLOTS
}

/// At least one ABI has it.
#[derive(Clone, Copy)]
pub(super) struct Call(u16);

impl Call {
    pub(super) fn named(name: &str) -> Option<Call> {
        let mut slot = hash(name.as_bytes());
        loop {
            let place = SLOT[slot];
            if TABLE.get(usize::from(place))?.0 == name {
                return Some(Call(place));
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Without the offset of x32 and MIPS.
    pub(super) fn number(self, column: Column) -> Option<u32> {
        match TABLE[usize::from(self.0)].1[column as usize] {
            NO => None,
            private if private & ARM_MARK != 0 => Some(ARM_PRIVATE | u32::from(private & !ARM_MARK)),
            number => Some(u32::from(number)),
        }
    }

    pub(super) fn multiplexer(self) -> Option<Multiplexer> {
        MULTIPLEXED[usize::from(self.0)]
    }
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &str, column: Column) -> Option<u32> {
        Call::named(name).and_then(|call| call.number(column))
    }

    #[test]
    fn the_rows_are_sorted_and_every_name_is_found() {
        assert!(ROWS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(names().all(|name| Call::named(name).is_some_and(|call| TABLE[usize::from(call.0)].0 == name)));
        assert!(["", "no_such_call", "acces", "accesss"].iter().all(|name| Call::named(name).is_none()));
    }

    #[test]
    fn a_number_belongs_to_one_call_of_an_abi() {
        // Two names of one call: the kernel's headers have both.
        let twins = ["arm_sync_file_range", "arm_fadvise64_64"];
        for column in 0..COLUMNS {
            let mut numbers: Vec<u16> = ROWS
                .iter()
                .filter(|row| !twins.contains(&row.0))
                .map(|row| row.1[column])
                .filter(|n| *n != NO)
                .collect();
            let all = numbers.len();
            assert!(all > 300, "column {column} has {all} calls");
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), all, "column {column}");
        }
    }

    #[test]
    fn calls_of_today_are_known() {
        for (name, on_all) in [
            ("cachestat", 451),
            ("statmount", 457),
            ("listmount", 458),
            ("mseal", 462),
            ("setxattrat", 463),
            ("removexattrat", 466),
            ("open_tree_attr", 467),
            ("file_getattr", 468),
            ("file_setattr", 469),
            ("listns", 470),
            ("rseq_slice_yield", 471),
        ] {
            assert_eq!(number(name, Column::X86_64), Some(on_all), "{name}");
            assert_eq!(number(name, Column::Aarch64), Some(on_all), "{name}");
            assert_eq!(number(name, Column::Mips64N32), Some(on_all), "{name}");
        }
        assert_eq!(number("uretprobe", Column::X86_64), Some(335));
        assert_eq!(number("uprobe", Column::X86_64), Some(336));
        assert_eq!(number("riscv_hwprobe", Column::Riscv64), Some(258));
    }

    #[test]
    fn odd_numbers_are_right() {
        assert_eq!(number("set_tls", Column::Arm), Some(0x0f_0005));
        assert_eq!(number("execve", Column::X32), Some(520));
        assert_eq!(number("socket", Column::X86), Some(359));
        assert_eq!(number("send", Column::X86), None);
        assert_eq!(number("read", Column::Aarch64), Some(63));
        assert_eq!(number("open", Column::Aarch64), None);
    }
}
