/* faults.c - a shared library that is preloaded into a program and lets its n-th call fail.
 *
 * Calls of the system are caught with a seccomp filter, so that those which the C library makes
 * for itself (stdio, nftw) are caught too. The filter raises SIGSYS for every call of the table
 * below, except from the one instruction with which this file makes calls itself. Allocations are
 * caught by taking the place of malloc and its kin. Nothing is caught before main.
 *
 *     FAULT_CALLS   kinds of calls that count, with commas: names of the table, or `memory`
 *     FAULT_AT      the fault falls on the n-th of them, from 1; 0 or absent: on none
 *     FAULT_HOW     what happens there:
 *                       EIO, ENOSPC, EINTR, EMFILE, ENOMEM   the call is not made and fails so
 *                       SHORT     a read or write of half the bytes
 *                       KILL      SIGKILL in place of the call
 *                       TEAR      half the bytes are written, then SIGKILL
 *                       TERM      SIGTERM to the process, then the call
 *     FAULT_LASTS   if set, all counted calls from the n-th on fail, not only that one
 *     FAULT_CLOCK   so many times as fast as in truth time passes, for what is measured before a run
 *     FAULT_REPORT  a file to which a `record` is written, up to date at any moment
 *     FAULT_STACKS  a file to which a number for the stack of calls of every counted allocation is
 *                   written, 8 bytes each: equal stacks of one run have equal numbers
 *
 * Left alone are standard error, files of the system (see `outside`), and allocations of
 * libraries that end the process by themselves when memory is out, and of the C library. A file is
 * never synced: no test here cuts the power, and the disks of test machines are slow. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    UNAVAILABLE = 77,
    MOST_RANGES = 32,
    MOST_FILES  = 1024,
    PLACE_BYTES = 240,
    MOST_STACKS = 1 << 20
};

/* ---- what is caught ---- */

typedef enum kind {
    READ,
    WRITE,
    OPEN,
    CREATE,
    CLOSE,
    SYNC,
    RENAME,
    MKDIR,
    UNLINK,
    LIST,
    CUT,
    LINK,
    STAT,
    LOCK,
    MEMORY,
    KINDS
} kind;

static const char *const kind_names[KINDS] = {"read", "write",  "open",  "create", "close",
                                              "sync", "rename", "mkdir", "unlink", "list",
                                              "cut",  "link",   "stat",  "lock",   "memory"};

/* Where a call names what it is about: a descriptor or a path, and in which argument. */
typedef enum about { FILE_0, PATH_0, PATH_1 } about;

typedef struct caught_call {
    long number;
    kind kind;
    about about;
} caught_call;

static const caught_call table[] = {
    {SYS_read, READ, FILE_0},       {SYS_pread64, READ, FILE_0},    {SYS_readv, READ, FILE_0},
    {SYS_write, WRITE, FILE_0},     {SYS_pwrite64, WRITE, FILE_0},  {SYS_writev, WRITE, FILE_0},
    {SYS_openat, OPEN, PATH_1},     {SYS_close, CLOSE, FILE_0},     {SYS_fsync, SYNC, FILE_0},
    {SYS_fdatasync, SYNC, FILE_0},  {SYS_renameat, RENAME, PATH_1}, {SYS_renameat2, RENAME, PATH_1},
    {SYS_mkdirat, MKDIR, PATH_1},   {SYS_unlinkat, UNLINK, PATH_1}, {SYS_getdents64, LIST, FILE_0},
    {SYS_ftruncate, CUT, FILE_0},   {SYS_symlinkat, LINK, PATH_0},  {SYS_readlinkat, STAT, PATH_1},
    {SYS_newfstatat, STAT, PATH_1}, {SYS_fstat, STAT, FILE_0},      {SYS_flock, LOCK, FILE_0},
#ifdef SYS_open /* calls that newer architectures do without */
    {SYS_open, OPEN, PATH_0},       {SYS_rename, RENAME, PATH_0},   {SYS_mkdir, MKDIR, PATH_0},
    {SYS_unlink, UNLINK, PATH_0},   {SYS_rmdir, UNLINK, PATH_0},    {SYS_symlink, LINK, PATH_0},
    {SYS_readlink, STAT, PATH_0},   {SYS_stat, STAT, PATH_0},       {SYS_lstat, STAT, PATH_0},
#endif
};
enum { CALLS = sizeof table / sizeof *table };

