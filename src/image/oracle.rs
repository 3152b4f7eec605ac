//! The types of documents and those of `oci-spec` must read the same values.

use super::config::ImageConfig;
use super::manifest::{Document, OCI_INDEX, OCI_MANIFEST, parse};
use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn index_reads_as_with_oci_spec() {
    let text = format!(
        r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","annotations":{{"x":"y"}},"manifests":[
            {{"mediaType":"{OCI_MANIFEST}","digest":"{DIGEST}","size":7,"annotations":{{"a":"b"}},"urls":["https://u"],
              "platform":{{"os":"linux","architecture":"arm64","variant":"v8","os.version":"1"}}}},
            {{"mediaType":"application/other","digest":"{DIGEST}","size":8}}]}}"#
    );
    let theirs: ImageIndex = serde_json::from_str(&text).unwrap();
    let Document::Index(ours) = parse(text.as_bytes(), None).unwrap() else { panic!("not an index") };
    assert_eq!(ours.manifests.len(), theirs.manifests().len());
    for (ours, theirs) in ours.manifests.iter().zip(theirs.manifests()) {
        let platform = theirs.platform().as_ref().map(|platform| {
            let variant = platform.variant().clone().unwrap_or_default();
            (platform.os().to_string(), platform.architecture().to_string(), variant)
        });
        let own_platform = ours.platform.as_ref();
        assert_eq!(own_platform.map(|own| (own.os.clone(), own.architecture.clone(), own.variant.clone())), platform);
        assert_eq!(ours.media_type, theirs.media_type().to_string());
        let annotations = theirs.annotations().clone().unwrap_or_default();
        assert_eq!(ours.annotations, annotations.into_iter().collect());
        let descriptor = super::manifest::Descriptor::new(ours).unwrap();
        assert_eq!((descriptor.digest.to_string(), descriptor.size), (theirs.digest().to_string(), theirs.size()));
        assert_eq!(descriptor.urls, theirs.urls().clone().unwrap_or_default());
    }
}

#[test]
fn manifest_reads_as_with_oci_spec() {
    let text = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{DIGEST}","size":2}},
            "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{DIGEST}","size":9}}]}}"#
    );
    let theirs: ImageManifest = serde_json::from_str(&text).unwrap();
    let Document::Manifest(ours) = parse(text.as_bytes(), None).unwrap() else { panic!("not a manifest") };
    assert_eq!(ours.config.size, theirs.config().size());
    assert_eq!(ours.layers.len(), theirs.layers().len());
    assert_eq!(ours.layers[0].media_type, theirs.layers()[0].media_type().to_string());
}

#[test]
fn config_reads_as_with_oci_spec() {
    let text = format!(
        r#"{{"created":"2026-01-02T03:04:05Z","author":"me","architecture":"arm64","os":"linux","variant":"v8","os.version":"1","os.features":["f"],
            "config":{{"User":"1:2","Env":["A=b"],"Entrypoint":["/e"],"Cmd":["c"],"WorkingDir":"/w","Labels":{{"l":"m"}},
              "Volumes":{{"/v":{{}},"/a":{{}}}},"ExposedPorts":{{"80/tcp":{{}}}},"StopSignal":"SIGTERM"}},
            "rootfs":{{"type":"layers","diff_ids":["{DIGEST}"]}},"history":[{{"created_by":"x"}}]}}"#
    );
    let theirs: ImageConfiguration = serde_json::from_str(&text).unwrap();
    let ours = ImageConfig::parse(text.as_bytes()).unwrap();
    let run = theirs.config().clone().unwrap();
    let sorted = |list: &Option<Vec<String>>| {
        let mut list = list.clone().unwrap_or_default();
        list.sort();
        list
    };
    let expected = ImageConfig {
        created: theirs.created().clone(),
        author: theirs.author().clone(),
        os: theirs.os().to_string(),
        architecture: theirs.architecture().to_string(),
        variant: theirs.variant().clone().unwrap_or_default(),
        os_version: theirs.os_version().clone(),
        os_features: theirs.os_features().clone().unwrap_or_default(),
        user: run.user().clone().unwrap_or_default(),
        env: run.env().clone().unwrap_or_default(),
        entrypoint: run.entrypoint().clone().unwrap_or_default(),
        cmd: run.cmd().clone().unwrap_or_default(),
        working_dir: run.working_dir().clone().unwrap_or_default(),
        labels: run.labels().clone().unwrap_or_default().into_iter().collect(),
        volumes: sorted(run.volumes()),
        exposed_ports: sorted(run.exposed_ports()),
        stop_signal: run.stop_signal().clone(),
        diff_ids: theirs.rootfs().diff_ids().iter().map(|text| text.parse().unwrap()).collect(),
        ..ImageConfig::default()
    };
    assert_eq!(ours, expected);
}
