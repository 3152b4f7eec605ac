//! Bounds a folder of the store while a courier writes to it.
//!
//! `ulimit -f` bounds one file, and a remote decides how many there are. So the supervisor measures the folder at
//! intervals. The disk's speed bounds the growth in between.

use crate::files::{self, Contents};
use crate::task::output::changes::is_off;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The least time between two measurements.
const PAUSE: Duration = Duration::from_millis(500);
/// A measurement takes at most this part of the time.
const SHARE: u32 = 20;

pub(super) struct Growth {
    folder: PathBuf,
    most: Contents,
    next: Instant,
}

impl Growth {
    pub(super) fn new(folder: &Path, most: Contents) -> Growth {
        Growth { folder: folder.to_owned(), most, next: Instant::now() }
    }

    /// Measures only when the interval is over.
    pub(super) fn is_over(&mut self) -> bool {
        let began = Instant::now();
        if began < self.next || is_off("courier-growth") {
            return false;
        }
        // After the courier's end the folder is measured again.
        let is_over = files::contents(&self.folder).is_ok_and(|found| exceeds(&found, &self.most));
        self.next = Instant::now() + PAUSE.max(SHARE * began.elapsed());
        is_over
    }
}

pub(super) fn exceeds(found: &Contents, most: &Contents) -> bool {
    found.entries > most.entries || found.bytes > most.bytes || found.depth > most.depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_bytes_and_levels_are_bounded() {
        let most = Contents { entries: 3, bytes: 1 << 20, depth: 2 };
        let check = |make: &dyn Fn(&Path), expected: bool| {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path());
            assert_eq!(Growth::new(folder.path(), most).is_over(), expected);
        };
        check(&|_| {}, false);
        check(&|folder| (0..3).for_each(|number| std::fs::write(folder.join(number.to_string()), "x").unwrap()), false);
        check(&|folder| (0..4).for_each(|number| std::fs::write(folder.join(number.to_string()), "").unwrap()), true);
        check(&|folder| std::fs::write(folder.join("large"), vec![b'x'; 2 << 20]).unwrap(), true);
        check(&|folder| std::fs::create_dir_all(folder.join("a/b/c")).unwrap(), true);
    }
}
