//! memcpy(3), memmove(3) and memset(3) for the `brig` program on musl: most of a start's two thousand copies are of one or two bytes, and musl's
//! copies those with string instructions, 40 ns each (docs/decisions/0005-start-path.md). All that is read of a short piece is read before anything
//! is written, so the short copies are one for memcpy and memmove.
//!
//! A part of the program alone, not of the library: who links that has a libc of their own.

/// The three under the names `$copy`, `$move` and `$set`.
#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
macro_rules! functions {
    ($copy:literal, $move:literal, $set:literal) => {
        std::arch::global_asm!(
            concat!(".section .text.", $copy, ",\"ax\",@progbits"),
            concat!(".globl ", $copy),
            concat!(".type ", $copy, ", @function"),
            concat!($copy, ":"),
            "mov rax, rdi",
            "cmp rdx, 128",
            "jbe 20f",
            "12:", // forwards, in words; the last one, which may be a part of the one before, is read first
            "mov r8, [rsi + rdx - 8]",
            "lea r9, [rdi + rdx - 8]",
            "mov rcx, rdx",
            "shr rcx, 3",
            "rep movsq",
            "mov [r9], r8",
            "ret",
            "20:",
            "cmp rdx, 16",
            "jb 30f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + rdx - 16]",
            "cmp rdx, 32",
            "ja 21f",
            "movups [rdi], xmm0",
            "movups [rdi + rdx - 16], xmm1",
            "ret",
            "21:",
            "movups xmm2, [rsi + 16]",
            "movups xmm3, [rsi + rdx - 32]",
            "cmp rdx, 64",
            "ja 22f",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm2",
            "movups [rdi + rdx - 32], xmm3",
            "movups [rdi + rdx - 16], xmm1",
            "ret",
            "22:",
            "movups xmm4, [rsi + 32]",
            "movups xmm5, [rsi + 48]",
            "movups xmm6, [rsi + rdx - 64]",
            "movups xmm7, [rsi + rdx - 48]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm2",
            "movups [rdi + 32], xmm4",
            "movups [rdi + 48], xmm5",
            "movups [rdi + rdx - 64], xmm6",
            "movups [rdi + rdx - 48], xmm7",
            "movups [rdi + rdx - 32], xmm3",
            "movups [rdi + rdx - 16], xmm1",
            "ret",
            "30:",
            "cmp edx, 8",
            "jb 31f",
            "mov rcx, [rsi]",
            "mov r8, [rsi + rdx - 8]",
            "mov [rdi], rcx",
            "mov [rdi + rdx - 8], r8",
            "ret",
            "31:",
            "cmp edx, 4",
            "jb 32f",
            "mov ecx, [rsi]",
            "mov r8d, [rsi + rdx - 4]",
            "mov [rdi], ecx",
            "mov [rdi + rdx - 4], r8d",
            "ret",
            "32:", // the first, the middle and the last byte
            "test edx, edx",
            "je 33f",
            "mov r9, rdx",
            "shr r9, 1",
            "movzx ecx, byte ptr [rsi]",
            "movzx r8d, byte ptr [rsi + r9]",
            "movzx r10d, byte ptr [rsi + rdx - 1]",
            "mov [rdi], cl",
            "mov [rdi + r9], r8b",
            "mov [rdi + rdx - 1], r10b",
            "33:",
            "ret",
            concat!(".size ", $copy, ", . - ", $copy),
            concat!(".globl ", $move),
            concat!(".type ", $move, ", @function"),
            concat!($move, ":"),
            "mov rax, rdi",
            "cmp rdx, 128",
            "jbe 20b",
            "mov rcx, rdi",
            "sub rcx, rsi",
            "cmp rcx, rdx",
            "jae 12b",       // the target begins before the source, or behind its end
            "mov r8, [rsi]", // backwards, in words; the first one may be a part of the second
            "mov r9, rdi",
            "lea rsi, [rsi + rdx - 8]",
            "lea rdi, [rdi + rdx - 8]",
            "mov rcx, rdx",
            "shr rcx, 3",
            "std",
            "rep movsq",
            "cld",
            "mov [r9], r8",
            "ret",
            concat!(".size ", $move, ", . - ", $move),
            concat!(".globl ", $set),
            concat!(".type ", $set, ", @function"),
            concat!($set, ":"),
            "mov r9, rdi",
            "movzx esi, sil",
            "movabs rax, 0x0101010101010101",
            "imul rax, rsi",
            "cmp rdx, 16",
            "jb 42f",
            "cmp rdx, 128",
            "ja 41f",
            "movq xmm0, rax",
            "punpcklqdq xmm0, xmm0",
            "movups [rdi], xmm0",
            "movups [rdi + rdx - 16], xmm0",
            "cmp edx, 32",
            "jbe 45f",
            "movups [rdi + 16], xmm0",
            "movups [rdi + rdx - 32], xmm0",
            "cmp edx, 64",
            "jbe 45f",
            "movups [rdi + 32], xmm0",
            "movups [rdi + 48], xmm0",
            "movups [rdi + rdx - 64], xmm0",
            "movups [rdi + rdx - 48], xmm0",
            "jmp 45f",
            "41:",
            "mov [rdi + rdx - 8], rax",
            "mov rcx, rdx",
            "shr rcx, 3",
            "rep stosq",
            "jmp 45f",
            "42:",
            "cmp edx, 8",
            "jb 43f",
            "mov [rdi], rax",
            "mov [rdi + rdx - 8], rax",
            "jmp 45f",
            "43:",
            "cmp edx, 4",
            "jb 44f",
            "mov [rdi], eax",
            "mov [rdi + rdx - 4], eax",
            "jmp 45f",
            "44:",
            "test edx, edx",
            "je 45f",
            "mov [rdi], al",
            "mov [rdi + rdx - 1], al",
            "shr edx, 1",
            "mov [rdi + rdx], al",
            "45:",
            "mov rax, r9",
            "ret",
            concat!(".size ", $set, ", . - ", $set),
            ".text",
        );
    };
}

