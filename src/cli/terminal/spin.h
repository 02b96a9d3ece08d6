/* spin.h - how long a thread of the program spins before it sleeps.
 *
 * Room:  cli/terminal. Threads of libgomp that wait for each other spin for milliseconds by default. Beside
 *        other work the thread that they wait for has no processor meanwhile, and training falls to
 *        a tenth of its speed. libgomp reads its policy when it is loaded, before main, and has no
 *        call that changes it: the program sets GOMP_SPINCOUNT and executes itself again, once
 *        (4 ms). A policy that the environment already names is left as it is.
 *        The library sets nothing: inside somebody else's process the policy is theirs. */
#ifndef CPL_CLI_TERMINAL_SPIN_H
#define CPL_CLI_TERMINAL_SPIN_H

/* First of all in main. Does not return if the program is executed again. */
void cpl_spin_bound(char **argv);

#endif /* CPL_CLI_TERMINAL_SPIN_H */
