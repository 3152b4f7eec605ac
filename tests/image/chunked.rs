//! Partial pulls of zstd:chunked layers that skopeo has made: what comes from the registry, and layers whose table of
//! contents lies.

use crate::servers::{self, Server, faulty, ready, registry};
use crate::support::{
    Ran, Scratch, assert_same, brig, has, is_root, kill_somewhere, kills, list, run, script, skipped,
};
use std::process::Command;

/// Two versions of an image with one zstd:chunked layer of 14 MB, as OCI layouts of skopeo.
struct Versions {
    scratch: Scratch,
    server: Server,
}

/// A layer's digest and size.
struct Layer {
    digest: String,
    size: u64,
}

impl Versions {
    fn new() -> Option<Versions> {
        if !ready()
            || skipped("skopeo, zstd and busybox", ["skopeo", "zstd", "busybox"].iter().all(|program| has(program)))
        {
            return None;
        }
        let scratch = Scratch::new();
        let server = registry(&scratch, "");
        for version in ["1", "22"] {
            let layout = scratch.layout("versions", version);
            let chunked = scratch.path(&format!("chunked-{}", version.len()));
            let mut copy = Command::new("skopeo");
            copy.args(["--insecure-policy", "copy", "-q", "--dest-compress-format", "zstd:chunked"]);
            run(copy.arg(format!("oci:{layout}:t")).arg(format!("oci:{chunked}:t"))).good();
        }
        Some(Versions { scratch, server })
    }

    fn layout(&self, version: u32) -> String {
        self.scratch.path(&format!("chunked-{version}"))
    }

    fn reference(&self, server: &Server, tag: &str) -> String {
        format!("{}/team/tool:{tag}", server.host())
    }

    /// Pushes a version whose table of contents was changed.
    fn publish(&self, version: u32, change: &str) -> Layer {
        let layout = self.scratch.path(&format!("{change}-{version}"));
        run(Command::new("cp").args(["-r", &self.layout(version), &layout])).good();
        let mut layer = read_layer(&layout);
        if !change.is_empty() {
            let other = self.layout(3 - version);
            let made = run(Command::new("python3").arg(script("toc.py")).args([&layout, change, &other])).good().out;
            let (digest, size) = made.trim().split_once(' ').unwrap();
            layer = Layer { digest: digest.to_owned(), size: size.parse().unwrap() };
        }
        let (full, name) = (Scratch::new(), self.reference(&self.server, &format!("{version}{change}")));
        full.image(&["load", &layout, "--name", &name]).good();
        full.image(&["push", &name]).good();
        layer
    }

    /// Pulls a tag; the name of its repository is that of the proxy.
    fn pull(&self, store: &Scratch, proxy: &Server, tag: &str) -> Ran {
        store.image(&["pull", "--json", &self.reference(proxy, tag)]).good()
    }

    /// The root file system must be the one of the version.
    fn assert_right(&self, store: &Scratch, name: &str, version: u32) {
        let (pulled, direct) = (store.path("pulled"), store.path("direct"));
        store.image(&["unpack", name, &pulled]).good();
        store.image(&["unpack", &format!("oci:{}", self.layout(version)), &direct]).good();
        let listed = |path: &str| list(&format!("{path}/rootfs"), &[]);
        assert_same(&listed(&pulled), &listed(&direct), "pulled and direct");
    }
}

fn read_layer(layout: &str) -> Layer {
    let read = |path: &str| -> serde_json::Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let index = read(&format!("{layout}/index.json"));
    let digest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
    let layer = &read(&format!("{layout}/blobs/{digest}"))["layers"][0];
    let annotations = layer["annotations"].to_string();
    assert!(annotations.contains("zstd-chunked.manifest-position"), "skopeo made another layer: {annotations}");
    Layer { digest: layer["digest"].as_str().unwrap().to_owned(), size: layer["size"].as_u64().unwrap() }
}

/// The bytes of a blob that were asked for, and the requests.
fn fetched(proxy: &Server, layer: &Layer) -> (u64, usize) {
    let path = format!("/blobs/{}", layer.digest);
    let lines = proxy.requests();
    let ranges: Vec<&str> =
        lines.iter().filter(|line| line.contains(&path)).map(|line| line.rsplit(' ').next().unwrap()).collect();
    let bytes = ranges.iter().map(|range| match range.strip_prefix("bytes=") {
        None => layer.size,
        Some(range) => {
            let (start, end) = range.split_once('-').unwrap();
            end.parse().unwrap_or(layer.size - 1) + 1 - start.parse::<u64>().unwrap()
        }
    });
    (bytes.sum(), ranges.len())
}

fn reused(pulled: &Ran) -> u64 {
    serde_json::from_str::<serde_json::Value>(&pulled.out).unwrap()["reused"].as_u64().unwrap()
}

