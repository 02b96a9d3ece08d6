/* test_file.c - files whole or not at all: reading, mapping, hashing, atomic writing, folders.
 *
 * Method: a limit on the size of files (RLIMIT_FSIZE with its signal ignored) simulates a full
 *         disk, and cpl_alloc_fail_at a failing allocation. After each, the old file must be whole
 *         and the folder must hold no other file. The leak check of the sanitizer applies to all
 *         tests. */
#include "io/file.h"
#include "io/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/rng.h"
#include "base/stop.h"
#include "support/files.h"

static void assert_content(const char *path, const void *want, size_t length)
{
    cpl_text text = {0};
    assert_ok(cpl_file_read(&text, path, 1u << 30));
    assert_int_equal(text.length, length);
    if (length) assert_memory_equal(text.bytes, want, length);
    cpl_text_free(&text);
}

static void assert_only(const char *folder, const char *name)
{
    cpl_strings names = {0};
    assert_ok(cpl_folder_list(&names, folder));
    assert_int_equal(names.count, 1);
    assert_string_equal(names.at[0], name);
    cpl_paths_free(&names);
}

/* Returns random bytes, from malloc. */
static unsigned char *noise(size_t length)
{
    cpl_rng_key key      = {.seed = 3, .stream = CPL_STREAM_TEST};
    unsigned char *bytes = malloc(length + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < length; i++) bytes[i] = (unsigned char)cpl_rng_u32(&key, i);
    return bytes;
}

TEST(writes_and_reads_every_length)
{
    const char *folder    = scratch_folder();
    const char *path      = in_folder(folder, "a.bin");
    unsigned char *bytes  = noise(3 * CPL_WRITER_BUFFER);
    const size_t around[] = LIST(0, 1, 4095, CPL_WRITER_BUFFER - 1, CPL_WRITER_BUFFER,
                                 CPL_WRITER_BUFFER + 1, 3 * CPL_WRITER_BUFFER);
    const size_t piece[]  = {1 << 20, 1000, 77777, CPL_WRITER_BUFFER, CPL_WRITER_BUFFER - 1};
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        for (size_t p = 0; p < sizeof piece / sizeof *piece; p++) {
            cpl_writer writer;
            uint64_t hash, want = XXH3_64bits(bytes, around[i]);
            assert_ok(cpl_writer_open(&writer, path));
            for (size_t at = 0; at < around[i]; at += piece[p])
                cpl_writer_put(&writer, bytes + at,
                               around[i] - at < piece[p] ? around[i] - at : piece[p]);
            assert_ok(cpl_writer_commit(&writer));
            assert_content(path, bytes, around[i]);
            assert_ok(cpl_file_hash(&hash, path));
            assert_true(hash == want);
        }
    assert_only(folder, "a.bin");
    free(bytes);
}

/* A name found in a folder is refused at once if it is not a regular file. */
TEST(files_of_folders)
{
    const char *folder = scratch_folder();
    const char *pipe = in_folder(folder, "pipe"), *endless = in_folder(folder, "endless"),
               *good = in_folder(folder, "good");
    cpl_text text    = {0};
    alarm(20);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("/dev/zero", endless), 0);
    assert_fails(CPL_ERR_INPUT, "pipe: is not a regular", cpl_file_read(&text, pipe, 10));
    assert_fails(CPL_ERR_INPUT, "endless: is not a regular", cpl_file_read(&text, endless, 10));
    assert_fails(CPL_ERR_INPUT, "not a regular", cpl_file_read(&text, folder, 10));
    assert_fails(CPL_ERR_INPUT, "not a regular", cpl_file_check(pipe));
    assert_int_equal(unlink(pipe), 0);
    assert_ok(cpl_file_write_atomic(pipe, "regular", 7));
    assert_int_equal(symlink("pipe", good), 0);
    assert_ok(cpl_file_read(&text, good, 7));
    assert_string_equal(text.bytes, "regular");
    alarm(0);
    cpl_text_free(&text);
}

/* Runs `command` in the background. */
static void later(const char *command, const char *path)
{
    char line[600];
    snprintf(line, sizeof line, "(%s) > '%s' &", command, path);
    assert_int_equal(system(line), 0);
}

/* A file that the user named may be a pipe. The reader waits for a late writer, and the wait is
 * bounded. */
