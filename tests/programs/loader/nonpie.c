/* nonpie: takes the address of calloc. In an executable at a fixed place the linker makes a stub for that, at which
 * everybody finds the function: an undefined symbol with a value. Memory that comes by it must be managed.
 *
 *   nonpie MIB       Exit status: 0 no more than MIB were in memory at a time, 1 more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECTS = 160, OBJECT_BYTES = 1 << 20 };
static char *objects[OBJECTS];

int main(int count, char **words) {
    void *(*volatile allocate)(size_t, size_t) = calloc;
    long most = 0, allowed = count > 1 ? atol(words[1]) : 0;
    for (int nth = 0; nth < OBJECTS; nth++) {
        long whole, resident;
        objects[nth] = allocate(1, OBJECT_BYTES);
        memset(objects[nth], nth, OBJECT_BYTES);
        FILE *statm = fopen("/proc/self/statm", "r");
        if (!statm || fscanf(statm, "%ld %ld", &whole, &resident) != 2) return 2;
        fclose(statm);
        if (resident / 256 > most) most = resident / 256;
    }
    for (int nth = 0; nth < OBJECTS; nth++)
        for (int at = 0; at < OBJECT_BYTES; at += 4096)
            if (objects[nth][at] != (char)nth) return 3;
    printf("at most %ld MiB\n", most);
    return most > allowed;
}
