//! execve(2) and execveat(2).

use super::last_errno;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Strings in execve's form, made before the clone: after it, nothing may allocate.
pub(crate) struct Vector {
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Vector {
    pub(crate) fn new(strings: Vec<CString>) -> Vector {
        // A CString's bytes stay at their place on the heap when the CString moves.
        let pointers = strings.iter().map(|each| each.as_ptr()).chain([std::ptr::null()]).collect();
        Vector { strings, pointers }
    }

    pub(crate) fn strings(&self) -> &[CString] {
        &self.strings
    }

    pub(crate) fn push(&mut self, string: CString) {
        self.pointers.pop();
        self.pointers.extend([string.as_ptr(), std::ptr::null()]);
        self.strings.push(string);
    }
}

/// Returns only on failure. execve(2).
pub(crate) fn execve(path: &CStr, arguments: &Vector, environment: &Vector) -> Errno {
    // SAFETY: path is NUL-terminated; both arrays end with NULL and point to NUL-terminated strings that they own.
    unsafe { libc::execve(path.as_ptr(), arguments.pointers.as_ptr(), environment.pointers.as_ptr()) };
    last_errno()
}

/// Returns only on failure. execveat(2) with `AT_EMPTY_PATH`, Linux 3.19.
pub(crate) fn execveat(file: BorrowedFd<'_>, arguments: &Vector, environment: &Vector) -> Errno {
    // SAFETY: the empty path is NUL-terminated; both arrays end with NULL and point to NUL-terminated strings that they
    // own.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            arguments.pointers.as_ptr(),
            environment.pointers.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    last_errno()
}
