//! Tests of filters: as tables, as properties, beside libseccomp, and against the kernel.

mod attacks;
mod docker;
mod emulator;
mod meaning;
#[cfg(feature = "oracle")]
mod oracle;
mod random;
mod tables;
