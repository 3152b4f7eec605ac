//! Indexes, manifests, configs and registry headers with missing, doubled, huge and wrong fields.

use super::{Dice, rounds};
use crate::image::Reference;
use crate::image::config::{Accounts, ImageConfig, Overrides, to_process};
use crate::image::manifest::{self, Document, MOST_LAYERS};
use crate::image::source::layout;
use crate::image::toc;
use serde_json::{Value, json};
use std::sync::OnceLock;

fn descriptor(media_type: &str) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{}", "ab".repeat(32)), "size": 7, "annotations": {"k": "v"}})
}

fn corpus() -> &'static [Value] {
    static CORPUS: OnceLock<Vec<Value>> = OnceLock::new();
    CORPUS.get_or_init(made)
}

fn made() -> Vec<Value> {
    let manifest = |own: &str, config: &str, layer: &str| json!({"schemaVersion": 2, "mediaType": own, "config": descriptor(config), "layers": [descriptor(layer), descriptor(layer)]});
    let index = |own: &str, of: &str| {
        let mut entry = descriptor(of);
        entry["platform"] = json!({"os": "linux", "architecture": "amd64", "variant": "v2", "os.features": ["x"]});
        json!({"schemaVersion": 2, "mediaType": own, "manifests": [entry.clone(), entry]})
    };
    vec![
        manifest(manifest::OCI_MANIFEST, manifest::OCI_CONFIG, manifest::OCI_LAYER_GZIP),
        manifest(
            manifest::DOCKER_MANIFEST,
            "application/vnd.docker.container.image.v1+json",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ),
        index(manifest::OCI_INDEX, manifest::OCI_MANIFEST),
        index(manifest::DOCKER_LIST, manifest::DOCKER_MANIFEST),
        json!({"imageLayoutVersion": "1.0.0"}),
        json!({
            "created": "2026-01-01T00:00:00Z", "architecture": "amd64", "os": "linux", "history": [{"created_by": "x", "empty_layer": true}],
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", "cd".repeat(32))]},
            "config": {"User": "me:55", "Env": ["PATH=/bin", "A=b"], "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"], "WorkingDir": "/srv",
                       "Labels": {"a": "b"}, "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}, "StopSignal": "SIGINT",
                       "Healthcheck": {"Test": ["CMD", "true"], "Interval": 1}, "Shell": ["/bin/sh"], "OnBuild": ["RUN x"]}
        }),
        json!({"version": 1, "entries": [
            {"type": "dir", "name": "d", "mode": 493}, {"type": "reg", "name": "a", "size": 9, "digest": "sha256:aa", "offset": 9, "endOffset": 90},
            {"type": "reg", "name": "b", "digest": "sha256:bb", "chunkDigest": "sha256:b0", "offset": 95, "endOffset": 900},
            {"type": "chunk", "name": "b", "chunkDigest": "sha256:b1", "offset": 300, "chunkOffset": 7}
        ]}),
    ]
}

fn odd(dice: &mut Dice) -> Value {
    const TEXTS: [&str; 11] = [
        "",
        "../../x",
        "sha256:../../x",
        "sha512:00",
        "/../etc",
        "a\u{0}b",
        "4294967296",
        "-1:0",
        "=x",
        "SIGRTMIN",
        "root:root",
    ];
    const NUMBERS: [f64; 6] = [-1.0, 0.0, 0.5, 2_147_483_648.0, 18_446_744_073_709_551_615.0, 1e308];
    match dice.below(24) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!([]),
        3 => json!({}),
        4 => json!({"/../../etc": {}}),
        5 => json!(vec!["x"; 600]),
        6 => json!("x".repeat(5000)),
        7 => (0..200).fold(Value::Null, |inner, _| json!([inner])),
        8..=12 => json!(dice.pick(&NUMBERS)),
        13 => json!(u64::MAX),
        _ => json!(dice.pick(&TEXTS)),
    }
}