#[cfg(all(not(test), target_arch = "x86_64", target_env = "musl"))]
functions!("memcpy", "memmove", "memset");

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    functions!("brig_memcpy", "brig_memmove", "brig_memset");

    unsafe extern "C" {
        fn brig_memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8;
        fn brig_memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8;
        fn brig_memset(to: *mut u8, byte: i32, count: usize) -> *mut u8;
    }

    /// Each length up to where words are copied, and some beyond.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..300).chain([511, 512, 513, 1000, 4096, 4099])
    }

    /// Bytes that are not the same again soon.
    fn field() -> Vec<u8> {
        (0..16_384_u32).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn as_many_bytes_are_copied_and_none_beside_them() {
        let from = field();
        for (length, shift) in lengths().flat_map(|length| [0, 1, 5, 8, 13].map(|shift| (length, shift))) {
            let mut to = vec![0xA5; length + 64];
            // SAFETY: both pieces are within their vectors, which are not the same.
            let returned =
                unsafe { brig_memcpy(to.as_mut_ptr().add(16 + shift), from.as_ptr().add(shift * 3), length) };
            assert_eq!(returned, to[16 + shift..].as_mut_ptr(), "{length}");
            assert_eq!(to[16 + shift..][..length], from[shift * 3..][..length], "{length} {shift}");
            assert!(to[..16 + shift].iter().chain(&to[16 + shift + length..]).all(|byte| *byte == 0xA5), "{length}");
        }
    }

    #[test]
    fn a_piece_moves_over_itself_in_both_directions() {
        for (length, distance) in lengths().flat_map(|length| [0, 1, 2, 7, 8, 9, 31, 64, 300].map(|by| (length, by))) {
            for (from, to) in [(5000, 5000 + distance), (5000 + distance, 5000)] {
                let mut moved = field();
                let mut wanted = moved.clone();
                wanted.copy_within(from..from + length, to);
                let start = moved.as_mut_ptr();
                // SAFETY: both pieces are within the vector.
                let returned = unsafe { brig_memmove(start.add(to), start.add(from), length) };
                assert_eq!(returned, moved[to..].as_mut_ptr());
                assert!(moved == wanted, "{length} from {from} to {to}");
            }
        }
    }

    #[test]
    fn as_many_bytes_are_set_and_none_beside_them() {
        for (length, byte) in lengths().flat_map(|length| [0, 1, 0xFF].map(|byte| (length, byte))) {
            let mut to = vec![0xA5; length + 64];
            // SAFETY: the piece is within the vector.
            let returned = unsafe { brig_memset(to.as_mut_ptr().add(19), byte | 0x100, length) };
            assert_eq!(returned, to[19..].as_mut_ptr());
            assert!(to[19..][..length].iter().all(|each| i32::from(*each) == byte), "{length}");
            assert!(to[..19].iter().chain(&to[19 + length..]).all(|each| *each == 0xA5), "{length}");
        }
    }
}
