//! environ(7): the variables that this process was started with.

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
