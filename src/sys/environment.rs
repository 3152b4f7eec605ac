//! environ(7) and the command line: what this process was started with.

use rustix::io::Errno;
use std::ffi::CStr;

unsafe extern "C" {
    #[link_name = "environ"]
    static mut ENVIRONMENT: *mut *mut libc::c_char;
}

/// Overwrites every variable and forgets all: what a copy of a process must not carry on, neither in its memory nor in `/proc/PID/environ`.
///
/// The caller has one thread and reads no variable afterwards.
pub(crate) fn wipe() {
    // SAFETY: environ(7) points to an array of strings that a null pointer ends, all of it writable memory of ours; with one thread nobody else
    // reads or changes it meanwhile.
    unsafe {
        if ENVIRONMENT.is_null() {
            return;
        }
        let mut entry = ENVIRONMENT;
        while !(*entry).is_null() {
            let length = CStr::from_ptr(*entry).to_bytes().len();
            std::ptr::write_bytes(*entry, 0, length);
            entry = entry.add(1);
        }
        *ENVIRONMENT = std::ptr::null_mut();
    }
}

/// Where the command line of this process is in its memory, and in that of its children until execve(2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    start: usize,
    end: usize,
}

impl Arguments {
    /// Finds them in `/proc/self/stat`, which another mount namespace may not have.
    pub(crate) fn find() -> Result<Arguments, Errno> {
        let text = std::fs::read_to_string("/proc/self/stat")
            .map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))?;
        let (start, end) = argument_area(&text).ok_or(Errno::INVAL)?;
        Ok(Arguments { start, end })
    }

    /// Overwrites the command line, which every process that sees this one can read in `/proc/PID/cmdline`.
    ///
    /// The caller has one thread, and has read its arguments: they are copies then.
    pub(crate) fn wipe(self) {
        // SAFETY: the kernel says that the command line is there, on this process's own stack, which is writable; with one thread no other code reads
        // or changes it meanwhile. Each program that starts owns these strings, and the runtime library hands out copies.
        unsafe {
            std::ptr::write_bytes(std::ptr::with_exposed_provenance_mut::<u8>(self.start), 0, self.end - self.start)
        };
    }
}

/// `arg_start` and `arg_end` of a line of `/proc/PID/stat` (proc_pid_stat(5), fields 48 and 49). A process's name may contain spaces and brackets.
fn argument_area(stat: &str) -> Option<(usize, usize)> {
    /// The first field after the name.
    const THIRD: usize = 3;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut addresses = fields.split_whitespace().skip(48 - THIRD).map(str::parse);
    let (start, end) = (addresses.next()?.ok()?, addresses.next()?.ok()?);
    (0 < start && start <= end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_area_is_found_behind_any_name() {
        let fields: Vec<_> = (4..=52).map(|field| (field * 10).to_string()).collect();
        let line = |name: &str| format!("7 ({name}) S {}\n", fields.join(" "));
        for name in ["brig", "a b", "a) S 1", ""] {
            assert_eq!(argument_area(&line(name)), Some((480, 490)), "{name}");
        }
        assert_eq!(argument_area("7 (x) S 1 2"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let length: usize = std::env::args_os().map(|word| word.len() + 1).sum();
        assert_eq!(argument_area(&own).map(|(start, end)| end - start), Some(length));
    }
}
