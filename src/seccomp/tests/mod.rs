//! Tests of filters: as tables, as properties, beside libseccomp, and against the kernel.

mod attacks;
pub(super) mod docker;
pub(super) mod emulator;
mod kernel;
mod meaning;
#[cfg(feature = "oracle")]
mod measure;
#[cfg(feature = "oracle")]
mod oracle;
mod random;
mod tables;
mod work;
