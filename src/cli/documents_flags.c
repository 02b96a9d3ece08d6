/* documents_flags.c - see documents_flags.h */
#include "cli/documents_flags.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/terminal/terminal.h"

bool cpl_live_line_wanted(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void cpl_live_line_clear(void)
{
    if (cpl_live_line_wanted()) cpl_terminal_erase_line(stderr);
}
