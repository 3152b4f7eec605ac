//! A switch for tests: in a build with the hidden feature `weakened`, `BRIG_WEAKEN=name,name` switches single protections
//! off, so that each attack can be shown to succeed without its guard. In every other build this is a constant `false`.

/// Whether the protection `name` is switched off. Always `false` unless built with the feature `weakened`.
#[inline]
pub(crate) fn is_off(name: &str) -> bool {
    #[cfg(feature = "weakened")]
    {
        // Read once: a copy of this process wipes its variables.
        static NAMES: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| std::env::var("BRIG_WEAKEN").unwrap_or_default());
        names.split(',').any(|each| each == name)
    }
    #[cfg(not(feature = "weakened"))]
    {
        let _ = name;
        false
    }
}

/// The length of a value as a field of 16 bits holds it, where the protection `name` is switched off (CVE-2021-43784); everywhere else the length.
#[inline]
pub(crate) fn length(name: &str, length: usize) -> usize {
    if is_off(name) { length & 0xffff } else { length }
}