#[test]
fn second_version_of_a_layer_takes_from_the_registry_what_changed() {
    let Some(versions) = Versions::new() else { return };
    let (first, second) = (versions.publish(1, ""), versions.publish(2, ""));
    let (store, proxy) = (Scratch::new(), faulty(&versions.server, &[]));
    assert_eq!(reused(&versions.pull(&store, &proxy, "1")), 0);
    assert_eq!(fetched(&proxy, &first), (first.size, 1), "the first version is one request");
    let pulled = versions.pull(&store, &proxy, "2");
    let (bytes, requests) = fetched(&proxy, &second);
    println!("{bytes} of {} bytes in {requests} requests", second.size);
    assert!(bytes < second.size / 20 && requests <= 4, "{bytes} of {} in {requests} requests", second.size);
    assert!(reused(&pulled) > second.size / 20 * 19, "{}", pulled.out);
    assert!(pulled.err.contains("of it from the store"), "{}", pulled.err);
    let name = versions.reference(&proxy, "2");
    versions.assert_right(&store, &name, 2);
    assert!(store.image(&["verify"]).good().out.contains("2 images"));
    // What is passed on is the registry's blob.
    let (archive, other) = (store.path("saved.tar"), Scratch::new());
    store.image(&["save", &name, "-o", &archive]).good();
    other.image(&["load", &archive]).good();
    let blob = |scratch: &Scratch| {
        let hex = second.digest.trim_start_matches("sha256:");
        std::fs::read(scratch.path(&format!("store/blobs/sha256/{hex}"))).unwrap()
    };
    assert!(blob(&store) == blob(&other) && blob(&store).len() as u64 == second.size);
    if skipped("root", is_root()) {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    command.args(["run", "--store", &store.path("store"), "--image", &name]).env("BRIG_WEAKEN", "");
    let ran = run(&mut command).good();
    assert!(ran.out.contains("/changed"), "{} {}", ran.out, ran.err);
}

#[test]
fn a_partial_pull_that_is_killed_goes_on_and_has_the_same_files() {
    let Some(versions) = Versions::new() else { return };
    versions.publish(1, "");
    versions.publish(2, "");
    let (store, proxy) = (Scratch::new(), faulty(&versions.server, &[]));
    let longest = versions.pull(&store, &proxy, "1").took;
    let name = versions.reference(&proxy, "2");
    for round in 0..kills() {
        kill_somewhere(brig(&store, &["pull", &name]), round, longest);
        assert!(!store.image(&["verify"]).good().out.contains("damaged"), "round {round}");
    }
    versions.pull(&store, &proxy, "2");
    versions.assert_right(&store, &name, 2);
    assert!(store.image(&["verify"]).good().out.contains("2 images"));
}

#[test]
fn a_table_of_contents_that_lies_costs_only_bytes() {
    let Some(versions) = Versions::new() else { return };
    versions.publish(1, "");
    for change in ["lie", "lies"] {
        let layer = versions.publish(2, change);
        let (store, proxy) = (Scratch::new(), faulty(&versions.server, &[]));
        versions.pull(&store, &proxy, "1");
        let tag = format!("2{change}");
        let pulled = versions.pull(&store, &proxy, &tag);
        assert!(pulled.err.contains("parts of other layers do not fit"), "{change}: {}", pulled.err);
        assert!(fetched(&proxy, &layer).0 > layer.size, "{change}: {:?}", proxy.requests());
        assert_eq!(reused(&pulled), 0, "{change}");
        versions.assert_right(&store, &versions.reference(&proxy, &tag), 2);
    }
}

#[test]
fn a_wrong_table_of_contents_is_ignored_and_takes_little_memory() {
    let Some(versions) = Versions::new() else { return };
    versions.publish(1, "");
    let cases = [
        "overlap",
        "reversed",
        "outside",
        "entries",
        "nested",
        "bomb",
        "checksum",
        "position",
        "announced",
        "version",
        "broken",
    ];
    for change in cases {
        let layer = versions.publish(2, change);
        let (store, proxy) = (Scratch::new(), faulty(&versions.server, &[]));
        versions.pull(&store, &proxy, "1");
        let tag = format!("2{change}");
        let mut command = Command::new("/usr/bin/python3");
        let measure = "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]); \
                       print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)";
        command.args(["-c", measure, env!("CARGO_BIN_EXE_brig"), "image", "--store", &store.path("store"), "pull"]);
        let pulled = run(command.arg(versions.reference(&proxy, &tag)).env("BRIG_WEAKEN", "")).good();
        let memory: u64 = pulled.out.lines().last().unwrap().parse().unwrap();
        println!("{change}: {memory} KiB");
        assert!(memory < 200 << 10, "{change}: {memory} KiB");
        assert!(pulled.err.contains(": done") && !pulled.err.contains("from the store"), "{change}: {}", pulled.err);
        assert!(fetched(&proxy, &layer).0 >= layer.size, "{change}");
        if change == "overlap" {
            versions.assert_right(&store, &versions.reference(&proxy, &tag), 2);
        }
    }
}

#[test]
fn a_registry_learns_nothing_of_images_from_another_one() {
    let Some(versions) = Versions::new() else { return };
    versions.publish(1, "");
    let layer = versions.publish(2, "");
    let (store, one, other) = (Scratch::new(), faulty(&versions.server, &[]), faulty(&versions.server, &[]));
    versions.pull(&store, &one, "1");
    let pulled = versions.pull(&store, &other, "2");
    assert_eq!((reused(&pulled), fetched(&other, &layer)), (0, (layer.size, 1)), "{:?}", other.requests());
}

#[test]
fn a_registry_without_ranges_and_one_with_bad_days_give_the_same_image() {
    let Some(versions) = Versions::new() else { return };
    versions.publish(1, "");
    let layer = versions.publish(2, "");
    for faults in [&["norange"][..], &["token", "redirect"], &["cut"], &["busy", "broken"]] {
        let (store, proxy) = (Scratch::new(), faulty(&versions.server, faults));
        let auth = servers::auth_file(&versions.scratch, &proxy, "secret");
        store.image(&["pull", "--auth-file", &auth, &versions.reference(&proxy, "1")]).good();
        let name = versions.reference(&proxy, "2");
        let pulled = store.image(&["pull", "--json", "--auth-file", &auth, &name]).good();
        if faults == ["norange"] {
            assert_eq!((reused(&pulled), fetched(&proxy, &layer).1), (0, 2), "{:?}", proxy.requests());
        } else {
            assert!(reused(&pulled) > layer.size / 20 * 19, "{faults:?}: {} {}", pulled.out, pulled.err);
        }
        versions.assert_right(&store, &name, 2);
    }
}
