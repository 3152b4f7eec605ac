//! Tells the linker where a start's functions go (bench/order wrote the script). Only for the binary, and only where rootfs/binary links with ld(1).

fn main() {
    println!("cargo:rerun-if-changed=rootfs/start.ld");
    let is_musl = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl");
    if let (true, Ok(directory)) = (is_musl, std::env::var("CARGO_MANIFEST_DIR")) {
        println!("cargo:rustc-link-arg-bin=brig=-Wl,-T,{directory}/rootfs/start.ld");
    }
}