/* ---- what the driver reads; tests/faults/shim.py knows the layout ---- */

typedef struct record {
    atomic_ullong seen;          /* calls that counted */
    atomic_ullong fired;         /* those that a fault fell on */
    atomic_ullong counts[KINDS]; /* calls of every kind, whether they count or not */
    char place[PLACE_BYTES];     /* kind and file, or object and offset, of the first fault */
} record;

static record unseen, *report = &unseen;

/* ---- what is to happen ---- */

static unsigned selected; /* a bit a kind */
static unsigned long long fault_at;
static bool lasts;
static enum { FAIL, SHORT, KILL, TEAR, TERM } how;
static int fault_errno;

/* ---- calls that are not caught ---- */

long fault_call(long number, long a, long b, long c, long d, long e);
extern const char fault_call_made[]; /* the instruction after the call, which the filter sees */

#if defined __x86_64__
#    define ARCHITECTURE AUDIT_ARCH_X86_64
__asm__(".text\n.globl fault_call\n.hidden fault_call\n.globl fault_call_made\n"
        ".hidden fault_call_made\n.type fault_call, @function\n"
        "fault_call:\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n"
        " mov %r8, %r10\n mov %r9, %r8\n xor %r9d, %r9d\n syscall\n"
        "fault_call_made:\n ret\n.size fault_call, .-fault_call\n");
static long argument(const ucontext_t *at, int i)
{
    static const int where[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8};
    return (long)at->uc_mcontext.gregs[where[i]];
}
static void give_back(ucontext_t *at, long result)
{
    at->uc_mcontext.gregs[REG_RAX] = result;
}
#elif defined __aarch64__
#    define ARCHITECTURE AUDIT_ARCH_AARCH64
__asm__(".text\n.globl fault_call\n.hidden fault_call\n.globl fault_call_made\n"
        ".hidden fault_call_made\n.type fault_call, %function\n"
        "fault_call:\n mov x8, x0\n mov x0, x1\n mov x1, x2\n mov x2, x3\n mov x3, x4\n"
        " mov x4, x5\n mov x5, xzr\n svc #0\n"
        "fault_call_made:\n ret\n.size fault_call, .-fault_call\n");
static long argument(const ucontext_t *at, int i)
{
    return (long)at->uc_mcontext.regs[i];
}
static void give_back(ucontext_t *at, long result)
{
    at->uc_mcontext.regs[0] = (unsigned long long)result;
}
#else
#    error "faults.c knows the registers of x86-64 and aarch64 only"
#endif

/* ---- whether the fault falls here ---- */

static bool falls_here(kind k)
{
    atomic_fetch_add(&report->counts[k], 1);
    if (!(selected >> k & 1u)) return false;
    unsigned long long n = atomic_fetch_add(&report->seen, 1) + 1;
    if (!fault_at || (lasts ? n < fault_at : n != fault_at)) return false;
    return true;
}

static void note(const char *what, const char *where)
{
    if (atomic_fetch_add(&report->fired, 1)) return;
    size_t used = 0;
    for (const char *from = what; *from && used < PLACE_BYTES - 2;) report->place[used++] = *from++;
    report->place[used++] = ' ';
    for (const char *from = where; *from && used < PLACE_BYTES - 1;)
        report->place[used++] = *from++;
    report->place[used] = '\0';
}

static void end_process(int number)
{
    fault_call(SYS_kill, getpid(), number, 0, 0, 0);
}

/* ---- calls of the system ---- */

static atomic_bool is_outside[MOST_FILES]; /* descriptors of files that are left alone */