TEST(files_of_users)
{
    const char *folder = scratch_folder();
    const char *pipe   = in_folder(folder, "pipe");
    cpl_text text      = {0};
    alarm(60);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    later("sleep 0.3; printf one; sleep 0.3; printf two", pipe);
    assert_ok(cpl_file_read_given(&text, pipe, 6));
    assert_string_equal(text.bytes, "onetwo");
    later("true", pipe);
    assert_ok(cpl_file_read_given(&text, pipe, 6));
    assert_int_equal(text.length, 0);
    later("printf sevenxx", pipe);
    assert_fails(CPL_ERR_INPUT, "longer than the 6 bytes", cpl_file_read_given(&text, pipe, 6));
    assert_fails(CPL_ERR_INPUT, "longer than", cpl_file_read_given(&text, "/dev/zero", 100000));
    assert_fails(CPL_ERR_INPUT, "is a folder", cpl_file_read_given(&text, folder, 6));
    assert_int_equal(unlink(pipe), 0);
    assert_fails(CPL_ERR_IO, "No such file", cpl_file_read_given(&text, pipe, 6));
    alarm(0);
    cpl_text_free(&text);
}

static void ask_to_stop(int signal_number)
{
    cpl_stop_request(signal_number);
}

/* No process writes: only the request to stop ends the wait. */
TEST(waiting_can_be_stopped)
{
    const char *pipe = in_folder(scratch_folder(), "pipe");
    cpl_text text    = {0};
    assert_int_equal(mkfifo(pipe, 0600), 0);
    void (*before)(int) = signal(SIGALRM, ask_to_stop);
    alarm(1);
    assert_fails(CPL_ERR_STOPPED, "stopped by signal", cpl_file_read_given(&text, pipe, 6));
    cpl_stop_request(0);
    signal(SIGALRM, before);
    cpl_text_free(&text);
}

TEST(says_what_is_wrong)
{
    const char *folder = scratch_folder();
    const char *path = in_folder(folder, "a"), *link = in_folder(folder, "link"),
               *pipe   = in_folder(folder, "pipe");
    const char *absent = in_folder(folder, "no/such");
    cpl_text text      = {0};
    uint64_t length;
    int descriptor;
    char byte;
    assert_fails(CPL_ERR_IO, "No such file", cpl_file_read(&text, path, 10));
    assert_int_equal(symlink("nowhere", link), 0);
    assert_fails(CPL_ERR_IO, "symbolic link", cpl_file_read(&text, link, 10));
    assert_fails(CPL_ERR_INPUT, "not a regular", cpl_file_read(&text, folder, 10));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(CPL_ERR_INPUT, "not a regular", cpl_file_open(&descriptor, &length, pipe));
    assert_ok(cpl_file_write_atomic(path, "0123456789", 10));
    assert_ok(cpl_file_read(&text, path, 10));
    assert_fails(CPL_ERR_INPUT, "longer than the 9 bytes", cpl_file_read(&text, path, 9));
    assert_fails(CPL_ERR_IO, "cannot be written", cpl_file_write_atomic(absent, "x", 1));
    assert_fails(CPL_ERR_IO, "cannot be written", cpl_file_write_atomic(folder, "x", 1));
    assert_ok(cpl_file_open(&descriptor, &length, path));
    assert_int_equal(length, 10);
    assert_ok(cpl_file_read_at(descriptor, &byte, 1, 9, path));
    assert_int_equal(byte, '9');
    assert_fails(CPL_ERR_IO, "ends at byte 10", cpl_file_read_at(descriptor, &byte, 1, 10, path));
    close(descriptor);
    cpl_text_free(&text);
}

/* Writes `length` bytes over `path` while no file may grow beyond `limit`. */
static cpl_status write_with_limit(const char *path, const void *bytes, size_t length, size_t limit)
{
    struct rlimit old, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight               = old;
    tight.rlim_cur      = limit;
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    cpl_status status = cpl_file_write_atomic(path, bytes, length);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, before);
    return status;
}

TEST(a_full_disk_leaves_the_old_file)
{
    const char *folder   = scratch_folder();
    const char *path     = in_folder(folder, "a");
    unsigned char *bytes = noise(1 << 20);
    assert_ok(cpl_file_write_atomic(path, "old", 3));
    const size_t limits[] = {0, 1, 4096, CPL_WRITER_BUFFER, (1 << 20) - 1};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_fails(CPL_ERR_IO, "cannot be written",
                     write_with_limit(path, bytes, 1 << 20, limits[i]));
        assert_content(path, "old", 3);
        assert_only(folder, "a");
    }
    assert_ok(write_with_limit(path, bytes, 1 << 20, 1 << 20));
    assert_content(path, bytes, 1 << 20);
    free(bytes);
}

