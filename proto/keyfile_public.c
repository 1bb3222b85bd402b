/*
 * Whether 32 bytes can be a public key of Curve25519: the first coordinate of a multiple of the
 * base point. L times such a point is the neutral element, where L is the order of the base point.
 * The ladder is that of RFC 7748, section 5, without clamping. Public keys are no secrets, so it
 * need not take the same time for each.
 */
#include <stdint.h>
#include <string.h>

#include "proto/keyfile.h"

#define LIMBS 16 /* of 16 bits, the least significant first */
#define BITS 255
#define A24 121665 /* (486662 - 2) / 4 */

/* A number modulo 2^255 - 19. */
struct number {
    int64_t limb[LIMBS];
};

/* L = 2^252 + 27742317777372353535851937790883648493, the least significant byte first. */
static const uint8_t order[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7,
    0xa2, 0xde, 0xf9, 0xde, 0x14, [31] = 0x10};

static void carry(struct number *a)
{
    for (unsigned i = 0; i < LIMBS; i++) {
        const int64_t over = a->limb[i] >> 16;

        a->limb[i] -= over * 65536;
        if (i + 1 < LIMBS) {
            a->limb[i + 1] += over;
        } else {
            a->limb[0] += 38 * over; /* 2^256 is 38 */
        }
    }
}

static struct number keyfile_public_add(const struct number *a, const struct number *b)
{
    struct number sum;

    for (unsigned i = 0; i < LIMBS; i++) {
        sum.limb[i] = a->limb[i] + b->limb[i];
    }
    return sum;
}

static struct number subtract(const struct number *a, const struct number *b)
{
    struct number difference;

    for (unsigned i = 0; i < LIMBS; i++) {
        difference.limb[i] = a->limb[i] - b->limb[i];
    }
    return difference;
}

static struct number multiply(const struct number *a, const struct number *b)
{
    int64_t wide[2 * LIMBS] = {0};
    struct number product;

    for (unsigned i = 0; i < LIMBS; i++) {
        for (unsigned j = 0; j < LIMBS; j++) {
            wide[i + j] += a->limb[i] * b->limb[j];
        }
    }
    for (unsigned i = 0; i < LIMBS; i++) {
        product.limb[i] = wide[i] + 38 * wide[i + LIMBS];
    }
    carry(&product);
    carry(&product);
    return product;
}

/* Whether it is 0 modulo 2^255 - 19: all its limbs are once it is in its least form. */
static bool is_zero(struct number a)
{
    int64_t zero = 0, prime = 0;

    carry(&a);
    carry(&a);
    carry(&a); /* from 0 to 2^256 - 1 now: it is 0 if it is 0, p or 2 p */
    a.limb[0] += 19 * (a.limb[LIMBS - 1] >> 15);
    a.limb[LIMBS - 1] &= 0x7fff;
    carry(&a);
    for (unsigned i = 0; i < LIMBS; i++) {
        const int64_t limb = i == 0 ? 0xffed : i + 1 < LIMBS ? 0xffff : 0x7fff;

        zero |= a.limb[i];
        prime |= a.limb[i] ^ limb;
    }
    return zero == 0 || prime == 0;
}

/* One step of the ladder: adds the points (x2 : z2) and (x3 : z3), whose difference has the first
 * coordinate x, and doubles the first. */
static void step(struct number *x2, struct number *z2, struct number *x3, struct number *z3,
    const struct number *x)
{
    static const struct number a24 = {.limb = {A24 & 0xffff, A24 >> 16}};
    const struct number a = keyfile_public_add(x2, z2), b = subtract(x2, z2);
    const struct number aa = multiply(&a, &a), bb = multiply(&b, &b), e = subtract(&aa, &bb);
    const struct number c = keyfile_public_add(x3, z3), d = subtract(x3, z3);
    const struct number da = multiply(&d, &a), cb = multiply(&c, &b);
    const struct number sum = keyfile_public_add(&da, &cb), difference = subtract(&da, &cb);
    const struct number square = multiply(&difference, &difference), small = multiply(&a24, &e);
    const struct number factor = keyfile_public_add(&aa, &small);

    *x3 = multiply(&sum, &sum);
    *z3 = multiply(x, &square);
    *x2 = multiply(&aa, &bb);
    *z2 = multiply(&e, &factor);
}

/* Whether L times the point with this first coordinate is the neutral element. */
static bool has_order(const struct number *x)
{
    struct number x2 = {.limb = {1}}, z2 = {.limb = {0}}, x3 = *x, z3 = {.limb = {1}};

    for (int bit = BITS - 1; bit >= 0; bit--) {
        if ((order[bit / 8] >> (bit % 8) & 1) != 0) {
            step(&x3, &z3, &x2, &z2, x);
        } else {
            step(&x2, &z2, &x3, &z3, x);
        }
    }
    return is_zero(z2);
}

bool keyfile_may_be_public(const char *key)
{
    uint8_t bytes[KEYFILE_KEY_BYTES];
    struct number x;
    bool may = keyfile_decode(key, bytes) && (bytes[31] & 0x80) == 0;

    for (unsigned i = 0; may && i < LIMBS; i++) {
        x.limb[i] = bytes[2 * i] + 256 * bytes[2 * i + 1];
    }
    may = may && !is_zero(x) && has_order(&x); /* the ladder cannot climb from 0 */
    explicit_bzero(bytes, sizeof(bytes));
    explicit_bzero(&x, sizeof(x));
    return may;
}
