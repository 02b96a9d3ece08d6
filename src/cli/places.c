/* places.c - see places.h */
#include "cli/places.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"
#include "study/outside.h"

/* Nothing is written into what is read. */
static cpl_status check_output(const cpl_arguments *args, const char *flag)
{
    const char *path = cpl_flag_text(args, flag);
    if (!path || (strcmp(flag, "--json") == 0 && strcmp(path, "-") == 0)) return CPL_OK;
    for (int i = 0; i < args->n_words; i++) CPL_TRY(cpl_outside_check(path, args->words[i]));
    return CPL_OK;
}

/* Better now than after all the work. */
static cpl_status check_file_place(const char *path)
{
    cpl_status status = CPL_OK;
    if (!path || strcmp(path, "-") == 0) return CPL_OK;
    char *folder = cpl_path_folder(path);
    if (!folder) return CPL_ERR_MEMORY;
    if (cpl_path_is_folder(path))
        status = CPL_FAIL(CPL_ERR_IO, "%s: is a folder, not a file to write", path);
    else if (!cpl_path_is_folder(folder))
        status = CPL_FAIL(CPL_ERR_IO, "%s: there is no folder %s", path, folder);
    else if (access(folder, W_OK) != 0)
        status = CPL_FAIL(CPL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    cpl_free(folder);
    return status;
}

cpl_status cpl_places_check_files(const cpl_arguments *args)
{
    const char *json = cpl_flag_text(args, "--json"), *html = cpl_flag_text(args, "--html");
    CPL_TRY(check_file_place(json));
    CPL_TRY(check_file_place(html));
    if (json && html && strcmp(json, html) == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "--json and --html both name %s", json);
    return CPL_OK;
}

cpl_status cpl_places_keep(const cpl_arguments *args, const char *file)
{
    static const char *const flags[] = {"--json", "--html"};
    struct stat kept, there;
    if (!file || stat(file, &kept) != 0) return CPL_OK;
    for (int i = 0; i < 2; i++) {
        const char *path = cpl_flag_given(args, flags[i]) ? cpl_flag_text(args, flags[i]) : NULL;
        if (!path || stat(path, &there) != 0) continue;
        if (kept.st_dev == there.st_dev && kept.st_ino == there.st_ino)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s %s: is read, and not written over: name another file", flags[i],
                            path);
    }
    return CPL_OK;
}

cpl_status cpl_places_check_json(const cpl_arguments *args)
{
    CPL_TRY(check_output(args, "--json"));
    return check_file_place(cpl_flag_text(args, "--json"));
}

cpl_status cpl_places_check(const cpl_arguments *args)
{
    static const char *const names[] = {"--json", "--html", "--svg"};
    const char *svg                  = cpl_flag_text(args, "--svg");
    for (int i = 0; i < 3; i++) CPL_TRY(check_output(args, names[i]));
    CPL_TRY(cpl_places_check_files(args));
    if (svg && cpl_path_exists(svg) && !cpl_path_is_folder(svg))
        return CPL_FAIL(CPL_ERR_IO, "%s: is there and is no folder", svg);
    return CPL_OK;
}
