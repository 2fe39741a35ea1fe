#include "base/dtype.h"

#include "base/assert.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[EEP_DTYPE_COUNT] = {
    [EEP_F32] = {"F32", 4}, [EEP_BF16] = {"BF16", 2},       [EEP_F16] = {"F16", 2},
    [EEP_F64] = {"F64", 8}, [EEP_F8_E4M3] = {"F8_E4M3", 1}, [EEP_F8_E5M2] = {"F8_E5M2", 1},
    [EEP_I64] = {"I64", 8}, [EEP_I32] = {"I32", 4},         [EEP_I16] = {"I16", 2},
    [EEP_I8] = {"I8", 1},   [EEP_U64] = {"U64", 8},         [EEP_U32] = {"U32", 4},
    [EEP_U16] = {"U16", 2}, [EEP_U8] = {"U8", 1},           [EEP_BOOL] = {"BOOL", 1},
};

size_t eep_dtype_bytes(enum eep_dtype dtype)
{
    EEP_ASSERT((unsigned)dtype < EEP_DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const char *eep_dtype_name(enum eep_dtype dtype)
{
    EEP_ASSERT((unsigned)dtype < EEP_DTYPE_COUNT);
    return dtypes[dtype].name;
}

/*
 * A small float with `exponent_bits` and `mantissa_bits` as a float32. Subnormals are scaled by a
 * power of two, which is exact. `all_ones_special`: the largest exponent means infinity and NaN.
 */
static float small_float(uint32_t bits, int exponent_bits, int mantissa_bits, int all_ones_special)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t exponent_max = (1u << exponent_bits) - 1;
    uint32_t sign = bits >> (exponent_bits + mantissa_bits) & 1;
    uint32_t exponent = bits >> mantissa_bits & exponent_max;
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    uint32_t wide = sign << 31;
    float value;

    if (exponent == 0) {
        value = (float)mantissa;
        for (int shift = 0; shift < bias - 1 + mantissa_bits; shift++) {
            value *= 0.5f;
        }
        return sign ? -value : value;
    }
    if (exponent == exponent_max && all_ones_special) {
        wide |= UINT32_C(0x7f800000) | mantissa << (23 - mantissa_bits);
    } else {
        wide |= (exponent + 127 - (uint32_t)bias) << 23 | mantissa << (23 - mantissa_bits);
    }
    memcpy(&value, &wide, sizeof(value));
    return value;
}

float eep_f16_to_f32(uint16_t bits)
{
    return small_float(bits, 5, 10, 1);
}

float eep_f8_e4m3_to_f32(uint8_t bits)
{
    if ((bits & 0x7f) == 0x7f) { /* the only NaN; this format has no infinity */
        const uint32_t nan_bits = UINT32_C(0x7fc00000);
        float value;

        memcpy(&value, &nan_bits, sizeof(value));
        return value;
    }
    return small_float(bits, 4, 3, 0);
}

float eep_f8_e5m2_to_f32(uint8_t bits)
{
    return small_float(bits, 5, 2, 1);
}

void eep_dtype_widen(enum eep_dtype dtype, const void *src, size_t count, float *dst)
{
    const unsigned char *bytes = src;
    uint16_t half;

    switch (dtype) {
    case EEP_F32:
        memcpy(dst, src, count * sizeof(float));
        return;
    case EEP_BF16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, bytes + 2 * i, sizeof(half));
            dst[i] = eep_bf16_to_f32(half);
        }
        return;
    case EEP_F16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, bytes + 2 * i, sizeof(half));
            dst[i] = eep_f16_to_f32(half);
        }
        return;
    case EEP_F8_E4M3:
        for (size_t i = 0; i < count; i++) {
            dst[i] = eep_f8_e4m3_to_f32(bytes[i]);
        }
        return;
    case EEP_F8_E5M2:
        for (size_t i = 0; i < count; i++) {
            dst[i] = eep_f8_e5m2_to_f32(bytes[i]);
        }
        return;
    default:
        EEP_ASSERT(!"a floating-point dtype");
    }
}
