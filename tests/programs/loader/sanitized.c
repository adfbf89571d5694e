/* sanitized: any program, to be built with a sanitizer. */
#include <stdlib.h>
int main(void) {
    char *volatile object = malloc(100);
    free(object);
    return 0;
}
