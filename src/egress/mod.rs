//! What a sandbox may reach of the world, and the process that lets it through.
//!
//! In: a [`Policy`] of [`Rule`]s. Out: connections by name to allowed servers, and a [`Ledger`] of what was reached and refused.
//! Inside the sandbox every allowed name has an address of its own that leads nowhere but to a socket of the gateway; so names are checked where
//! connections are made, and programs need no settings. `rule`, `policy`, `guard`, `names`, `dns`, `hello`, `http`, `answers` are pure; `gateway` is the
//! process, `broker` what it knows of secrets. Not here: who starts it and what it may do itself (`container`), how the sockets come about (`net`).

mod answers;
mod broker;
mod dns;
mod gateway;
mod guard;
mod hello;
mod http;
mod ledger;
mod names;
mod policy;
mod rule;

pub(crate) use broker::{Broker, Renewal, Trust, Value, check_credentials, fits_a_header, make_authority};
pub use broker::{Credential, Wording};
pub(crate) use gateway::{Service, Sources, serve};
pub(crate) use guard::special;
pub use ledger::{Ledger, Row};
pub(crate) use ledger::{Order, Word};
pub use policy::{Ech, Policy};
pub use rule::{Rule, check_rules};

/// Numbers that look like chance and are the same each time (xorshift).
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
