/* Without libevent: the options are there, and say that this build has no endpoint. */
#include "tools/admin.h"
#include "tools/tools.h"

enum eep_status eep_tool_admin_open(const struct eep_tool_admin_opts *values,
                                    struct eep_engine *engine, struct eep_tool_admin **admin_out)
{
    (void)engine;
    *admin_out = NULL;
    return values->endpoint == NULL
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_UNSUPPORTED,
                          "--admin: this eep was built --without-admin; build it with libevent");
}

void eep_tool_admin_step(struct eep_tool_admin *admin)
{
    (void)admin;
}

void eep_tool_admin_close(struct eep_tool_admin *admin)
{
    (void)admin;
}
