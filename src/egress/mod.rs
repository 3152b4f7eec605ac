//! Network access by domain, and the gateway process that enforces it.
//!
//! Inside the sandbox, every allowed name has a local address that leads to a socket of the gateway. So names are
//! checked where connections are made, and programs need no settings.
//! Not here: the gateway's start and confinement (`container`), the making of its sockets (`net`).

mod answers;
mod broker;
mod dns;
mod gateway;
mod groups;
mod guard;
mod hello;
mod http;
mod ledger;
mod names;
mod policy;
mod rule;

pub(crate) use broker::trust;
pub(crate) use broker::{Broker, PLACEHOLDER, Renewal, Trust, Value, check_credentials, fits_a_header, make_authority};
pub use broker::{Credential, Wording};
pub(crate) use gateway::{Service, Sources, serve};
pub(crate) use guard::special;
pub use ledger::{Ledger, Row};
pub(crate) use ledger::{Order, Word};
pub use policy::{Ech, Policy};
pub use rule::{Rule, check_rules};

/// Deterministic pseudo-random numbers (xorshift).
#[cfg(test)]
fn random() -> impl FnMut() -> u32 {
    let mut seed = 0x9e37_79b9_u32;
    move || {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        seed
    }
}
