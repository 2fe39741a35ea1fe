#include "tools/shared_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

/* An empty path when there can be none. */
static void make_file(char *path, size_t bytes)
{
    const int fd = mkstemp(path);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        eep_log(EEP_LOG_DEBUG, "no page to share in /dev/shm: %s", strerror(errno));
        if (fd >= 0) {
            (void)unlink(path);
        }
        path[0] = '\0';
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void *map_file(const char *path, size_t bytes)
{
    const int fd = path[0] != '\0' ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    void *page = MAP_FAILED;

    if (fd >= 0) {
        page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    return page != MAP_FAILED ? page : NULL;
}

enum eep_status eep_shared_page_open(struct eep_engine *engine, size_t bytes, void *page_out)
{
    char path[40] = "/dev/shm/eep-page-XXXXXX";
    enum eep_status status;
    void *page = NULL;

    if (eep_engine_rank(engine) == 0) {
        make_file(path, bytes);
    }
    status = eep_engine_broadcast(engine, path, sizeof(path));
    if (status == EEP_OK) {
        page = map_file(path, bytes);
        status = eep_engine_agree(engine, "shared page", EEP_OK); /* all have opened it */
    }
    if (eep_engine_rank(engine) == 0 && path[0] != '\0') {
        (void)unlink(path);
    }
    memcpy(page_out, &page, sizeof(page));
    return status;
}

void eep_shared_page_close(void *page, size_t bytes)
{
    if (page != NULL) {
        (void)munmap(page, bytes);
    }
}
