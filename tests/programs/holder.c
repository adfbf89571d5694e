/* holder: holds MIB of memory from malloc, says "ready", and ends when its standard input does. Built static it is a
 * program that Pagetide does not reach.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2) return 2;
    size_t size = strtoul(words[1], NULL, 10) << 20;
    char *held = malloc(size);
    if (!held) return 2;
    memset(held, 'x', size);
    puts("ready");
    fflush(stdout);
    while (read(0, &(char){0}, 1) > 0) {}
    for (size_t at = 0; at < size; at += 4096)
        if (held[at] != 'x') return 1;
    return 0;
}
