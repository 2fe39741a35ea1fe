/*
 * The list of codes as tables, and the text of this thread's last failure.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_text[EEP_ERROR_TEXT_MAX];

enum eep_lost eep_status_lost(enum eep_status status)
{
    switch (status) {
#define EEP_STATUS_X(name, value, group, text)                                                     \
    case EEP_##name:                                                                               \
        return EEP_LOST_##group;
        EEP_STATUS_LIST(EEP_STATUS_X)
#undef EEP_STATUS_X
    }
    return EEP_LOST_PROCESS;
}

const char *eep_status_text(enum eep_status status)
{
    switch (status) {
#define EEP_STATUS_X(name, value, group, text)                                                     \
    case EEP_##name:                                                                               \
        return text;
        EEP_STATUS_LIST(EEP_STATUS_X)
#undef EEP_STATUS_X
    }
    return "unknown status";
}

/* Names from files may hold anything; a message is one line of printable text. */
static void clean(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
        }
    }
}

const char *eep_error_text(void)
{
    return error_text;
}

void eep_error_text_set(const char *text)
{
    snprintf(error_text, sizeof(error_text), "%s", text != NULL ? text : "");
}

enum eep_status eep_fail(enum eep_status status, const char *fmt, ...)
{
    char text[EEP_ERROR_TEXT_MAX]; /* the arguments may point into error_text */
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    clean(text);
    memcpy(error_text, text, sizeof(text));
    return status;
}

enum eep_status eep_fail_context(enum eep_status status, const char *fmt, ...)
{
    char text[EEP_ERROR_TEXT_MAX];
    va_list args;

    va_start(args, fmt);
    int used = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof(text) - 1) {
        snprintf(text + used, sizeof(text) - (size_t)used, ": %s", error_text);
    }
    clean(text);
    memcpy(error_text, text, sizeof(text));
    return status;
}
