//! A switch for tests. In a build with the hidden feature `weakened`, `BRIG_WEAKEN=name,name` disables single
//! protections, to prove each attack without its guard.

/// Always `false` without the feature `weakened`.
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

/// Without the protection the length modulo 2^16, as in a 16-bit field (CVE-2021-43784).
#[inline]
pub(crate) fn length(name: &str, length: usize) -> usize {
    if is_off(name) { length & 0xffff } else { length }
}
