//! Records of the store: what they promise after a power cut, and what a damaged one leads to.

use crate::support::{Scratch, run};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// An image of the store.
struct Loaded {
    name: String,
    digest: String,
    /// Topmost first.
    layers: Vec<String>,
    record: String,
}

fn load(scratch: &Scratch, layout: &str, name: &str, flags: &[&str]) -> Loaded {
    scratch.image(&[&["load", layout, "--name", name], flags].concat()).good();
    let inspected: Value = serde_json::from_str(&scratch.image(&["inspect", name]).good().out).unwrap();
    let digest = inspected[0]["digest"].as_str().unwrap().to_owned();
    let layers = inspected[0]["layers"].as_array().unwrap();
    let record = scratch.path(&format!("store/images/{}/image.json", &digest[7..]));
    let layers = layers.iter().map(|layer| layer.as_str().unwrap().to_owned()).collect();
    Loaded { name: name.to_owned(), digest, layers, record }
}

fn layer_record(layer: &str) -> String {
    layer.replace("/fs", "/layer.json")
}

fn read(record: &str) -> Value {
    serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap()
}

fn is_synced(record: &str) -> bool {
    read(record)["unsynced_boot"].is_null()
}

/// As if the machine had lost power before the item reached the disk.
fn cut_power(record: &str) {
    let mut value = read(record);
    value["unsynced_boot"] = "another".into();
    std::fs::write(record, value.to_string()).unwrap();
}

impl Loaded {
    fn bottom(&self) -> &str {
        self.layers.last().unwrap()
    }

    fn records(&self) -> Vec<String> {
        self.layers.iter().map(|layer| layer_record(layer)).chain([self.record.clone()]).collect()
    }

    fn is_synced(&self) -> Vec<bool> {
        self.records().iter().map(|record| is_synced(record)).collect()
    }

    /// A sandbox holds the image's directory locked, as Store::resolve does.
    fn lease(&self) -> std::fs::File {
        let lease = std::fs::File::open(self.record.replace("/image.json", "")).unwrap();
        rustix::fs::flock(&lease, rustix::fs::FlockOperation::LockShared).unwrap();
        lease
    }
}

#[test]
fn a_synced_image_has_only_synced_layers() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.layout("shared", "a"), scratch.layout("shared", "bb"));
    let one = load(&scratch, &first, "one", &[]);
    assert!(!one.is_synced().contains(&true));
    let two = load(&scratch, &second, "two", &["--sync"]);
    assert_eq!(one.bottom(), two.bottom());
    assert!(!two.is_synced().contains(&false), "{:?}", two.is_synced());
    assert!(one.is_synced().contains(&false), "the control: only the layers of both are synced");
    // It is there already.
    assert!(!load(&scratch, &first, "one", &["--sync"]).is_synced().contains(&false));
    std::fs::write(format!("{}/more", one.bottom()), "tampered").unwrap();
    assert!(scratch.image(&["verify", "--repair"]).good().out.contains("repaired"));
    assert!(!one.is_synced().contains(&false), "a repaired layer would be lost at a power cut");
}

#[test]
fn a_load_does_not_replace_a_layer_that_is_in_use() {
    let scratch = Scratch::new();
    let one = load(&scratch, &scratch.layout("shared", "a"), "one", &["--sync"]);
    let two = load(&scratch, &scratch.layout("shared", "bb"), "two", &["--sync"]);
    cut_power(&layer_record(one.bottom()));
    cut_power(&two.record);
    let (lease, in_sandbox) = (one.lease(), std::fs::File::open(one.bottom()).unwrap());
    let links = || in_sandbox.metadata().unwrap().nlink();
    let refused = scratch.image(&["unpack", "two", &scratch.path("b")]).refused("an image with this layer is in use");
    assert!(refused.err.contains("when the sandboxes"), "{}", refused.err);
    assert!(links() > 0, "the folder was deleted");
    drop(lease);
    scratch.image(&["unpack", "two", &scratch.path("b")]).good();
    assert_eq!(links(), 0, "the control: nothing was replaced");
    scratch.image(&["verify"]).good();
}

