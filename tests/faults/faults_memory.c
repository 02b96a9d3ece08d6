/* faults_memory.c - allocations that fail. See faults.c. */
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "faults.h"

enum { MOST_RANGES = 32, MOST_STACKS = 1 << 20 };

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

/* The code of the objects whose allocations count. No allocation counts before main. */
static struct code {
    uintptr_t from, to, base;
    char name[64];
} ranges[MOST_RANGES];
static int n_ranges;

/* Returns whether a library does not count: the compiler's, or one that ends the process itself. */
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

void fault_catch_memory(void)
{
    dl_iterate_phdr(add_object, NULL);
}

static const struct code *code_of(uintptr_t caller)
{
    for (int i = 0; i < n_ranges; i++)
        if (caller >= ranges[i].from && caller < ranges[i].to) return &ranges[i];
    return NULL;
}

/* Reports an allocation as "memory couplet 0x1234", which addr2line takes. */
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
    fault_note(fault_kind_names[MEMORY], where);
}

static uint64_t *stacks; /* NULL: stacks are not kept */
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

bool fault_keep_stacks(const char *path)
{
    void *frames[1];
    (void)backtrace(frames, 1); /* loads the unwinder */
    stacks = fault_map_file(path, MOST_STACKS * sizeof *stacks);
    return stacks;
}

static bool fails(const void *caller)
{
    const struct code *r = code_of((uintptr_t)caller);
    if (!r) return false;
    keep_stack();
    if (!fault_falls_here(MEMORY)) return false;
    note_allocation(r, (uintptr_t)caller);
    if (fault_plan.how == KILL) fault_signal(SIGKILL);
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
