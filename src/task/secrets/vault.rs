//! The broker's secrets. A separate process reads them into memory files for the gateway: a process that a sandbox's
//! first process copies never had them.

use super::{Exposure, Secret};
use crate::error::{Error, Kind, Result, Step};
use crate::files::{new_memory, read_memory, write_memory};
use crate::process::apart;
use crate::sandbox::{Broker, Credential, Value, check_credentials, fits_a_header, make_authority};
use crate::task::redact::{SHORTEST, forms};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes an authority for the secrets' hosts, too.
pub(in crate::task) fn open(secrets: &[Secret]) -> Result<Option<Broker>> {
    let brokered: Vec<&Secret> = secrets.iter().filter(|each| each.exposure == Exposure::Broker).collect();
    if brokered.is_empty() {
        return Ok(None);
    }
    let credentials: Vec<Credential> = brokered.iter().flat_map(|each| each.credentials.iter().cloned()).collect();
    check_credentials(&credentials)?;
    let mut hosts: Vec<&str> = credentials.iter().map(Credential::host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let (key, values) = (new_memory("broker-key")?, new_memory("broker-values")?);
    let certificate = apart(|| {
        let read = brokered.iter().map(|secret| {
            let value = secret.source.read().and_then(|bytes| value(secret, bytes));
            value.doing(|| format!("read the secret `{}`", secret.name))
        });
        write(&values, &read.collect::<Result<Vec<_>>>()?)?;
        let made = make_authority(&hosts)?;
        write_memory(&key, &made.key)?;
        Ok(made.certificate)
    })?;
    let roots = crate::host::certificates().map(Arc::new);
    Ok(Some(Broker { credentials, certificate, key: Arc::new(key), values: Arc::new(values), roots }))
}

/// For the redactor, once the sandbox has started.
pub(super) fn values(broker: &Broker) -> Result<Vec<Value>> {
    serde_json::from_slice(&read_memory(&broker.values)?).map_err(broken)
}

fn broken(cause: serde_json::Error) -> Error {
    Error::new(Kind::Internal, cause.to_string()).doing("hand secrets to the broker")
}

fn write(memory: &OwnedFd, values: &[Value]) -> Result<()> {
    write_memory(memory, &serde_json::to_vec(values).map_err(broken)?)
}

pub(super) fn value(secret: &Secret, value: Vec<u8>) -> Result<Value> {
    let refuse = |cause: String, hint: &str| Err(Error::new(Kind::Secret, cause).hint(hint.to_owned()));
    if !fits_a_header(&value) {
        return refuse("it has letters that no header can have".into(), "see that its source has the value alone");
    }
    let forms = forms(&value);
    if forms.is_empty() {
        let short = format!("it is shorter than {SHORTEST} bytes, and could not be told from any other text");
        return refuse(short, "use a longer one");
    }
    Ok(Value { name: secret.name.clone(), value, forms })
}
