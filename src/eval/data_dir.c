/* data_dir.c - see data_dir.h */
#include "eval/data_dir.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"

static const char *const places[] = {"../share/couplet/eval", "../../data/eval"};

/* The folder of the program, from cpl_alloc; NULL: not known. */
static char *program_folder(void)
{
    char program[4096];
    ssize_t length                   = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    return length > 0 ? cpl_path_folder(program) : NULL;
}

cpl_status cpl_eval_data_dir_check(const char *data, const char *word)
{
    char *folder = program_folder();
    if (cpl_path_is_folder(data)) {
        cpl_free(folder);
        return CPL_OK;
    }
    cpl_status status = CPL_FAIL(
        CPL_ERR_INPUT,
        "the rows that come with the program are not there: beside it, in %s, neither %s nor %s is "
        "a folder, nor is %s here. Put the program back where it was installed or built (a link to "
        "it can stand elsewhere), or name a folder of rows with %s DIR",
        folder ? folder : "its folder", places[0], places[1], data, word);
    cpl_free(folder);
    return status;
}

char *cpl_eval_data_dir(void)
{
    char *folder = program_folder();
    for (int i = 0; folder && i < 2; i++) {
        char *path = cpl_path_join(folder, places[i]), *real = path ? realpath(path, NULL) : NULL;
        cpl_free(path);
        if (real && cpl_path_is_folder(real)) {
            path = cpl_text_copy(real);
            free(real);
            cpl_free(folder);
            return path;
        }
        free(real);
    }
    cpl_free(folder);
    return cpl_text_copy("data/eval");
}
