/* faults_calls.c - calls of the system that fail. See faults.c. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include "faults.h"

enum { MOST_FILES = 1024, PATH_BYTES = 240 };

/* ---- calls that are caught ---- */

/* The object of a call: the descriptor that is its first argument, or the path in an argument. */
typedef enum about { FILE_0 = -1, PATH_0, PATH_1, PATH_2 } about;

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
    {SYS_ftruncate, CUT, FILE_0},   {SYS_symlinkat, LINK, PATH_2},  {SYS_readlinkat, STAT, PATH_1},
    {SYS_newfstatat, STAT, PATH_1}, {SYS_fstat, STAT, FILE_0},      {SYS_flock, LOCK, FILE_0},
#ifdef SYS_open /* calls that newer architectures lack */
    {SYS_open, OPEN, PATH_0},       {SYS_rename, RENAME, PATH_0},   {SYS_mkdir, MKDIR, PATH_0},
    {SYS_unlink, UNLINK, PATH_0},   {SYS_rmdir, UNLINK, PATH_0},    {SYS_symlink, LINK, PATH_1},
    {SYS_readlink, STAT, PATH_0},   {SYS_stat, STAT, PATH_0},       {SYS_lstat, STAT, PATH_0},
#endif
};
enum { CALLS = sizeof table / sizeof *table };

/* ---- calls that are not caught ---- */

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
#    error "faults_calls.c knows the registers of x86-64 and aarch64 only"
#endif

/* ---- calls of the system ---- */

static atomic_bool is_outside[MOST_FILES]; /* descriptors of files without faults */

/* Returns whether a file is the system's: a library loaded late, or data of the machine. */
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

/* Sets the path of a descriptor without the C library, whose calls would be caught. */
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

/* Makes a call for half of the bytes asked for, or for the first of several pieces. */
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
    switch (fault_plan.how) {
    case SHORT:
        return k == READ || k == WRITE ? make_half(call->number, a) : make(call->number, a);
    case TEAR:
        if (k == WRITE) (void)make_half(call->number, a);
        /* fall through */
    case KILL:
        fault_signal(SIGKILL);
        return -EIO;
    case HANG:
        for (;;) (void)fault_call(SYS_ppoll, 0, 0, 0, 0, 0);
    case SIGNAL:
        fault_signal(fault_plan.number);
        return make(call->number, a);
    default:
        if (k == CLOSE) (void)make(call->number, a); /* a failed close closes the file */
        return -fault_plan.number;
    }
}

static long answer(const caught_call *call, const long a[5])
{
    char path[PATH_BYTES];
    kind k            = call->kind;
    bool by_file      = call->about == FILE_0;
    const char *where = by_file ? path : (const char *)a[call->about];
    bool known_file   = by_file && a[0] >= 0 && a[0] < MOST_FILES;
    if (k == OPEN && (a[call->about + 1] & O_CREAT)) k = CREATE;
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
    if (by_file && fault_plan.path) path_of(path, sizeof path, a[0]);
    if (fault_plan.path && !(where && strstr(where, fault_plan.path))) return make(call->number, a);
    if (!fault_falls_here(k)) return make(call->number, a);
    if (by_file && !fault_plan.path) path_of(path, sizeof path, a[0]);
    fault_note(fault_kind_names[k], where ? where : "");
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

/* Keeps this signal unblocked if a thread blocks all signals: the call would end the process. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    sigset_t mask;
    if (set) mask = *set;
    if (set && how != SIG_UNBLOCK) (void)sigdelset(&mask, SIGSYS);
    return (int)-fault_call(SYS_rt_sigprocmask, how, (long)(set ? &mask : NULL), (long)old, 8, 0);
}

/* ---- the filter ---- */

#define LOAD(field)                   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define EQUAL(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)

bool fault_catch_calls(void)
{
    atomic_store(&is_outside[STDERR_FILENO], true);
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
