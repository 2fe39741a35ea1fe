/*
 * Text to token ids and back: byte-level BPE from a Hugging Face tokenizer.json.
 *
 * Normaliser (none, NFC, and sequences of them), pre-tokeniser (ByteLevel, Split with a pattern by
 * PCRE2, and sequences of them), BPE with merges in rank order (Sennrich et al. 2016; byte-level:
 * Radford et al. 2019), added and special tokens cut out of the text first. What a file asks for
 * beyond this is refused by name.
 */
#ifndef EEP_TEXT_TOKENIZER_H
#define EEP_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct eep_tokenizer;

/**
 * Read DIR/tokenizer.json.
 *
 * @retval EEP_ERR_IO           cannot be read
 * @retval EEP_ERR_FORMAT       malformed
 * @retval EEP_ERR_UNSUPPORTED  a component that eep does not have: the text names it
 */
EEP_MUST_CHECK enum eep_status eep_tokenizer_open(const char *dir, struct eep_tokenizer **out);
void eep_tokenizer_close(struct eep_tokenizer *tokenizer);

/** Ids are below this. */
uint32_t eep_tokenizer_size(const struct eep_tokenizer *tokenizer);

/**
 * Encode `bytes` bytes of text, as the file says (its post-processor's special tokens included).
 * Text that is not UTF-8 is encoded byte by byte where it is not. Thread-safe.
 *
 * @param ids_out    owned by the caller, free() it; never NULL on EEP_OK
 */
EEP_MUST_CHECK enum eep_status eep_tokenizer_encode(const struct eep_tokenizer *tokenizer,
                                                    const char *text, size_t bytes,
                                                    uint32_t **ids_out, size_t *count_out);

/** Bytes of one token (may be a part of a UTF-8 character), and its length; NULL for no token. */
const char *eep_tokenizer_token(const struct eep_tokenizer *tokenizer, uint32_t id,
                                size_t *bytes_out);

/** True for a special token (end of text and the like), which plain text output leaves out. */
bool eep_tokenizer_is_special(const struct eep_tokenizer *tokenizer, uint32_t id);

/** Id of an added token by its text, or -1. */
int64_t eep_tokenizer_added_id(const struct eep_tokenizer *tokenizer, const char *text);

/**
 * Decode ids; invalid UTF-8 becomes U+FFFD. Unknown ids give nothing. Thread-safe.
 *
 * @param text_out  NUL-terminated, owned by the caller, free() it
 */
EEP_MUST_CHECK enum eep_status eep_tokenizer_decode(const struct eep_tokenizer *tokenizer,
                                                    const uint32_t *ids, size_t count,
                                                    bool skip_special, char **text_out);

#endif
