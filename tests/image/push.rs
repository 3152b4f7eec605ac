//! Push on a registry's bad days.

use crate::servers::{faulty, ready, registry};
use crate::support::Scratch;

/// As registries do after they have read a part of a blob.
#[test]
fn a_blob_is_sent_to_a_new_address_after_trouble() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new();
    let server = registry(&scratch, "");
    let proxy = faulty(&server, &["forgets"]);
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", &proxy.reference()]).good();
    scratch.image(&["push", &proxy.reference()]).good();
    let requests = proxy.requests();
    let blobs: Vec<&str> = requests.iter().filter(|line| line.contains("/blobs/")).map(String::as_str).collect();
    let count = |method: &str| blobs.iter().filter(|line| line.starts_with(method)).count();
    // Three layers and the config, each of them twice.
    assert_eq!(["HEAD", "POST", "PUT"].map(count), [8, 8, 8], "{requests:#?}");
    Scratch::new().image(&["pull", &server.reference()]).good();
}
