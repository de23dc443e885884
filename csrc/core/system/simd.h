// Loops that the compiler turns into vector instructions of the machine they run on.
#pragma once

// Put MONOLITH_SIMD in front of a free function with plain loops over MONOLITH_RESTRICT pointers.
// It is compiled for the baseline, for AVX2 and for AVX-512, and the first call picks one, so one
// binary runs everywhere. Together with -ffp-contract=off every variant gives the same bits, as
// long as the loop is elementwise: a sum has to spell out its order.
//
// Not a member, not a template, not inline: the choice is made per symbol. Sanitizers, other
// compilers and other machines get the plain function.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(MONOLITH_SANITIZED)
#if __GNUC__ >= 12
#define MONOLITH_SIMD __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define MONOLITH_SIMD __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#else
#define MONOLITH_SIMD
#endif

// In front of what several such functions share, which each of them compiles for itself.
#if defined(__GNUC__)
#define MONOLITH_SIMD_BODY static inline __attribute__((always_inline))
#else
#define MONOLITH_SIMD_BODY static inline
#endif

#define MONOLITH_RESTRICT __restrict
