/* Element types of tensors, and exact conversions of single values. */
#ifndef EEP_BASE_DTYPE_H
#define EEP_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum eep_dtype {
    EEP_F32,
    EEP_BF16,
    EEP_F16,
    EEP_F64,
    EEP_F8_E4M3,
    EEP_F8_E5M2,
    EEP_I64,
    EEP_I32,
    EEP_I16,
    EEP_I8,
    EEP_U64,
    EEP_U32,
    EEP_U16,
    EEP_U8,
    EEP_BOOL,
    EEP_DTYPE_COUNT
};

/** Bytes of one element. */
size_t eep_dtype_bytes(enum eep_dtype dtype);

/** The name that safetensors uses, such as "BF16". */
const char *eep_dtype_name(enum eep_dtype dtype);

static inline float eep_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

/** Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t eep_f32_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000)) {
        return (uint16_t)((bits >> 16) | 0x40);
    }
    return (uint16_t)((bits + UINT32_C(0x7fff) + ((bits >> 16) & 1)) >> 16);
}

/** Exact: every F16 value, subnormals included, is an F32 value. */
float eep_f16_to_f32(uint16_t bits);
float eep_f8_e4m3_to_f32(uint8_t bits);
float eep_f8_e5m2_to_f32(uint8_t bits);

/**
 * Convert `count` floating-point elements at `src` (any alignment) to float32.
 * Only F32, BF16, F16, F8_E4M3 and F8_E5M2; asserted.
 */
void eep_dtype_widen(enum eep_dtype dtype, const void *src, size_t count, float *dst);

#endif