fn change(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = dice.pick(&keys).clone();
            match dice.below(8) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(key, odd(dice))),
                2 => drop(
                    fields.insert(
                        (*dice.pick(&["manifests", "layers", "config", "digest", "size", "urls", "data", "subject"]))
                            .to_owned(),
                        odd(dice),
                    ),
                ),
                3 => {
                    let other = fields[dice.pick(&keys)].clone();
                    fields.insert(key, other);
                }
                _ => change(&mut fields[&key], dice),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = dice.below(items.len());
            match dice.below(6) {
                0 => drop(items.remove(at)),
                1 => {
                    let again = vec![items[at].clone(); *dice.pick(&[1, 1, 1, 3, 600])];
                    items.extend(again);
                }
                2 => items[at] = odd(dice),
                _ => change(&mut items[at], dice),
            }
        }
        other => *other = odd(dice),
    }
}

fn mutated(dice: &mut Dice) -> Vec<u8> {
    let mut value = dice.pick(corpus()).clone();
    for _ in 0..=dice.below(2) {
        change(&mut value, dice);
    }
    let mut text = value.to_string().into_bytes();
    if dice.one_in(4) {
        for _ in 0..=dice.below(4) {
            if text.is_empty() {
                break;
            }
            let at = dice.below(text.len());
            match dice.below(4) {
                0 => text[at] = dice.next() as u8,
                1 => drop(text.remove(at)),
                2 => text.insert(at, *dice.pick(b"{}[]\",:\\\0\xff")),
                _ => text.truncate(at.max(1)),
            }
        }
    }
    text
}

#[test]
fn documents_are_refused_or_say_nothing_that_is_dangerous() {
    let taken = std::sync::atomic::AtomicUsize::new(0);
    let announced =
        [None, Some(manifest::OCI_INDEX), Some(manifest::OCI_MANIFEST), Some(manifest::DOCKER_LIST), Some("text/html")];
    rounds(6_000, |dice| {
        let bytes = mutated(dice);
        match manifest::parse(&bytes, *dice.pick(&announced)) {
            Ok(Document::Manifest(manifest)) => {
                assert!(manifest.layers.len() <= MOST_LAYERS);
                for blob in manifest.layers.iter().chain([&manifest.config]) {
                    assert!(blob.digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", blob.digest);
                }
                taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(Document::Index(_)) => {}
            Err(error) => assert!(error.to_string().len() < 20_000, "an error of {} bytes", error.to_string().len()),
        }
        // The users of the values check them.
        let _ = layout::check_version(&bytes);
        let _ = layout::offers(&bytes);
        if let Ok(pieces) = toc::parse(&bytes, 1000) {
            assert!(pieces.windows(2).all(|pair| pair[0].offset + pair[0].length == pair[1].offset), "{pieces:?}");
            assert!(pieces.iter().map(|piece| piece.length).sum::<u64>() <= 1000, "{pieces:?}");
        }
        if let Ok(config) = ImageConfig::parse(&bytes)
            && let Ok(process) = to_process(&config, &Accounts::default(), &Overrides::default())
        {
            let inside =
                |path: &str| path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0');
            assert!(
                inside(&process.cwd) && process.volumes.iter().all(|path| inside(path) && path != "/"),
                "{process:?}"
            );
            assert!(process.user.uid <= i32::MAX as u32 && process.user.gid <= i32::MAX as u32, "{process:?}");
            assert!(!process.args.is_empty());
        }
    });
    let taken = taken.into_inner();
    assert!(taken > 50, "nearly everything is refused: {taken}");
}

#[test]
fn references_are_refused_or_are_what_they_say() {
    const PARTS: [&str; 16] = [
        "a",
        "library",
        "example.org",
        "localhost",
        ":5000",
        "/",
        ":",
        "@",
        "sha256:",
        ".",
        "..",
        "A",
        "-",
        "_",
        "\u{0}",
        "tag",
    ];
    rounds(10_000, |dice| {
        let mut text: String = (0..=dice.below(7)).map(|_| *dice.pick(&PARTS)).collect();
        if dice.one_in(4) {
            text += &format!("@sha256:{}", "ab".repeat(dice.below(40)));
        }
        let Ok(reference) = text.parse::<Reference>() else { return };
        // Path in the store and address at a registry.
        let whole = format!("{}/{}", reference.host(), reference.repository());
        assert!(!whole.split('/').any(|part| matches!(part, "" | "." | "..")), "{text}: {whole}");
        assert!(!whole.contains(|letter: char| letter.is_control() || letter == ' '), "{text}: {whole}");
        assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference, "{text}");
    });
}
