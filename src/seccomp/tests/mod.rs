//! Filters as tables, as properties, beside libseccomp, and against the kernel.

mod attacks;
pub(super) mod emulator;
mod kernel;
mod meaning;
#[cfg(feature = "oracle")]
mod measure;
#[cfg(feature = "oracle")]
mod oracle;
pub(super) mod samples;
mod tables;
mod work;
