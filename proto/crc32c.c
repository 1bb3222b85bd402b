#include "proto/crc32c.h"

#include "proto/payload.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>
#endif

/* The remainder of each byte for the reversed Castagnoli polynomial 0x82F63B78. */
static const uint32_t remainders[256] = {0x00000000, 0xF26B8303, 0xE13B70F7, 0x1350F3F4, 0xC79A971F,
    0x35F1141C, 0x26A1E7E8, 0xD4CA64EB, 0x8AD958CF, 0x78B2DBCC, 0x6BE22838, 0x9989AB3B, 0x4D43CFD0,
    0xBF284CD3, 0xAC78BF27, 0x5E133C24, 0x105EC76F, 0xE235446C, 0xF165B798, 0x030E349B, 0xD7C45070,
    0x25AFD373, 0x36FF2087, 0xC494A384, 0x9A879FA0, 0x68EC1CA3, 0x7BBCEF57, 0x89D76C54, 0x5D1D08BF,
    0xAF768BBC, 0xBC267848, 0x4E4DFB4B, 0x20BD8EDE, 0xD2D60DDD, 0xC186FE29, 0x33ED7D2A, 0xE72719C1,
    0x154C9AC2, 0x061C6936, 0xF477EA35, 0xAA64D611, 0x580F5512, 0x4B5FA6E6, 0xB93425E5, 0x6DFE410E,
    0x9F95C20D, 0x8CC531F9, 0x7EAEB2FA, 0x30E349B1, 0xC288CAB2, 0xD1D83946, 0x23B3BA45, 0xF779DEAE,
    0x05125DAD, 0x1642AE59, 0xE4292D5A, 0xBA3A117E, 0x4851927D, 0x5B016189, 0xA96AE28A, 0x7DA08661,
    0x8FCB0562, 0x9C9BF696, 0x6EF07595, 0x417B1DBC, 0xB3109EBF, 0xA0406D4B, 0x522BEE48, 0x86E18AA3,
    0x748A09A0, 0x67DAFA54, 0x95B17957, 0xCBA24573, 0x39C9C670, 0x2A993584, 0xD8F2B687, 0x0C38D26C,
    0xFE53516F, 0xED03A29B, 0x1F682198, 0x5125DAD3, 0xA34E59D0, 0xB01EAA24, 0x42752927, 0x96BF4DCC,
    0x64D4CECF, 0x77843D3B, 0x85EFBE38, 0xDBFC821C, 0x2997011F, 0x3AC7F2EB, 0xC8AC71E8, 0x1C661503,
    0xEE0D9600, 0xFD5D65F4, 0x0F36E6F7, 0x61C69362, 0x93AD1061, 0x80FDE395, 0x72966096, 0xA65C047D,
    0x5437877E, 0x4767748A, 0xB50CF789, 0xEB1FCBAD, 0x197448AE, 0x0A24BB5A, 0xF84F3859, 0x2C855CB2,
    0xDEEEDFB1, 0xCDBE2C45, 0x3FD5AF46, 0x7198540D, 0x83F3D70E, 0x90A324FA, 0x62C8A7F9, 0xB602C312,
    0x44694011, 0x5739B3E5, 0xA55230E6, 0xFB410CC2, 0x092A8FC1, 0x1A7A7C35, 0xE811FF36, 0x3CDB9BDD,
    0xCEB018DE, 0xDDE0EB2A, 0x2F8B6829, 0x82F63B78, 0x709DB87B, 0x63CD4B8F, 0x91A6C88C, 0x456CAC67,
    0xB7072F64, 0xA457DC90, 0x563C5F93, 0x082F63B7, 0xFA44E0B4, 0xE9141340, 0x1B7F9043, 0xCFB5F4A8,
    0x3DDE77AB, 0x2E8E845F, 0xDCE5075C, 0x92A8FC17, 0x60C37F14, 0x73938CE0, 0x81F80FE3, 0x55326B08,
    0xA759E80B, 0xB4091BFF, 0x466298FC, 0x1871A4D8, 0xEA1A27DB, 0xF94AD42F, 0x0B21572C, 0xDFEB33C7,
    0x2D80B0C4, 0x3ED04330, 0xCCBBC033, 0xA24BB5A6, 0x502036A5, 0x4370C551, 0xB11B4652, 0x65D122B9,
    0x97BAA1BA, 0x84EA524E, 0x7681D14D, 0x2892ED69, 0xDAF96E6A, 0xC9A99D9E, 0x3BC21E9D, 0xEF087A76,
    0x1D63F975, 0x0E330A81, 0xFC588982, 0xB21572C9, 0x407EF1CA, 0x532E023E, 0xA145813D, 0x758FE5D6,
    0x87E466D5, 0x94B49521, 0x66DF1622, 0x38CC2A06, 0xCAA7A905, 0xD9F75AF1, 0x2B9CD9F2, 0xFF56BD19,
    0x0D3D3E1A, 0x1E6DCDEE, 0xEC064EED, 0xC38D26C4, 0x31E6A5C7, 0x22B65633, 0xD0DDD530, 0x0417B1DB,
    0xF67C32D8, 0xE52CC12C, 0x1747422F, 0x49547E0B, 0xBB3FFD08, 0xA86F0EFC, 0x5A048DFF, 0x8ECEE914,
    0x7CA56A17, 0x6FF599E3, 0x9D9E1AE0, 0xD3D3E1AB, 0x21B862A8, 0x32E8915C, 0xC083125F, 0x144976B4,
    0xE622F5B7, 0xF5720643, 0x07198540, 0x590AB964, 0xAB613A67, 0xB831C993, 0x4A5A4A90, 0x9E902E7B,
    0x6CFBAD78, 0x7FAB5E8C, 0x8DC0DD8F, 0xE330A81A, 0x115B2B19, 0x020BD8ED, 0xF0605BEE, 0x24AA3F05,
    0xD6C1BC06, 0xC5914FF2, 0x37FACCF1, 0x69E9F0D5, 0x9B8273D6, 0x88D28022, 0x7AB90321, 0xAE7367CA,
    0x5C18E4C9, 0x4F48173D, 0xBD23943E, 0xF36E6F75, 0x0105EC76, 0x12551F82, 0xE03E9C81, 0x34F4F86A,
    0xC69F7B69, 0xD5CF889D, 0x27A40B9E, 0x79B737BA, 0x8BDCB4B9, 0x988C474D, 0x6AE7C44E, 0xBE2DA0A5,
    0x4C4623A6, 0x5F16D052, 0xAD7D5351};

