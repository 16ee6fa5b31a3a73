/* Loaded before the C library: writes down what a process changes on disk, and what it syncs.
 *
 * NATPINN_POWER_ROOT is the folder that is watched, NATPINN_POWER_LOG the file of records. A record
 * is a header, the bytes of up to two paths, and the bytes that were written. Files are told apart
 * by their inode, so that a name may change between a write and a sync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, RENAME, LINK, UNLINK, MAKE_FOLDER, REMOVE_FOLDER, SYNC };

struct header {
    uint32_t kind, first, second; /* lengths of the paths */
    uint64_t inode, offset, length;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;
static const char *root;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NATPINN_POWER_LOG");
    root = getenv("NATPINN_POWER_ROOT");
    if (path && root)
        log_file = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void whole_path(int folder, const char *path, char *out) {
    char base[PATH_MAX / 2] = "", link[64];
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, base, sizeof base - 1);
        base[n < 0 ? 0 : n] = 0;
    }
    snprintf(out, PATH_MAX, "%s/%s", base, path);
}

static int is_watched(const char *path) {
    return log_file >= 0 && strncmp(path, root, strlen(root)) == 0;
}

static int fd_is_watched(int fd, struct stat *found) {
    char link[64], path[PATH_MAX];
    if (log_file < 0 || fd == log_file) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_watched(path) && fstat(fd, found) == 0;
}

static uint64_t inode_of(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static void put(uint32_t kind, const char *first, const char *second, uint64_t inode,
                uint64_t offset, const void *data, uint64_t length) {
    struct header header = {kind, first ? strlen(first) : 0, second ? strlen(second) : 0,
                            inode, offset, length};
    struct iovec parts[4] = {{&header, sizeof header},
                             {(void *)first, header.first},
                             {(void *)second, header.second},
                             {(void *)data, data ? length : 0}};
    int saved = errno;
    if (REAL(writev)(log_file, parts, 4) < 0) abort();
    errno = saved;
}

/* The change and its record are one: no other thread comes between them. */
#define RECORDED(call, watched, record)          \
    pthread_mutex_lock(&lock);                   \
    __typeof__(call) result = (call);            \
    if (result >= 0 && (watched)) { record; }    \
    pthread_mutex_unlock(&lock);                 \
    return result;

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat found;
    whole_path(folder, name, path);
    int watched = is_watched(path), was_there = !watched || lstat(path, &found) == 0;
    pthread_mutex_lock(&lock);
    int fd = REAL(openat)(folder, name, flags, mode);
    if (fd >= 0 && watched && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
        if (!was_there) put(CREATE, path, NULL, found.st_ino, 0, NULL, 0);
        else if (flags & O_TRUNC) put(TRUNCATE, NULL, NULL, found.st_ino, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags)                                            \
    mode_t mode = 0;                                           \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                     \
        va_list more;                                          \
        va_start(more, flags);                                 \
        mode = va_arg(more, mode_t);                           \
        va_end(more);                                          \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

ssize_t write(int fd, const void *data, size_t size) {
    struct stat found;
    int watched = fd_is_watched(fd, &found);
    off_t at = watched ? lseek(fd, 0, SEEK_CUR) : 0;
    if (watched && (fcntl(fd, F_GETFL) & O_APPEND)) at = found.st_size;
    RECORDED(REAL(write)(fd, data, size), watched, put(WRITE, NULL, NULL, found.st_ino, at, data, result))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    struct stat found;
    RECORDED(REAL(pwrite)(fd, data, size, at), fd_is_watched(fd, &found),
             put(WRITE, NULL, NULL, found.st_ino, at, data, result))
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    struct stat found;
    if (!fd_is_watched(fd, &found)) return REAL(writev)(fd, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (n < 0) return total ? total : n;
        total += n;
    }
    return total;
}

int ftruncate(int fd, off_t size) {
    struct stat found;
    RECORDED(REAL(ftruncate)(fd, size), fd_is_watched(fd, &found),
             put(TRUNCATE, NULL, NULL, found.st_ino, size, NULL, 0))
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int renameat(int old_folder, const char *old, int new_folder, const char *new) {
    char from[PATH_MAX], to[PATH_MAX];
    whole_path(old_folder, old, from);
    whole_path(new_folder, new, to);
    RECORDED(REAL(renameat)(old_folder, old, new_folder, new), is_watched(from) || is_watched(to),
             put(RENAME, from, to, inode_of(to), 0, NULL, 0))
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }
int renameat2(int old_folder, const char *old, int new_folder, const char *new, unsigned int flags) {
    if (flags == 0) return renameat(old_folder, old, new_folder, new);
    char to[PATH_MAX];
    whole_path(new_folder, new, to);
    if (is_watched(to)) abort(); /* not modelled */
    return REAL(renameat2)(old_folder, old, new_folder, new, flags);
}

int linkat(int old_folder, const char *old, int new_folder, const char *new, int flags) {
    char to[PATH_MAX];
    whole_path(new_folder, new, to);
    RECORDED(REAL(linkat)(old_folder, old, new_folder, new, flags), is_watched(to),
             put(LINK, to, NULL, inode_of(to), 0, NULL, 0))
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    whole_path(folder, name, path);
    RECORDED(REAL(unlinkat)(folder, name, flags), is_watched(path),
             put(flags & AT_REMOVEDIR ? REMOVE_FOLDER : UNLINK, path, NULL, 0, 0, NULL, 0))
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat found;
    int is_folder = lstat(path, &found) == 0 && S_ISDIR(found.st_mode);
    return unlinkat(AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    whole_path(folder, name, path);
    RECORDED(REAL(mkdirat)(folder, name, mode), is_watched(path),
             put(MAKE_FOLDER, path, NULL, inode_of(path), 0, NULL, 0))
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int fsync(int fd) {
    struct stat found;
    RECORDED(REAL(fsync)(fd), fd_is_watched(fd, &found), put(SYNC, NULL, NULL, found.st_ino, 0, NULL, 0))
}
int fdatasync(int fd) {
    struct stat found;
    RECORDED(REAL(fdatasync)(fd), fd_is_watched(fd, &found), put(SYNC, NULL, NULL, found.st_ino, 0, NULL, 0))
}
