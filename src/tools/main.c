/* The `eep` program: picks the command. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config.h"
#include "tools/opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep COMMAND [options]",
    .summary = "Elastic expert parallelism: Mixture-of-Experts language models over MPI ranks.\n\n"
               "  generate   text from a checkpoint\n"
               "  eval       perplexity of a text\n"
               "  bench      measure a part beside this machine's limits\n"
               "  layout     plan expert layouts and look at them, without a model\n"
               "  launch     start a command on several ranks\n"
               "  cache      list, check, repair and drop the weight caches of this node\n\n"
               "`eep COMMAND --help` tells a command's options. Under mpirun every rank is one\n"
               "process of the same command; without it eep is a single rank.",
    .epilog = "environment:\n"
              "  EEP_LOG         error, warn (default), info, debug or trace\n"
              "  EEP_NODE_SIZE   every so many ranks count as one node, to try several nodes on\n"
              "                  one machine\n"
              "  EEP_TIMEOUT     longest wait for another rank in seconds (default 600)\n"
              "  EEP_KERNELS     ref, avx2, avx512, neon or auto (default)",
};

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"generate", eep_cmd_generate}, {"eval", eep_cmd_eval},     {"bench", eep_cmd_bench},
    {"layout", eep_cmd_layout},     {"launch", eep_cmd_launch}, {"cache", eep_cmd_cache},
};

static int run(int argc, char **argv)
{
    bool version = false;
    const struct eep_opt opts[] = {
        {"version", EEP_OPT_FLAG, &version, NULL, "print the version"},
    };
    int first = argc < 2 ? argc : 2;

    if (eep_log_level_from_env() != EEP_OK) {
        return eep_tool_failed();
    }
    const int ended = eep_opts_parse(&help, opts, 1, first, argv, &first);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (version) {
        printf("eep %s\n", PACKAGE_VERSION);
        return EEP_EXIT_OK;
    }
    if (argc < 2) {
        return eep_opts_wrong(&help, "which command?");
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return eep_opts_wrong(&help, "there is no command '%s'", argv[1]);
}

int main(int argc, char **argv)
{
    const int status = run(argc, argv);

    eep_status_file_write(status);
    eep_tool_linger(status);
    return status;
}
