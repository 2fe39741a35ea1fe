/* Options of the admin endpoint. */
#include "tools/admin.h"
#include "tools/tools.h"

void eep_tool_admin_table(struct eep_tool_admin_opts *v, struct eep_opt *opts_out)
{
    const struct eep_opt table[EEP_TOOL_ADMIN_OPT_COUNT] = {
        {"admin", EEP_OPT_STRING, &v->endpoint, "ENDPOINT",
         "let eepctl in on rank 0: unix:PATH, HOST:PORT, or default\nfor unix:/tmp/eep-UID/"
         "admin.sock"},
        {"admin-token-file", EEP_OPT_STRING, &v->token_file, "FILE",
         "the bearer token that TCP needs (default\n$EEP_ADMIN_TOKEN)"},
        {"admin-cert", EEP_OPT_STRING, &v->cert_file, "FILE",
         "TLS: certificate and chain (PEM); needed on TCP unless\nHOST is a loopback address"},
        {"admin-key", EEP_OPT_STRING, &v->key_file, "FILE", "TLS: its key (PEM)"},
    };

    for (int i = 0; i < EEP_TOOL_ADMIN_OPT_COUNT; i++) {
        opts_out[i] = table[i];
    }
}

int eep_tool_admin_check(const struct eep_tool_admin_opts *v, const struct eep_command_help *help)
{
    if (v->endpoint == NULL &&
        (v->token_file != NULL || v->cert_file != NULL || v->key_file != NULL)) {
        return eep_opts_wrong(help, "--admin-token-file, --admin-cert and --admin-key go with "
                                    "--admin");
    }
    if ((v->cert_file == NULL) != (v->key_file == NULL)) {
        return eep_opts_wrong(help, "--admin-cert and --admin-key go together");
    }
    return EEP_EXIT_OK;
}
