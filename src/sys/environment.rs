//! environ(7) and the command line of this process.

use rustix::io::Errno;
use std::ffi::CStr;

unsafe extern "C" {
    #[link_name = "environ"]
    static mut ENVIRONMENT: *mut *mut libc::c_char;
}

/// Overwrites all variables: a copy of this process must not keep them in memory or in `/proc/PID/environ`. The caller
/// has one thread and reads no variable afterwards.
pub(crate) fn wipe() {
    // SAFETY: environ(7) points to a null-terminated array of strings in writable memory of this process. With one
    // thread no other code accesses it.
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

/// The command line in the memory of this process, and of its children until execve(2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    start: usize,
    end: usize,
}

impl Arguments {
    /// `/proc/self/stat` may be missing in another mount namespace.
    pub(crate) fn find() -> Result<Arguments, Errno> {
        let text = std::fs::read_to_string("/proc/self/stat")
            .map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))?;
        let (start, end) = argument_area(&text).ok_or(Errno::INVAL)?;
        Ok(Arguments { start, end })
    }

    /// Other processes can read it in `/proc/PID/cmdline`. The caller has one thread, and has copied its arguments.
    pub(crate) fn wipe(self) {
        let length = self.end - self.start;
        // SAFETY: the kernel gives the range of the command line on this process's stack, which is writable. With one
        // thread no other code accesses it. The runtime library returns only copies of these strings.
        unsafe { std::ptr::write_bytes(std::ptr::with_exposed_provenance_mut::<u8>(self.start), 0, length) };
    }
}

/// `arg_start` and `arg_end` (proc_pid_stat(5), fields 48 and 49). A name may contain spaces and brackets.
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