#[test]
fn a_layer_with_an_empty_record_is_made_again() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let image = load(&scratch, &layout, "x", &[]);
    let empty = || {
        std::fs::write(layer_record(image.bottom()), "").unwrap();
        scratch.image(&["verify"]).refused("1 faults");
    };
    empty();
    assert!(scratch.image(&["verify", "--repair"]).good().out.contains("repaired"));
    scratch.image(&["verify"]).good();
    empty();
    load(&scratch, &layout, "x", &[]);
    scratch.image(&["verify"]).good();
    empty();
    cut_power(&image.record);
    scratch.image(&["unpack", "x", &scratch.path("b")]).good();
    scratch.image(&["verify"]).good();
}

#[test]
fn blobs_of_a_layer_are_verified_once() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let image = load(&scratch, &layout, "x", &[]);
    let record = layer_record(image.bottom());
    let blobs = || read(&record)["blobs"].as_array().unwrap().len();
    assert_eq!(blobs(), 1);
    // An earlier version wrote the record. A sandbox may have the layer open.
    let mut value = read(&record);
    value.as_object_mut().unwrap().remove("blobs");
    std::fs::write(&record, value.to_string()).unwrap();
    let _lease = image.lease();
    load(&scratch, &layout, "x", &[]);
    assert_eq!(blobs(), 1);
    let written = || std::fs::metadata(&record).unwrap().ino();
    let before = written();
    load(&scratch, &layout, "x", &[]);
    assert_eq!(written(), before, "verified again");
    // Another compression of the same layer.
    std::fs::rename(layout, scratch.path("gzip")).unwrap();
    load(&scratch, &scratch.layout("layered", "none"), "y", &[]);
    assert_eq!(blobs(), 2);
    scratch.image(&["verify"]).good();
}

/// The limit that let it in counts after a restart, too.
#[test]
fn an_image_that_needed_a_higher_limit_is_made_again() {
    let scratch = Scratch::new();
    let layout = scratch.layout("bomb-depth", &scratch.canary());
    scratch.image(&["load", &layout, "--name", "x"]).refused("--limit");
    let image = load(&scratch, &layout, "x", &["--limit", "depth=1000"]);
    scratch.image(&["verify"]).good();
    image.records().iter().for_each(|record| cut_power(record));
    scratch.image(&["unpack", "x", &scratch.path("b")]).good();
    assert!(!image.is_synced().contains(&false));
}

#[test]
fn an_image_with_an_unreadable_record_can_be_removed() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    for by_digest in [false, true] {
        let image = load(&scratch, &layout, "x", &[]);
        std::fs::write(&image.record, "{").unwrap();
        scratch.image(&["ls"]).refused(&format!("brig image rm {}", image.digest));
        let named = if by_digest { &image.digest } else { &image.name };
        let removed = scratch.image(&["rm", named]).good().out;
        assert!(removed.contains("untagged x") && removed.contains("removed sha256:"), "{removed}");
        assert_eq!(std::fs::read_dir(scratch.path("store/layers")).unwrap().count(), 0);
    }
    let image = load(&scratch, &layout, "x", &[]);
    let lease = image.lease();
    scratch.image(&["rm", "x"]).good();
    std::fs::write(&image.record, "{").unwrap();
    // Its layers are unknown, and a sandbox has them.
    scratch.image(&["prune"]).refused("image.json");
    assert_eq!(std::fs::read_dir(scratch.path("store/layers")).unwrap().count(), 3);
    drop(lease);
    assert!(scratch.image(&["prune"]).good().out.contains(&format!("removed {}", image.digest)));
    assert_eq!(std::fs::read_dir(scratch.path("store/layers")).unwrap().count(), 0);
}

/// The bottom layer is the smallest, so that all others wait for it.
#[test]
fn an_image_of_many_layers_needs_few_descriptors() {
    let scratch = Scratch::new();
    let layer = |n: usize| {
        let folders = (0..64).map(|folder| format!("d:d{folder} f:d{folder}/f{n}=x"));
        folders.collect::<Vec<_>>().join(" ")
    };
    let all: Vec<String> = ["f:bottom=x".to_owned()].into_iter().chain((0..20).map(layer)).collect();
    let layout = scratch.layout("rows", &all.join("|"));
    let text = format!(
        "ulimit -Hn 512; ulimit -Sn 60; exec {} image --store {} load {layout} --name x",
        env!("CARGO_BIN_EXE_brig"),
        scratch.path("store")
    );
    run(Command::new("sh").args(["-c", &text])).good();
}
