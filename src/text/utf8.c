/*
 * UTF-8 (strict: no surrogates, no overlong forms), and the code points by which byte-level
 * vocabularies write bytes.
 */
#include <string.h>
#include <utf8proc.h>

#include "base/assert.h"
#include "text/text_int.h"

static bool is_tail(unsigned char byte)
{
    return (byte & 0xc0) == 0x80;
}

/*
 * Bytes from `text` that belong together: a whole character (`*whole_out`), or the longest part
 * that begins one, at least 1. The bounds of the second byte are those of Unicode's table 3-7.
 */
static size_t scan(const unsigned char *text, size_t bytes, bool *whole_out)
{
    unsigned char lead = text[0];
    unsigned char low = 0x80, high = 0xbf;
    size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

    *whole_out = false;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4) {
        return 1;
    }
    low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : low;
    high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : high;
    for (size_t i = 1; i < length; i++) {
        if (i == bytes || text[i] < low || text[i] > high) {
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    *whole_out = true;
    return length;
}

size_t eep_utf8_length(const char *text, size_t bytes)
{
    bool whole;
    size_t length = scan((const unsigned char *)text, bytes, &whole);

    return whole ? length : 0;
}

size_t eep_utf8_valid_bytes(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        size_t length = eep_utf8_length(text + at, bytes - at);

        if (length == 0) {
            break;
        }
        at += length;
    }
    return at;
}

uint32_t eep_utf8_decode(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;

    if (c[0] < 0x80) {
        return c[0];
    }
    if (c[0] < 0xe0) {
        return (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    }
    if (c[0] < 0xf0) {
        return (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    }
    return (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 |
           (uint32_t)(c[2] & 0x3f) << 6 | (c[3] & 0x3f);
}

size_t eep_utf8_encode(uint32_t code, char out[2])
{
    EEP_DASSERT(code < 0x800);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

size_t eep_utf8_before(const char *text, size_t end)
{
    do {
        end--;
    } while (end > 0 && is_tail((unsigned char)text[end]));
    return end;
}

enum eep_status eep_utf8_append_lossy(struct eep_text_buffer *buffer, const char *data,
                                      size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        size_t valid = eep_utf8_valid_bytes(data + at, bytes - at);

        EEP_TRY(eep_text_append(buffer, data + at, valid));
        at += valid;
        if (at < bytes) {
            bool whole;

            at += scan((const unsigned char *)data + at, bytes - at, &whole);
            EEP_TRY(eep_text_append(buffer, "\xef\xbf\xbd", 3));
        }
    }
    return EEP_OK;
}

bool eep_utf8_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool eep_utf8_is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* the joiners, and letters in circles and squares, which are symbols by category */
        return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
               (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
               (code >= 0x1f170 && code <= 0x1f189);
    }
}

/* Printable Latin-1 stands for itself, the 68 other bytes for the code points from 256 on. */
static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

uint32_t eep_byte_char(unsigned char byte)
{
    if (stands_for_itself(byte)) {
        return byte;
    }
    if (byte <= 0x20) {
        return 256u + byte;
    }
    return byte == 0xad ? 256 + 67 : 256u + 33 + (byte - 0x7fu);
}

/* The byte that a code point stands for, or -1. */
static int char_byte(uint32_t code)
{
    if (code < 256) {
        return stands_for_itself(code) ? (int)code : -1;
    }
    code -= 256;
    if (code <= 0x20) {
        return (int)code;
    }
    if (code < 67) {
        return (int)(code - 33 + 0x7f);
    }
    return code == 67 ? 0xad : -1;
}

bool eep_byte_chars_decode(const char *token, size_t bytes, char *out, size_t *bytes_out)
{
    size_t used = 0;

    for (size_t at = 0; at < bytes;) {
        size_t length = eep_utf8_length(token + at, bytes - at);
        int byte = length == 0 ? -1 : char_byte(eep_utf8_decode(token + at));

        if (byte < 0) {
            return false;
        }
        out[used++] = (char)byte;
        at += length;
    }
    *bytes_out = used;
    return true;
}
