//! Secrets of a container's annotations `dev.brig.secret.NAME`, for the broker.

use super::hosted::pin_now;
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Broker, SecretOpener};
use crate::task::secrets::{Exposure, Secret, Source, Wish, check, open_broker};
use std::path::Path;

/// Each annotation's text has the keys of a profile's `[secrets.NAME]` as an inline table.
pub fn secret_opener() -> SecretOpener {
    SecretOpener(open)
}

fn open(annotations: &[(String, String)]) -> Result<Broker> {
    let secrets = annotations.iter().map(|(name, text)| {
        secret(name, text).map_err(|error| error.doing(format!("read the annotation `dev.brig.secret.{name}`")))
    });
    let secrets = secrets.collect::<Result<Vec<_>>>()?;
    check(&secrets)?;
    open_broker(&secrets)?.ok_or_else(|| Error::new(Kind::Internal, "no secret is the broker's"))
}

fn secret(name: &str, text: &str) -> Result<Secret> {
    #[derive(serde::Deserialize)]
    struct Line {
        it: Wish,
    }
    let refuse = |words: &str, hint: &str| Err(Error::new(Kind::Secret, words).hint(hint.to_owned()));
    // The text may be a value by mistake: an error must not repeat it.
    let Ok(Line { it }) = toml::from_str(&format!("it = {{ {text} }}")) else {
        return refuse(
            "it is not keys and values as in a profile's `[secrets.NAME]`",
            "write it like: source = \"file:/etc/brig/keys/api\", host = \"api.example.com\"",
        );
    };
    let mut secret = it.into_secret(name, Path::new("/"), &pin_now)?;
    if secret.placeholder.is_some() {
        return refuse(
            "a container has no `placeholder`",
            "give its variable a value instead: docker run --env NAME=VALUE",
        );
    }
    if secret.exposure != Exposure::Broker {
        return refuse("only the broker gives a container a secret", "add host = \"api.example.com\"");
    }
    match &secret.source {
        Source::File(path) => secret.source = secret.source.pinned(&pin_now("file of a secret", path)?),
        // The engine's environment is not the caller's, and it would run a command as the engine's user.
        _ => return refuse("an annotation names no such source", "give the value in a file: source = \"file:PATH\""),
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_has_the_keys_of_a_profile_and_a_file_as_source() {
        let read = secret("KEY", "source = 'file:/k', host = 'a.example', methods = ['GET']").unwrap();
        assert_eq!(
            (read.name.as_str(), read.source, read.exposure),
            ("KEY", Source::File("/k".into()), Exposure::Broker)
        );
        for (text, words) in [
            ("sk-value-given-by-mistake", "not keys and values"),
            ("source = 'file:/k'", "only the broker"),
            ("source = 'env:K', host = 'a.example'", "no such source"),
            ("source = 'cmd:id', host = 'a.example'", "no such source"),
            ("source = 'file:/k', host = 'a.example', placeholder = 'x'", "no `placeholder`"),
            ("source = 'file:/k', host = 'a.example', other = 1", "not keys and values"),
        ] {
            let error = secret("KEY", text).unwrap_err();
            assert!(error.to_string().contains(words) && !error.to_string().contains("mistake"), "{text}: {error}");
            assert!(error.advice().is_some());
        }
    }
}
