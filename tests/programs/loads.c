/* loads: libraries that are loaded when memory is nearly handed out. The loader allocates with its locks held, without
 * which no thread starts.
 *
 *   loads KIB LIBRARY…       takes KIB of memory, then loads each library that there is
 *
 * Exit status: 0 all well, 2 usage or resources. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 16 << 10 };

int main(int count, char **words) {
    if (count < 2) return fprintf(stderr, "usage: loads KIB LIBRARY...\n"), 2;
    for (size_t left = strtoul(words[1], NULL, 10) << 10; left >= PIECE; left -= PIECE) {
        char *piece = malloc(PIECE);
        if (!piece) return perror("loads"), 2;
        memset(piece, 1, PIECE);
    }
    int loaded = 0;
    for (int nth = 2; nth < count; nth++) loaded += dlopen(words[nth], RTLD_NOW) != NULL;
    return loaded == 0 ? 2 : 0;
}
