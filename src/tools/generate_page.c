#include "tools/generate_page.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

/* An empty path when there can be none. */
static void make_file(char *path)
{
    const int fd = mkstemp(path);

    if (fd < 0 || ftruncate(fd, (off_t)sizeof(struct eep_print_page)) != 0) {
        eep_log(EEP_LOG_DEBUG, "no page in /dev/shm: after a loss answers may be printed twice");
        if (fd >= 0) {
            (void)unlink(path);
        }
        path[0] = '\0';
    }
    if (fd >= 0) {
        close(fd);
    }
}

static struct eep_print_page *map_file(const char *path)
{
    const int fd = path[0] != '\0' ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    void *page = MAP_FAILED;

    if (fd >= 0) {
        page = mmap(NULL, sizeof(struct eep_print_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    return page != MAP_FAILED ? page : NULL;
}

enum eep_status eep_print_page_open(struct eep_engine *engine, struct eep_print_page **page_out)
{
    char path[40] = "/dev/shm/eep-print-XXXXXX";
    enum eep_status status;

    *page_out = NULL;
    if (eep_engine_rank(engine) == 0) {
        make_file(path);
    }
    status = eep_engine_broadcast(engine, path, sizeof(path));
    if (status == EEP_OK) {
        *page_out = map_file(path);
        status = eep_engine_agree(engine, "printing", EEP_OK); /* all have opened it */
    }
    if (eep_engine_rank(engine) == 0 && path[0] != '\0') {
        (void)unlink(path);
    }
    return status;
}

void eep_print_page_close(struct eep_print_page *page)
{
    if (page != NULL) {
        (void)munmap(page, sizeof(*page));
    }
}