TEST(abort_leaves_the_old_file)
{
    const char *folder = scratch_folder();
    const char *path   = in_folder(folder, "a");
    cpl_writer writer  = {0};
    cpl_writer_abort(&writer);
    assert_ok(cpl_file_write_atomic(path, "old", 3));
    assert_ok(cpl_writer_open(&writer, path));
    cpl_writer_put(&writer, "new", 3);
    cpl_writer_abort(&writer);
    cpl_writer_abort(&writer);
    assert_content(path, "old", 3);
    assert_only(folder, "a");
}

TEST(leavings_of_a_killed_process_are_passed_by)
{
    const char *folder = scratch_folder();
    const char *path   = in_folder(folder, "a");
    cpl_writer first, second;
    assert_ok(cpl_writer_open(&first, path));
    unsigned number = (unsigned)atoi(strrchr(first.temporary, '-') + 1);
    char taken[256];
    snprintf(taken, sizeof taken, "%s.tmp-%ld-%u", path, (long)getpid(), number + 1);
    assert_int_equal(close(open(taken, O_CREAT | O_WRONLY, 0600)), 0);
    assert_ok(cpl_writer_open(&second, path));
    assert_string_not_equal(second.temporary, taken);
    cpl_writer_put(&second, "2", 1);
    assert_ok(cpl_writer_commit(&second));
    cpl_writer_abort(&first);
    assert_content(path, "2", 1);
}