uint32_t crc32c_table(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;

    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ remainders[(crc ^ next[i]) & 0xFF];
    }
    return ~crc;
}

#if defined(__x86_64__)
/* The instruction takes three cycles, but three of them can run at once: long inputs are cut into
 * triples of streams of this many bytes. */
#define STREAM 1024

/* x^(8 n - 33) modulo the polynomial, bit-reversed like all remainders, for n = STREAM and twice
 * that. The carryless product of this number and a remainder, put through the instruction, is the
 * remainder n bytes later. The instruction multiplies by x^32; the product of two reversed numbers
 * is one bit short, which makes it x^33. (Gopal et al., "Fast CRC computation for iSCSI polynomial
 * using CRC32 instruction", 2011.) */
#define LATER_1 UINT64_C(0x170076FA)
#define LATER_2 UINT64_C(0xA51B6135)

__attribute__((target("sse4.2,pclmul"))) static uint64_t crc_later(uint64_t state, uint64_t factor)
{
    const __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((long long)state), _mm_cvtsi64_si128((long long)factor), 0);

    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three streams, one behind the other. The next three are fetched meanwhile: so short, they end
 * before the processor would foresee them. */
__attribute__((target("sse4.2,pclmul"))) static uint64_t crc_triple(
    uint64_t state, const uint8_t *next)
{
    uint64_t second = 0, third = 0;

    for (size_t at = 0; at < STREAM; at += 8) {
        uint64_t word[3];

        if (at % 64 == 0) {
            _mm_prefetch((const char *)next + 3 * STREAM + at, _MM_HINT_T0);
            _mm_prefetch((const char *)next + 4 * STREAM + at, _MM_HINT_T0);
            _mm_prefetch((const char *)next + 5 * STREAM + at, _MM_HINT_T0);
        }
        memcpy(&word[0], next + at, 8);
        memcpy(&word[1], next + at + STREAM, 8);
        memcpy(&word[2], next + at + 2 * STREAM, 8);
        state = _mm_crc32_u64(state, word[0]);
        second = _mm_crc32_u64(second, word[1]);
        third = _mm_crc32_u64(third, word[2]);
    }
    return crc_later(state, LATER_2) ^ crc_later(second, LATER_1) ^ third;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_sse42(
    uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    uint64_t state = ~crc;

    for (; size >= 3 * STREAM; size -= 3 * STREAM, next += 3 * STREAM) {
        state = crc_triple(state, next);
    }
    for (; size >= 8; size -= 8, next += 8) {
        uint64_t word;

        memcpy(&word, next, sizeof(word));
        state = _mm_crc32_u64(state, word);
    }
    for (; size > 0; size--, next++) {
        state = _mm_crc32_u8((uint32_t)state, *next);
    }
    return ~(uint32_t)state;
}

/* Factors that move 16 bytes forward by 256 or by 64 bytes, bit-reversed: of their first half
 * x^(8 n + 63), of their second x^(8 n - 1), modulo the polynomial, n bytes further. A carryless
 * product of reversed numbers is one bit short, hence 63 and -1. (Gopal et al., "Fast CRC
 * computation for generic polynomials using PCLMULQDQ instruction", 2009.) */
#define FIRST_256 0xE9A5D8BE00000000
#define SECOND_256 0x1426A81500000000
#define FIRST_64 0x1C19243B00000000
#define SECOND_64 0x75BBA45B00000000

/* 64 bytes that have the remainder of `sum`, moved forward by `factors`, and `next`. */
__attribute__((target("avx512f,vpclmulqdq"))) static __m512i crc_fold(
    __m512i sum, __m512i factors, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
        _mm512_clmulepi64_epi128(sum, factors, 0x11), next, 0x96); /* all three, exclusive or */
}