/* Files of the system: libraries that are loaded late, and what describes the machine. */
static bool outside(const char *path)
{
    static const char *const begins[] = {"/proc/", "/sys/", "/dev/null", "/dev/urandom",
                                         "/etc/",  "/usr/", "/lib"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(path, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static const caught_call *find(long number)
{
    for (int i = 0; i < CALLS; i++)
        if (table[i].number == number) return &table[i];
    return NULL;
}

/* The path of a descriptor, without the C library, whose calls would be caught. */
static void path_of(char *path, size_t bytes, long file)
{
    char link[40] = "/proc/self/fd/", *end = link + strlen(link);
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + file % 10);
    while ((file /= 10) > 0 && n < 19);
    while (n) *end++ = digits[--n];
    *end     = '\0';
    long got = fault_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, (long)bytes - 1, 0);
    path[got > 0 ? got : 0] = '\0';
}

static long make(long number, const long a[5])
{
    if (number == SYS_fsync || number == SYS_fdatasync) return 0;
    return fault_call(number, a[0], a[1], a[2], a[3], a[4]);
}

/* Half of what was asked for; of several pieces the first. */
static long make_half(long number, const long a[5])
{
    if (number == SYS_readv || number == SYS_writev) {
        const struct iovec *piece = (const struct iovec *)a[1];
        long single               = number == SYS_readv ? SYS_read : SYS_write;
        return fault_call(single, a[0], (long)piece->iov_base, (long)piece->iov_len, 0, 0);
    }
    return fault_call(number, a[0], a[1], a[2] > 1 ? a[2] / 2 : a[2], a[3], 0);
}

static long make_with_fault(const caught_call *call, kind k, const long a[5])
{
    switch (how) {
    case SHORT:
        return k == READ || k == WRITE ? make_half(call->number, a) : make(call->number, a);
    case TEAR:
        if (k == WRITE) (void)make_half(call->number, a);
        /* fall through */
    case KILL:
        end_process(SIGKILL);
        return -EIO;
    case TERM:
        end_process(SIGTERM);
        return make(call->number, a);
    default:
        if (k == CLOSE) (void)make(call->number, a); /* a close that fails closes all the same */
        return -fault_errno;
    }
}

static long answer(const caught_call *call, const long a[5])
{
    char path[PLACE_BYTES];
    kind k            = call->kind;
    bool by_file      = call->about == FILE_0;
    const char *where = by_file ? path : (const char *)a[call->about == PATH_1];
    bool known_file   = by_file && a[0] >= 0 && a[0] < MOST_FILES;
    if (k == OPEN && (a[call->about == PATH_1 ? 2 : 1] & O_CREAT)) k = CREATE;
    if (known_file && atomic_load(&is_outside[a[0]])) {
        if (k == CLOSE && a[0] > STDERR_FILENO) atomic_store(&is_outside[a[0]], false);
        return make(call->number, a);
    }
    if (!by_file && where && outside(where)) {
        long result = make(call->number, a);
        if (call->kind == OPEN && result >= 0 && result < MOST_FILES)
            atomic_store(&is_outside[result], true);
        return result;
    }
    if (!falls_here(k)) return make(call->number, a);
    if (by_file) path_of(path, sizeof path, a[0]);
    note(kind_names[k], where ? where : "");
    return make_with_fault(call, k, a);
}

static void on_call(int number, siginfo_t *info, void *context)
{
    ucontext_t *at          = context;
    const caught_call *call = find(info->si_syscall);
    long a[5];
    (void)number;
    for (int i = 0; i < 5; i++) a[i] = argument(at, i);
    give_back(at, call ? answer(call, a) : -ENOSYS);
}

/* ---- the filter ---- */

#define LOAD(field)                   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define EQUAL(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)

static bool catch_calls(void)
{
    uintptr_t ours             = (uintptr_t)fault_call_made;
    struct sock_filter begin[] = {
        LOAD(arch),
        EQUAL(ARCHITECTURE, 1, 0),
        ALLOW,
        LOAD(instruction_pointer),
        EQUAL((uint32_t)ours, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        EQUAL((uint32_t)(ours >> 32), 0, 1),
        ALLOW,
        LOAD(nr)};
    enum { BEGIN = sizeof begin / sizeof *begin };
    struct sock_filter filter[BEGIN + CALLS + 2];
    memcpy(filter, begin, sizeof begin);
    for (int i = 0; i < CALLS; i++)
        filter[BEGIN + i] =
            (struct sock_filter)EQUAL((uint32_t)table[i].number, (unsigned char)(CALLS - i), 0);
    filter[BEGIN + CALLS]     = (struct sock_filter)ALLOW;
    filter[BEGIN + CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {.len = BEGIN + CALLS + 2, .filter = filter};
    struct sigaction action   = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- allocations ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

/* Code of the objects whose allocations count; nothing counts before main. */
static struct code {
    uintptr_t from, to, base;
    char name[64];
} ranges[MOST_RANGES];
static int n_ranges;

/* The libraries are the compiler's, or end the process themselves when memory is out. */
static bool counts_not(const char *name)
{
    static const char *const others[] = {"libdnnl.", "libstdc++", "libgomp", "libc.so", "ld-linux",
                                         "libgcc_s", "libOpenCL", "libm.so", "faults.", "vdso"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(name, others[i])) return true;
    return false;
}

static int add_object(struct dl_phdr_info *object, size_t bytes, void *nothing)
{
    const char *slash = strrchr(object->dlpi_name, '/');
    const char *name  = slash ? slash + 1 : object->dlpi_name;
    (void)bytes, (void)nothing;
    if (counts_not(name)) return 0;
    for (int i = 0; i < object->dlpi_phnum && n_ranges < MOST_RANGES; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        struct code *r = &ranges[n_ranges++];
        r->base        = object->dlpi_addr;
        r->from        = object->dlpi_addr + part->p_vaddr;
        r->to          = r->from + part->p_memsz;
        strncpy(r->name, *name ? name : "program", sizeof r->name - 1);
    }
    return 0;
}

static const struct code *code_of(uintptr_t caller)
{
    for (int i = 0; i < n_ranges; i++)
        if (caller >= ranges[i].from && caller < ranges[i].to) return &ranges[i];
    return NULL;
}

/* "memory couplet 0x1234": what addr2line takes. */
static void note_allocation(const struct code *r, uintptr_t caller)
{
    char where[96];
    size_t used = strlen(r->name);
    memcpy(where, r->name, used);
    memcpy(where + used, " 0x", 4);
    used += 3;
    for (int shift = 28; shift >= 0; shift -= 4)
        where[used++] = "0123456789abcdef"[(caller - r->base) >> shift & 15];
    where[used] = '\0';
    note(kind_names[MEMORY], where);
}

static uint64_t *stacks; /* NULL: not wanted */
static atomic_ullong n_stacks;

static void keep_stack(void)
{
    enum { MOST_FRAMES = 10 };
    static _Thread_local bool within; /* the unwinder may allocate */
    void *frames[MOST_FRAMES];
    if (!stacks || within) return;
    within        = true;
    uint64_t hash = 14695981039346656037u; /* FNV-1a over the addresses */
    for (int i = 0, n = backtrace(frames, MOST_FRAMES); i < n; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * 1099511628211u;
    within                     = false;
    const unsigned long long n = atomic_fetch_add(&n_stacks, 1);
    if (n < MOST_STACKS) stacks[n] = hash;
}

static bool open_stacks(const char *path)
{
    const size_t bytes = MOST_STACKS * sizeof *stacks;
    void *frames[1];
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return false;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    (void)backtrace(frames, 1); /* loads what it needs */
    if (shared != MAP_FAILED) stacks = shared;
    return shared != MAP_FAILED;
}

static bool fails(const void *caller)
{
    const struct code *r = code_of((uintptr_t)caller);
    if (!r) return false;
    keep_stack();
    if (!falls_here(MEMORY)) return false;
    note_allocation(r, (uintptr_t)caller);
    if (how == KILL) end_process(SIGKILL);
    errno = ENOMEM;
    return true;
}

#define FAILS fails(__builtin_return_address(0))

void *malloc(size_t bytes)
{
    return FAILS ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return FAILS ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return FAILS ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return FAILS ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    if (FAILS) return ENOMEM;
    *block = __libc_memalign(alignment, bytes);
    return *block ? 0 : ENOMEM;
}

/* ---- time ---- */

static long clock_speed = 1;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const long giga = 1000000000;
    int failed      = (int)fault_call(SYS_clock_gettime, clock, (long)now, 0, 0, 0);
    if (failed || clock_speed == 1 || clock != CLOCK_MONOTONIC) return failed;
    now->tv_sec *= clock_speed;
    now->tv_nsec *= clock_speed;
    now->tv_sec += now->tv_nsec / giga;
    now->tv_nsec %= giga;
    return 0;
}

/* ---- the beginning ---- */

static bool read_how(const char *word)
{
    static const struct {
        const char *word;
        int how, number;
    } known[] = {{"EIO", FAIL, EIO},       {"ENOSPC", FAIL, ENOSPC}, {"EINTR", FAIL, EINTR},
                 {"EMFILE", FAIL, EMFILE}, {"ENOMEM", FAIL, ENOMEM}, {"SHORT", SHORT, 0},
                 {"KILL", KILL, 0},        {"TEAR", TEAR, 0},        {"TERM", TERM, 0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(word, known[i].word) != 0) continue;
        how         = known[i].how;
        fault_errno = known[i].number;
        return true;
    }
    return false;
}

static bool read_kinds(const char *list)
{
    while (*list) {
        size_t length = strcspn(list, ",");
        int k         = 0;
        while (k < KINDS &&
               (strlen(kind_names[k]) != length || strncmp(kind_names[k], list, length) != 0))
            k++;
        if (k == KINDS) return false;
        selected |= 1u << k;
        list += length + (list[length] == ',');
    }
    return true;
}

static bool open_report(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, sizeof *report) != 0) return false;
    void *shared = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED) report = shared;
    return shared != MAP_FAILED;
}

static bool prepare(void)
{
    const char *calls = getenv("FAULT_CALLS"), *at = getenv("FAULT_AT"),
               *word = getenv("FAULT_HOW");
    const char *path = getenv("FAULT_REPORT"), *speed = getenv("FAULT_CLOCK");
    const char *stacks_path = getenv("FAULT_STACKS");
    if (calls && !read_kinds(calls)) return false;
    if (word && !read_how(word)) return false;
    if (path && !open_report(path)) return false;
    if (stacks_path && !open_stacks(stacks_path)) return false;
    if (speed) clock_speed = strtol(speed, NULL, 10);
    if (at) fault_at = strtoull(at, NULL, 10);
    lasts = getenv("FAULT_LASTS") != NULL;
    atomic_store(&is_outside[STDERR_FILENO], true);
    if ((selected & ~(1u << MEMORY)) && !catch_calls()) return false;
    if (selected >> MEMORY & 1u) dl_iterate_phdr(add_object, NULL);
    return true;
}

typedef int main_function(int, char **, char **);
static main_function *program_main;

static int main_with_faults(int count, char **words, char **environment)
{
    static const char sentence[] =
        "faults: cannot catch calls here, or a FAULT_ variable is wrong\n";
    if (!prepare()) {
        (void)!write(STDERR_FILENO, sentence, sizeof sentence - 1);
        _exit(UNAVAILABLE);
    }
    return program_main(count, words, environment);
}

int __libc_start_main(main_function *main, int count, char **words, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

int __libc_start_main(main_function *main, int count, char **words, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) real;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main            = main;
    return real(main_with_faults, count, words, init, fini, rtld_fini, stack_end);
}