TEST(folders)
{
    const char *folder  = scratch_folder();
    const char *names[] = {"b", "a", "B", "\xC3\xA9", "a.b"};
    const char *want[]  = {"B", "a", "a.b", "b", "\xC3\xA9"};
    cpl_strings found   = {0};
    assert_ok(cpl_folder_list(&found, folder));
    assert_int_equal(found.count, 0);
    cpl_paths_free(&found);
    for (int i = 0; i < 5; i++) {
        const char *path = in_folder(folder, names[i]);
        assert_false(cpl_path_exists(path));
        assert_ok(cpl_file_write_atomic(path, "", 0));
        assert_true(cpl_path_exists(path));
        assert_false(cpl_path_is_folder(path));
    }
    assert_true(cpl_path_is_folder(folder));
    assert_ok(cpl_folder_list(&found, folder));
    assert_int_equal(found.count, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(found.at[i], want[i]);
    cpl_paths_free(&found);
    assert_fails(CPL_ERR_IO, "cannot be listed", cpl_folder_list(&found, "/no/such"));
}

TEST(joins_and_parents)
{
    const char *cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    const char *parents[][2] = {{"a/b", "a"}, {"b", "."}, {"/b", "/"}, {"x/y/z", "x/y"}};
    for (int i = 0; i < 4; i++) {
        char *joined = cpl_path_join(cases[i][0], cases[i][1]);
        char *parent = cpl_path_folder(parents[i][0]);
        assert_string_equal(joined, cases[i][2]);
        assert_string_equal(parent, parents[i][1]);
        cpl_free(joined), cpl_free(parent);
    }
}

/* Does everything once. The test makes each of its allocations fail in turn. */
static cpl_status all_of_it(const char *folder)
{
    cpl_status status = CPL_OK;
    cpl_text text     = {0};
    uint64_t hash;
    cpl_strings names = {0};
    char *path        = cpl_path_join(folder, "a");
    if (!path) return CPL_ERR_MEMORY;
    CPL_TRY_DONE(cpl_file_write_atomic(path, "new", 3));
    CPL_TRY_DONE(cpl_file_read(&text, path, 100));
    CPL_TRY_DONE(cpl_file_hash(&hash, path));
    CPL_TRY_DONE(cpl_folder_list(&names, folder));
done:
    cpl_paths_free(&names);
    cpl_text_free(&text);
    cpl_free(path);
    return status;
}

TEST(failing_allocations)
{
    const char *folder = scratch_folder();
    const char *path   = in_folder(folder, "a");
    assert_ok(cpl_file_write_atomic(path, "new", 3));
    cpl_status status = CPL_ERR_MEMORY;
    int64_t nth       = 0;
    while (status != CPL_OK && nth < 100) {
        cpl_alloc_fail_at(++nth);
        status = all_of_it(folder);
        cpl_alloc_fail_at(0);
        if (status != CPL_OK) assert_int_equal(status, CPL_ERR_MEMORY);
        assert_content(path, "new", 3);
        assert_only(folder, "a");
    }
    assert_ok(status);
    assert_true(nth > 5);
}

/* Renaming over a pipe or a device would remove it. */
TEST(only_regular_files_are_replaced)
{
    const char *folder = scratch_folder();
    const char *pipe   = in_folder(folder, "pipe");
    struct stat what;
    assert_int_equal(mkfifo(pipe, 0666), 0);
    assert_fails(CPL_ERR_IO, "not a regular file", cpl_file_write_atomic(pipe, "x", 1));
    assert_fails(CPL_ERR_IO, "not a regular file", cpl_file_write_atomic(folder, "x", 1));
    assert_int_equal(stat(pipe, &what), 0);
    assert_true(S_ISFIFO(what.st_mode));
    assert_only(folder, "pipe");
}

/* Folders that were made are removed. Folders that existed before or are in use stay. */
TEST(folders_that_were_made_go_again)
{
    const char *folder = scratch_folder();
    const char *deep = in_folder(folder, "a/b//c/"), *beside = in_folder(folder, "a/kept");
    size_t there = cpl_path_existing(deep);
    assert_int_equal(there, strlen(folder));
    for (int kept = 0; kept < 2; kept++) {
        assert_ok(cpl_folder_make(deep));
        if (kept) assert_ok(cpl_file_write_atomic(beside, "x", 1));
        cpl_folder_unmake(deep, there);
        assert_false(cpl_path_exists(deep));
        assert_int_equal(cpl_path_existing(beside),
                         strlen(folder) + (kept ? strlen("/a/kept") : 0));
    }
    assert_content(beside, "x", 1);
    assert_ok(cpl_folder_make(deep));
    assert_int_equal(cpl_path_existing(deep), strlen(deep));
    cpl_folder_unmake(deep, cpl_path_existing(deep));
    assert_true(cpl_path_is_folder(deep));
    cpl_folder_empty(folder, NULL);
    assert_int_equal(cpl_path_existing(beside), strlen(folder));
}

enum { MANY_FILES = 150 };

static void fill(const char *folder, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(cpl_folder_make(path));
    for (int i = 0; i < MANY_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s/%d", folder, name, i);
        const int file = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(file >= 0);
        close(file);
    }
}

/* Asserts that the folder is absent, or has all its files and the lock. */
static void assert_whole_or_gone(const char *folder, const char *name, const char *lock)
{
    cpl_strings names = {0};
    const char *path  = in_folder(folder, name);
    if (cpl_path_exists(path)) {
        assert_ok(cpl_folder_list(&names, path));
        assert_int_equal(names.count, MANY_FILES);
        assert_true(cpl_path_exists(lock));
    }
    cpl_paths_free(&names);
}

/* A program that is killed while it empties a folder leaves no half of the contents there. */
TEST(killed_while_emptying)
{
    const char *folder = in_folder(scratch_folder(), "emptied"), *lock = in_folder(folder, "lock");
    int interrupted = 0;
    for (int kill_at = 0; kill_at < 20; kill_at++) {
        fill(folder, "a");
        fill(folder, "b");
        assert_ok(cpl_file_write_atomic(lock, "x", 1));
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            cpl_folder_empty(folder, "lock");
            _exit(0);
        }
        usleep((useconds_t)kill_at * 200);
        kill(child, SIGKILL);
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_whole_or_gone(folder, "a", lock);
        assert_whole_or_gone(folder, "b", lock);
        interrupted += WIFSIGNALED(how);
        cpl_folder_empty(folder, NULL);
        assert_int_equal(rmdir(folder), 0);
    }
    assert_true(interrupted > 0);
}

/* A process that waits for a lock takes a new one if the file was removed, and hears a signal. */
TEST(locks)
{
    const char *path = in_folder(scratch_folder(), "lock");
    int mine, other;
    assert_ok(cpl_file_lock(&mine, path, false));
    assert_ok(cpl_file_lock(&other, path, false));
    assert_int_equal(other, -1);
    cpl_stop_request(15);
    assert_fails(CPL_ERR_STOPPED, "signal 15", cpl_file_lock(&other, path, true));
    cpl_stop_request(0);
    assert_int_equal(unlink(path), 0);
    assert_ok(cpl_file_lock(&other, path, true));
    assert_true(other >= 0 && cpl_path_exists(path));
    close(mine);
    close(other);
}