/* Folds 256 bytes at a time, at least once, into 64 bytes with the same remainder. Leaves fewer
 * than 256 bytes and returns the state before them. */
__attribute__((target("avx512f,vpclmulqdq"))) static uint32_t crc_folded(
    uint32_t state, const uint8_t **next, size_t *size)
{
    const __m512i far = _mm512_set4_epi64(
        (long long)SECOND_256, (long long)FIRST_256, (long long)SECOND_256, (long long)FIRST_256);
    const __m512i near = _mm512_set4_epi64(
        (long long)SECOND_64, (long long)FIRST_64, (long long)SECOND_64, (long long)FIRST_64);
    uint8_t folded[64];
    __m512i sum[4];

    for (unsigned i = 0; i < 4; i++) {
        sum[i] = _mm512_loadu_si512(*next + 64 * i);
    }
    sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (*next += 256, *size -= 256; *size >= 256; *next += 256, *size -= 256) {
        for (unsigned i = 0; i < 4; i++) {
            sum[i] = crc_fold(sum[i], far, _mm512_loadu_si512(*next + 64 * i));
        }
    }
    for (unsigned i = 1; i < 4; i++) {
        sum[i] = crc_fold(sum[i - 1], near, sum[i]);
    }
    _mm512_storeu_si512(folded, sum[3]);
    return ~crc32c_sse42(~UINT32_C(0), folded, sizeof(folded));
}

/* Of fewer bytes, setting up the folds costs what they save. */
#define FOLDED_MIN 512

static bool crc_can_fold(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
#endif

/* The product of two remainders, modulo the polynomial: bit 31 is x^0. */
static uint32_t crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a != 0; a <<= 1) {
        product ^= (a >> 31) != 0 ? b : 0;
        b = b >> 1 ^ ((b & 1) != 0 ? remainders[128] : 0); /* times x */
    }
    return product;
}

/* x^(8 * 2^k - 33) modulo the polynomial, as LATER_1 above (k = 10): a remainder 2^k bytes later.
 * The polynomial is x + 1 times one of degree 31, so the powers repeat after 31 of them. */
#define POWERS 31u
#define X_33 UINT32_C(0x417B1DBC)

static const uint32_t powers[POWERS] = {0xBF818109, 0x780D5A4D, 0x05EC76F1, 0x00000001, 0x493C7D27,
    0xBA4FC28E, 0x9E4ADDF8, 0x0D3B6092, 0xB9E02B86, 0xDD7E3B0C, 0x170076FA, 0xA51B6135, 0x82F89C77,
    0x54A86326, 0x1DC403CC, 0x5AE703AB, 0xC5013A36, 0xAC2AC6DD, 0x9B4615A9, 0x688D1C61, 0xF6AF14E6,
    0xB6FFE386, 0xB717425B, 0x478B0D30, 0x54CC62E5, 0x7B2102EE, 0x8A99ADEF, 0xA7568C8F, 0xD610D67E,
    0x6B086B3F, 0xD94F3C0B};

static uint32_t crc_step(uint32_t state, unsigned k)
{
    const uint32_t factor = powers[k % POWERS];

#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        return (uint32_t)crc_later(state, factor);
    }
#endif
    return crc_multiply(crc_multiply(factor, X_33), state);
}

uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t second_size)
{
    for (unsigned k = 0; second_size > 0; k++, second_size >>= 1) {
        if ((second_size & 1) != 0) {
            first = crc_step(first, k);
        }
    }
    return first ^ second;
}

uint32_t crc32c_streams(uint32_t crc, const void *bytes, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        return crc32c_sse42(crc, bytes, size);
    }
#endif
    return crc32c_table(crc, bytes, size);
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;

#if defined(__x86_64__)
    if (size >= FOLDED_MIN && crc_can_fold()) {
        crc = ~crc_folded(~crc, &next, &size);
    }
#endif
    return crc32c_streams(crc, next, size);
}
